"""Lines for people on stderr: whole words on a terminal however narrow it is, and no failure if nobody reads them."""

from __future__ import annotations

import re
import sys
import textwrap

from floodmark.cli.output.emit import width
from floodmark.model.text import cells

# A command to paste: broken by a newline, the shell would run its first half.
_COMMAND = re.compile(r"\bfloodmark (?:[^\s,;)]+ )*[^\s,;)]+")
_GLUE = "\xa0"  # textwrap doesn't break there


def to_stderr(text: str, *, fit: bool = True) -> None:
    """A text to stderr; a closed stderr is no reason to stop. Without `fit`, its lines stay as they are."""
    stream = sys.stderr
    try:
        encoding = stream.encoding or "utf-8"
        lines = "\n".join(fitted(text, width(stream) if fit else None))
        stream.write(lines.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return


def fitted(text: str, columns: int | None) -> list[str]:
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
