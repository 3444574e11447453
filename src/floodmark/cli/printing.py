"""What the command line prints: results on stdout as JSON or text, errors and progress on stderr.

The text is made from the same results that `--json` prints, by pure functions, so the two can't disagree.
Only results go to stdout; its reader may go away at any time. Lines on stderr have whole words on a terminal however
narrow it is, and it is no failure if nobody reads them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.text import cells, shown, shown_json

if TYPE_CHECKING:
    from floodmark.model.results import Failure

    Why = FloodmarkError | Failure

Document = Mapping[str, Any]
Scrub = Callable[[str], str]

# Where a document can hold free text from other systems; names and numbers are left as they are.
_FREE_TEXT = frozenset({"message", "hint", "detail", "last_error", "notes"})
_LONGEST = 1600  # characters of an error's line
# A command to paste: broken by a newline, the shell would run its first half.
_COMMAND = re.compile(r"\bfloodmark (?:[^\s,;)]+ )*[^\s,;)]+")
_GLUE = "\xa0"  # textwrap doesn't break there


def has_colour(stream: Any = None) -> bool:
    """Whether colours are welcome there; on stdout by default."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream or sys.stdout, "isatty", lambda: False)())


def width(stream: Any = None) -> int | None:
    """The columns of the terminal there (stdout by default); None where there is none. One that does not know its size says 0."""
    stream = stream or sys.stdout
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns or 80) if stream.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None


def _write(stream: Any, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def emit(text: str) -> None:
    """A result to stdout. A reader that went away is not a failure; a full disk is one."""
    try:
        _write(sys.stdout, text)
    except OSError as error:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        why = error.strerror or str(error)
        hint = "the command's work is done; only its printed result is lost"
        raise TransientError(f"the result could not be written to stdout: {why}", hint=hint) from error


def emit_json(document: Document, scrub: Scrub, indent: int | None = 2) -> None:
    """A document as `--json` prints it; on one line without an indent."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(scrub_document(document, scrub), indent=indent, ensure_ascii=not utf8, default=str)
    emit(shown_json(text))


def emit_lines(lines: Sequence[str]) -> None:
    """A result for people to stdout."""
    painted = has_colour()
    emit("\n".join(shown(line, painted) for line in lines))


def to_stderr(text: str, *, fit: bool = True) -> None:
    """A text to stderr; a closed stderr is no reason to stop. Without `fit`, its lines stay as they are."""
    stream = sys.stderr
    try:
        _write(stream, "\n".join(wrap(text, width(stream) if fit and stream else None)))
    except (OSError, ValueError, AttributeError):
        return


def wrap(text: str, columns: int | None) -> list[str]:
    """The lines of a text, broken between words where the terminal is narrower; None: there is no terminal.

    A command stays on one line, which the terminal itself may wrap.
    """
    found: list[str] = []
    for line in text.split("\n"):
        if columns is None or cells(line) <= columns:
            found.append(line)
            continue
        blank = len(line) - len(line.lstrip(" "))
        # What follows is indented further than a hint, which has two spaces.
        whole = _COMMAND.sub(lambda match: match[0].replace(" ", _GLUE), line)
        broken = textwrap.wrap(
            whole, columns, subsequent_indent=" " * (blank + 2 if blank else 4),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        found += [piece.replace(_GLUE, " ") for piece in broken]
    return found


def scrub_document(value: Any, scrub: Scrub, free: bool = False) -> Any:
    """The document with secrets masked in its free text."""
    if isinstance(value, Mapping):
        return {key: scrub_document(inner, scrub, key in _FREE_TEXT) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_document(inner, scrub, free) for inner in value]
    return scrub(value) if free and isinstance(value, str) else value


def error_lines(error: Why, listed: bool = False) -> list[str]:
    """An error as people see it: what failed and for which table, then what to do; `listed`: its own lines stay."""
    said, *hint = error_said(error, listed)
    return [f"floodmark: {said}", *(f"  {line}" for line in hint)]


def error_said(error: Why, listed: bool = False) -> list[str]:
    """What failed, and what to do where something is known."""
    message = (error.message or "failed").strip()
    # A config's mistakes are a list; all else is one line, whatever a server or a document put into it.
    message = "\n".join(printable(line) for line in (message.split("\n") if listed else [message]))
    said = f"{error.table}: {message}" if error.table and not message.startswith(error.table) else message
    hint = printable(error.hint or "")
    return [said if listed else printable(said), *([hint] if hint else [])]


def printable(line: str) -> str:
    """The text on one line, without the control characters that would steer a terminal."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    text = indent + " ".join(line.split())
    if len(text) > _LONGEST:  # only a malicious document or server sends that much
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 4 :]}"
    return shown(text)


def together(errors: Sequence[Why]) -> list[Failure]:
    """The errors of several tables; equal ones become one that names all its tables."""
    from floodmark.model.results import Failure

    alike: dict[tuple[str, str, str | None], list[Why]] = {}
    for error in errors:
        alike.setdefault((error.kind, error.message, error.hint), []).append(error)
    return [
        Failure.of({**same[0].as_json(), "table": _named([error.table for error in same])})
        for same in alike.values()
    ]


def _named(tables: Sequence[str | None]) -> str | None:
    if len(tables) == 1:
        return tables[0]
    names = [str(table) for table in tables]
    if len(names) <= 3:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:2])} and {len(names) - 2} more tables"


def failure(error: FloodmarkError) -> Document:
    """The document of a command that failed as a whole."""
    return {"ok": False, "error": error.as_json()}
