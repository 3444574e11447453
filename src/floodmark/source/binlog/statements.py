"""What a statement in the binary log means for the tables that are followed: which it concerns, and how. Pure.

A statement is read into tokens as MySQL does it, but under every sql_mode that it may have been written under, and
names compare without case: what is in doubt concerns a table. A statement that is not understood, or whose triggers,
functions, views and foreign keys may reach any table, concerns them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from floodmark.source.binlog.events import xid_text

Effect = Literal[
    "truncate",  # no row is left
    "ddl",  # the layout may have changed, the rows are the same
    "replaced",  # rows may have come or gone that no row event shows: DROP, RENAME, partitions
    "statement",  # rows may have changed, and it isn't known which
]
# The later one includes what the earlier one says; after a TRUNCATE a DDL may follow, not in one statement.
_WEIGHT: tuple[Effect, ...] = ("ddl", "truncate", "replaced", "statement")

Step = Literal["begin", "commit", "rollback", "xa start", "xa commit", "xa rollback"]


class Boundary(NamedTuple):
    """A statement that begins or ends a transaction."""

    step: Step
    xid: str | None = None  # of an XA transaction, as the server itself writes it: X'61',X'',1


# Statements that change neither rows nor the layout of a table, by their first word.
_HARMLESS = frozenset((
    "ANALYZE", "BINLOG", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "COMMIT", "DEALLOCATE", "FLUSH", "GRANT",
    "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "RELEASE", "RESET", "RESTART", "REVOKE", "ROLLBACK",
    "SAVEPOINT", "SET", "SHOW", "SHUTDOWN", "START", "STOP", "UNINSTALL", "UNLOCK", "USE", "XA",
))  # fmt: skip
# What CREATE, ALTER, DROP and RENAME may be about, as far as that is no table. Bodies name tables, but change no rows.
_OTHER_OBJECTS = frozenset((
    "EVENT", "FUNCTION", "INSTANCE", "LIBRARY", "LOGFILE", "PACKAGE", "PROCEDURE", "REFERENCE", "RESOURCE", "ROLE",
    "SERVER", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW",
))  # fmt: skip
_TABLES = frozenset(("TABLE", "TABLES", "SEQUENCE", "INDEX"))
_SCHEMAS = frozenset(("DATABASE", "SCHEMA"))
_DEFINES = frozenset(("ALTER", "CREATE", "DROP", "RENAME"))
# These words of an ALTER TABLE make rows come or go.
_ALTER_REPLACES = re.compile(
    r"\b(?:TRUNCATE|EXCHANGE|DISCARD|IMPORT|IGNORE|DROP PARTITION|CONVERT (?:PARTITION|TABLE)"
    r"|RENAME(?! (?:COLUMN|INDEX|KEY)\b))\b"
)
# Words that may be shown of a statement: everything else could be a name or a value.
_SHOWN = frozenset((
    "ALTER", "ANALYZE", "CALL", "CREATE", "DATA", "DATABASE", "DATABASES", "DELETE", "DO", "DROP", "EVENT",
    "EXCHANGE", "FROM", "FULLTEXT", "FUNCTION", "IF", "EXISTS", "IMPORT", "INDEX", "INSERT", "INTO", "LOAD",
    "ONLINE", "OPTIMIZE", "OR", "PARTITION", "PROCEDURE", "RENAME", "REPAIR", "REPLACE", "SCHEMA", "SELECT",
    "SEQUENCE", "SPATIAL", "TABLE", "TABLES", "TEMPORARY", "TRIGGER", "TRUNCATE", "UNIQUE", "UPDATE", "VIEW", "XML",
))  # fmt: skip
_MOST_WORDS = 4


# ---------------------------------------------------------------- tokens


class SqlToken(NamedTuple):
    """A word or a quoted name, or one other character. Text in single quotes is none."""

    text: str
    quoted: bool = False

    @property
    def named(self) -> bool:
        """Whether it can be a name."""
        return self.quoted or bool(_WORD.match(self.text))


_WORD = re.compile(r"[0-9A-Za-z_$\x80-\U0010ffff]+")
_TOKENS = r"""
    (?P<space>\s+|--(?=[\s\x00-\x1f]|$)[^\n]*|\#[^\n]*|/\*(?!M?!)(?:.*?\*/|.*))
  | (?P<open>/\*M?![0-9]*|\*/)
  | (?P<word>[0-9A-Za-z_$\x80-\U0010ffff]+)
  | `(?P<name>(?:[^`]|``)*)`
  | '(?:[^'SINGLE]|''ESCAPED)*(?:'|$)
  | "(?P<double>(?:[^"DOUBLE]|""ESCAPED2)*)(?:"|$)
  | (?P<sign>.)
"""


def _pattern(single: bool, double: bool) -> re.Pattern[str]:
    """The tokens, where a backslash in text of these quotes escapes the next character."""
    text = _TOKENS.replace("ESCAPED2", r"|\\." if double else "").replace("DOUBLE", r"\\" if double else "")
    text = text.replace("ESCAPED", r"|\\." if single else "").replace("SINGLE", r"\\" if single else "")
    return re.compile(text, re.DOTALL | re.VERBOSE)


# With default sql_mode; with NO_BACKSLASH_ESCAPES; with ANSI_QUOTES, where names have no escapes.
_PATTERNS = _pattern(True, True), _pattern(False, False), _pattern(True, False)


def _tokens(text: str, pattern: re.Pattern[str]) -> Iterator[SqlToken]:
    for found in pattern.finditer(text):
        kind = found.lastgroup
        if kind == "name":
            yield SqlToken(found["name"].replace("``", "`"), quoted=True)
        elif kind == "double":  # a name with ANSI_QUOTES, else text
            yield SqlToken(found["double"].replace('""', '"'), quoted=True)
        elif kind in ("word", "sign"):
            yield SqlToken(found[0])


