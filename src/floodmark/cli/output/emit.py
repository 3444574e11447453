"""Results: documents as JSON for programs, as text for people; errors as one or two lines.

The text is made from the same results that `--json` prints, by pure functions, so the two can't disagree.
Only results go to stdout; its reader may go away at any time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.text import shown, shown_json

if TYPE_CHECKING:
    from floodmark.model.results import Failure

    Why = FloodmarkError | Failure

Document = Mapping[str, Any]
Scrub = Callable[[str], str]

# Where a document can hold free text from other systems; names and numbers are left as they are.
_FREE_TEXT = frozenset({"message", "hint", "detail", "last_error", "notes"})
_LONGEST = 1600  # characters of an error's line


def coloured(stream: Any) -> bool:
    """Whether colours are welcome there."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def width(stream: Any) -> int | None:
    """The columns of the terminal there; None where there is none. One that does not know its size says 0."""
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns or 80) if stream.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None


def emit(text: str) -> None:
    """A result to stdout. A reader that went away is not a failure; a full disk is one."""
    try:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        hint = "the command's work is done; only its printed result is lost"
        raise TransientError(f"the result could not be written to stdout: {why}", hint=hint) from error


def emit_json(document: Document, scrub: Scrub, indent: int | None = 2) -> None:
    """A document as `--json` prints it; on one line without an indent."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(scrubbed(document, scrub), indent=indent, ensure_ascii=not utf8, default=str)
    emit(shown_json(text))


def emit_lines(lines: Sequence[str]) -> None:
    """A result for people to stdout."""
    painted = coloured(sys.stdout)
    emit("\n".join(shown(line, painted) for line in lines))


def scrubbed(value: Any, scrub: Scrub, free: bool = False) -> Any:
    """The document with secrets masked in its free text."""
    if isinstance(value, Mapping):
        return {key: scrubbed(inner, scrub, key in _FREE_TEXT) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(inner, scrub, free) for inner in value]
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
    said = [(Failure.of(same[0].as_json()), same) for same in alike.values()]
    return [
        one.but(table=_named([str(error.table) for error in same])) if len(same) > 1 else one
        for one, same in said
    ]


def _named(tables: Sequence[str]) -> str:
    if len(tables) <= 3:
        return f"{', '.join(tables[:-1])} and {tables[-1]}"
    return f"{', '.join(tables[:2])} and {len(tables) - 2} more tables"


def failure(error: FloodmarkError) -> Document:
    """The document of a command that failed as a whole."""
    return {"ok": False, "error": error.as_json()}
