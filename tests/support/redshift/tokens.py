"""SQL as tokens: enough to recognise statements and to rewrite parts of them, not a parser.

Comments are dropped; tokens joined with spaces give SQL that PostgreSQL reads the same way. Identifiers fold as on
Redshift: ASCII letters to lower case even in quotes, and at most 127 bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.redshift.wire import SqlError

NAME_BYTES, SHORT_BYTES = 127, 63
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<string>[eEnN]?'(?:[^'\\]|\\.|'')*')
      |(?P<dollar>\$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$)
      |(?P<quoted>"(?:[^"]|"")*")
      |(?P<param>\$\d+)
      |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      |(?P<word>[^\W\d][\w$]*)
      |(?P<op>::|:=|->>|->|<=|>=|<>|!=|\|\||!~\*|!~|~\*|@>|<@|[^\s\w'"])""",
    re.S | re.X,
)


@dataclass(frozen=True)
class Token:
    """A piece of SQL; `up` is a word in upper case, and empty for everything else."""

    kind: str
    text: str
    up: str = ""

    @property
    def name(self) -> str:
        """An identifier without its quotes."""
        return self.text[1:-1].replace('""', '"') if self.kind == "quoted" else self.text.lower()

    @property
    def named(self) -> bool:
        return self.kind in ("word", "quoted")

    @property
    def value(self) -> str:
        """The value of a string literal."""
        body = self.text[self.text.index("'") + 1 : -1]
        return re.sub(
            r"''|\\(.)", lambda m: "'" if m[0] == "''" else _ESCAPES.get(m[1], m[1]), body, flags=re.S
        )


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def word_set(text: str) -> frozenset[str]:
    """A set of words, written without quotes and commas."""
    return frozenset(text.split())


def word(name: str) -> Token:
    return Token("word", name, name.upper())


def raw(sql: str) -> Token:
    """Ready-made SQL that is not processed further."""
    return Token("raw", sql)


def lex(sql: str) -> list[Token]:
    """The tokens of some SQL, without one final semicolon."""
    found: list[Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise SqlError("42601", f'unterminated quoted string at or near "{sql[at : at + 40]}"')
        at = match.end()
        kind = match.lastgroup or ""
        if kind == "tag":
            kind = "dollar"
        if kind != "space":
            found.append(Token(kind, match[0], match[0].upper() if kind == "word" else ""))
    if found and found[-1].text == ";":
        found.pop()
    return found


def split(tokens: Sequence[Token], mark: str) -> list[list[Token]]:
    """The parts between separators (`,`, `;`) that are outside of all parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in ("(", "[")) - (token.text in (")", "]")) if token.kind == "op" else 0
        if token.kind == "op" and token.text == mark and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def closing(tokens: Sequence[Token], opening: int) -> int:
    """The position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(tokens)):
        if tokens[at].kind == "op":
            depth += (tokens[at].text == "(") - (tokens[at].text == ")")
            if depth == 0:
                return at
    raise SqlError("42601", "syntax error at end of input")


def sql_of(tokens: Sequence[Token]) -> str:
    return " ".join(token.text for token in tokens)


def says(tokens: Sequence[Token], at: int, *words: str) -> bool:
    """Whether these words are at a position."""
    return len(tokens) >= at + len(words) and all(tokens[at + i].up == w for i, w in enumerate(words))


def find(tokens: Sequence[Token], *words: str) -> Iterator[int]:
    """The positions of these words."""
    for at in range(len(tokens) - len(words) + 1):
        if says(tokens, at, *words):
            yield at


def has(tokens: Sequence[Token], *words: str) -> bool:
    """Whether these words occur anywhere."""
    return next(find(tokens, *words), None) is not None


def syntax_error(token: Token | None) -> SqlError:
    """The parser's error for an unexpected token."""
    if token is None:
        return SqlError("42601", "syntax error at end of input")
    return SqlError("42601", f'syntax error at or near "{token.text}"')


def cut(name: str, size: int = NAME_BYTES) -> str:
    """A name truncated to `size` bytes, whole characters only."""
    return name.encode()[:size].decode(errors="ignore")


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def short(name: str) -> str:
    """A name as PostgreSQL can hold it: beyond 63 bytes, the end is replaced by a digest."""
    if len(name.encode()) <= SHORT_BYTES:
        return name
    return f"{cut(name, SHORT_BYTES - 17)}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def fold(token: Token, case_sensitive: bool) -> tuple[Token, str | None]:
    """An identifier as Redshift understands it, and the long name it stands for if it had to be shortened."""
    if token.kind == "word" and len(token.text.encode()) <= SHORT_BYTES:
        return token, None
    name = cut(token.name)
    if not case_sensitive:
        name = "".join(c.lower() if c.isascii() else c for c in name)
    shorter = short(name)
    return Token("quoted", quote(shorter)), name if shorter != name else None