def _fold(name: str) -> str:
    """For comparing names as any lower_case_table_names does, or coarser."""
    return name.casefold().replace("i̇", "i")  # MySQL's lower case of İ is i


# ---------------------------------------------------------------- the tables that are followed


class NamedTables:
    """Names of tables, `schema.table`, found by the tokens that a statement names them with."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._by_table: dict[str, dict[str, list[str]]] = {}
        self._by_schema: dict[str, list[str]] = {}
        self._odd = [name for name in self.names if not name.isascii()]
        for name in self.names:
            schema, _, table = name.partition(".")
            self._by_table.setdefault(_fold(table), {}).setdefault(_fold(schema), []).append(name)
            self._by_schema.setdefault(_fold(schema), []).append(name)

    def of_schema(self, schema: str) -> Sequence[str]:
        """The tables of a schema."""
        return self._by_schema.get(_fold(schema), ())

    def named(self, schema: str, table: str) -> Sequence[str]:
        """The tables that are called this: one, unless names differ only in case."""
        return self._by_table.get(_fold(table), {}).get(_fold(schema), ())

    def among(self, tokens: Sequence[SqlToken], schema: str) -> Iterator[str]:
        """The tables that tokens name; those without a qualifier are in `schema`."""
        for number, token in enumerate(tokens):
            if token.named and _fold(token.text) in self._by_table:
                before = tokens[number - 1].text if number and not tokens[number - 1].quoted else ""
                if before == "." and number > 1 and tokens[number - 2].named:
                    yield from self.named(tokens[number - 2].text, token.text)
                elif before != "@" or token.quoted:
                    yield from self.named(schema, token.text)

    def anywhere(self, text: str, known: bool) -> Iterator[str]:
        """The tables whose names occur as words, whatever surrounds them; without a known character set, odd names too."""
        if not known:
            yield from self._odd
        for word in {
            *_WORD.findall(text),
            *re.findall(r"[0-9A-Za-z_$]+", text),
            *re.findall(r"`([^`]*)`", text),
        }:
            for names in self._by_table.get(_fold(word), {}).values():
                yield from names


# ---------------------------------------------------------------- what a statement means


@dataclass(frozen=True)
class Meaning:
    """What a statement means for the tables that are followed."""

    words: str  # its first words, without names and values
    effects: dict[str, Effect]
    anything: bool = False  # rows of any table may have changed


_CONDITIONAL = re.compile(r"/\*M?![0-9]*")
_SIMPLE: dict[bytes, Step] = {b"BEGIN": "begin", b"COMMIT": "commit", b"ROLLBACK": "rollback"}
_XA = re.compile(rb"\s*XA\s+(START|BEGIN|COMMIT|ROLLBACK)\s+(.*)", re.IGNORECASE | re.DOTALL)
_XID = re.compile(
    rb"(?:X'([0-9A-F]*)'|0x([0-9A-F]+)|'([^'\\]*)')"
    rb"(?:\s*,\s*(?:X'([0-9A-F]*)'|0x([0-9A-F]+)|'([^'\\]*)')(?:\s*,\s*(\d+|0x[0-9A-F]+))?)?\s*(?:$|ONE\s+PHASE)",
    re.IGNORECASE,
)


def boundary(text: bytes) -> Boundary | None:
    """The step of a transaction that a statement is; None for any other."""
    plain = text.strip()
    if (step := _SIMPLE.get(plain) or _SIMPLE.get(plain.upper())) is not None:
        return Boundary(step)
    if (found := _XA.fullmatch(text)) is not None:
        word = found[1].upper()
        return Boundary(
            "xa commit" if word == b"COMMIT" else "xa rollback" if word == b"ROLLBACK" else "xa start",
            _xid(found[2]),
        )
    return None


def _xid(text: bytes) -> str | None:
    """The transaction's name, which servers write as X'…',X'…',1; None if it is written otherwise."""
    found = _XID.fullmatch(text.strip())
    if found is None:
        return None

    def part(number: int) -> bytes:
        digits = found[number] or found[number + 1]
        return bytes.fromhex(digits.decode()) if digits else found[number + 2] or b""

    try:
        return xid_text(int(found[7] or b"1", 0), part(1), part(4))
    except ValueError:
        return None


