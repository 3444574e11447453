"""The pages that people read: README.md, CONTRIBUTING.md and docs/, their links, headings and examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from floodmark.cli.main import app
from floodmark.cli.options import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
)
FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>```+)(?P<kind>[^\n`]*)\n(?P<body>.*?)^ *(?P=mark) *$", re.M | re.S
)
SHELLS = ("", "sh", "bash", "shell", "console", "text")


@dataclass(frozen=True)
class Example:
    """A code block on a page."""

    page: str
    line: int
    kind: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def examples(page: str) -> Iterator[Example]:
    """The fenced code blocks of a page, without the indentation of a surrounding list."""
    text = text_of(page)
    for found in FENCE.finditer(text):
        body = re.sub(rf"(?m)^{found['indent']}", "", found["body"])
        yield Example(page, text.count("\n", 0, found.start()) + 2, found["kind"].strip(), body)


def prose(page: str) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", text_of(page))


def links(page: str) -> list[str]:
    """A page's links, except to other sites."""
    plain = re.sub(r"`[^`\n]*`", "", re.sub(r"\[`[^`\n]*`\]", "[]", prose(page)))
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", plain)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site generate them."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *#*$", prose(page)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (one := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(one)
    return found


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Every `floodmark …` on a page, in code blocks and in sentences: where it is, and its arguments."""
    for example in examples(page):
        if example.kind not in SHELLS:
            continue
        joined = re.sub(r"\\\n\s*", " ", example.body)
        for line in joined.splitlines():
            if "[OPTIONS]" in line:  # a usage line
                continue
            # Tells commands from output: a command is at the start of a line, after a prompt, or in a crontab.
            if found := re.match(
                r"(?:\$ |[\d*/, -]+ (?:cd \S+ && )?)?((?:\S*/)?floodmark -?-?[a-z0-9-].*)", line
            ):
                yield f"{example}: {line.strip()}", words(found[1])
    for found in re.finditer(r"`(floodmark [^`]+)`", prose(page)):
        # … and capitals are placeholders.
        if "…" not in found[1] and not re.search(r"\b(COMMAND|SHELL)\b", found[1]):
            yield f"{page}: {found[1]}", words(" ".join(found[1].split()))


def words(line: str) -> list[str]:
    """The arguments of the command at the start of a line, up to a pipe, a redirection or a comment."""
    # Two spaces and a word start the explanation next to a command, as in --help.
    lexer = shlex.shlex(re.split(r" {2,}(?=[A-Za-z])", line)[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if word and set(word) <= set("|&;<>()"):
            break
        found.append(word)
    return found[1:]


def parsed(arguments: list[str]) -> None:
    """Parses a command line as the command does, down to the last subcommand; runs nothing."""
    command: click.Command = app
    with app.make_context("floodmark", list(arguments), obj=Settings()) as ctx:
        while isinstance(command, click.Group):
            rest = [*ctx._protected_args, *ctx.args]
            _, found, rest = command.resolve_command(ctx, rest)
            assert found is not None
            command, ctx = found, found.make_context(found.name, rest, parent=ctx)


def console(example: Example) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block of output, each with the lines that it printed."""
    command: str | None = None
    printed: list[str] = []
    for line in example.body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    if command is not None:
        yield command, printed


def section(page: str, heading: str) -> list[Example]:
    """The code blocks below a heading, up to the next one."""
    text = text_of(page)
    start = text.index(f"\n{heading}\n") + 1
    end = text.find("\n## ", start + 1)
    first, last = (text.count("\n", 0, at) + 1 for at in (start, end if end >= 0 else len(text)))
    return [example for example in examples(page) if first < example.line <= last]