def meaning(text: bytes, schema: str, followed: NamedTables) -> Meaning:
    """What a statement means for the tables that are followed; `schema` is the one for names without any."""
    if boundary(text) is not None:
        return Meaning("", {})
    try:
        said, known = text.decode(), True
    except UnicodeDecodeError:
        said, known = text.decode("latin-1"), False
    # What `/*! … */` holds is run by some servers only.
    conditional = _CONDITIONAL.search(said) is not None
    readings = (said, _CONDITIONAL.sub("/* ", said)) if conditional else (said,)
    patterns = _PATTERNS if "\\" in said else _PATTERNS[:1]
    effects: dict[str, Effect] = {}
    words = ""
    anything = False
    for reading, pattern in product(readings, patterns):
        tokens = list(_tokens(reading, pattern))
        words = words or _words(tokens)
        for name, effect in _effects(tokens, schema, followed, said, known, conditional):
            anything = anything or name is None
            if name is not None and _WEIGHT.index(effect) >= _WEIGHT.index(effects.get(name, effect)):
                effects[name] = effect
    return Meaning(words, effects, anything)


def _words(tokens: Sequence[SqlToken]) -> str:
    """The first words of a statement: those that are not names or values."""
    found: list[str] = []
    for token in tokens:
        word = token.text.upper()
        if token.quoted or not (word in _SHOWN or (not found and word.isalpha() and word.isascii())):
            break
        if word not in ("IF", "EXISTS", "OR"):
            found.append(word[:20])
    return " ".join(found[:_MOST_WORDS])


def _effects(
    tokens: Sequence[SqlToken], schema: str, followed: NamedTables, text: str, known: bool, conditional: bool
) -> Iterator[tuple[str | None, Effect]]:
    """The tables that a statement concerns in one reading of its text, some twice; None: any table."""
    while tokens and tokens[0].text in ("(", ";"):
        tokens = tokens[1:]
    if not tokens:
        return
    words = [token.text.upper() if not token.quoted and token.named else "" for token in tokens]
    if words[:2] == ["SET", "STATEMENT"] and "FOR" in words:
        # MariaDB: settings for one statement, which follows.
        rest = tokens[words.index("FOR") + 1 :]
        yield from _effects(rest, schema, followed, text, known, conditional)
        return
    effect = _effect(words)
    if effect is None and conditional:
        effect = "statement"  # another server may read other first words
    if effect is None:
        return
    if effect == "any":
        yield None, "statement"
    elif effect == "database":
        yield from ((name, "replaced") for name in _of_schemas(tokens, words, schema, followed, known))
    elif conditional or not known:
        yield from ((name, effect) for name in followed.anywhere(text, known))
    else:
        # Tables that a new one is LIKE, or that it references, stay as they are.
        created = words[0] == "CREATE" and "TABLE" in words
        among = _created(tokens, words) if created else tokens
        yield from ((name, effect) for name in followed.among(among, schema))


def _effect(words: Sequence[str]) -> Effect | Literal["any", "database"] | None:
    """How a statement concerns the tables that it names, by its words; None: not at all, `any`: it may reach every table."""
    first = words[0]
    if first in _HARMLESS or words in (["BEGIN"], ["BEGIN", "WORK"]):
        return None
    if first == "TRUNCATE":
        return "truncate"
    if first == "REPAIR":
        return "replaced"  # it may drop damaged rows
    if first not in _DEFINES:
        return "any"
    about = next((word for word in words[1:] if word in _OTHER_OBJECTS | _TABLES | _SCHEMAS), None)
    if about is None:
        return "any"
    if about in _OTHER_OBJECTS:
        return None
    if about in _SCHEMAS:
        return None if first == "CREATE" else "database"
    if about == "INDEX":
        return "ddl"
    if first == "CREATE":
        if "SELECT" in words:
            return "any"  # with a function that changes tables
        if "TEMPORARY" in words[: words.index(about)]:
            return None
        return "replaced" if "REPLACE" in words[: words.index(about)] else "ddl"
    if first == "DROP":
        return None if "TEMPORARY" in words[: words.index(about)] else "replaced"
    if first == "RENAME" or _ALTER_REPLACES.search(" ".join(filter(None, words[1:]))):
        return "replaced"
    return "ddl"


def _created(tokens: Sequence[SqlToken], words: Sequence[str]) -> Sequence[SqlToken]:
    """The tokens that name the table in a CREATE TABLE."""
    rest = list(tokens[words.index("TABLE") + 1 :])
    if [token.text.upper() for token in rest[:3]] == ["IF", "NOT", "EXISTS"]:
        rest = rest[3:]
    end = 1
    while end + 1 < len(rest) and rest[end].text == "." and not rest[end].quoted:
        end += 2
    if rest and rest[0].text == "." and not rest[0].quoted:
        end = 2
    return rest[:end]


def _of_schemas(
    tokens: Sequence[SqlToken], words: Sequence[str], schema: str, followed: NamedTables, known: bool
) -> Iterator[str]:
    """The tables of the schemas that a DROP or ALTER DATABASE may be about."""
    if not known:
        yield from followed.names
    for token in tokens:
        if token.named:
            yield from followed.of_schema(token.text)
    if words[0] == "ALTER":  # without a name it is the default one
        yield from followed.of_schema(schema)
