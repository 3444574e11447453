"""Every type in one file, loaded by our own code and printed by our own canonical expressions, value by value.

The expected texts come from this module, by hand or from Python, and share no code with what prints them in Redshift.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from floodmark.model.canonical import DIGITS, MOST_PIECES, PIECE, Form, Scope, Span, forms, groups
from floodmark.model.table import Column, Table
from floodmark.services.warehouse.canonical import digests
from floodmark.services.warehouse.row_text import TargetSql
from floodmark.setup.doctor.live.loads import ID, NAME, Log, live_table
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Unknown

_YEAR_0 = -719_528  # days from 1970 to 0000-01-01
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Case:
    """A column, the values that go into the file, and how each one prints."""

    column: Column
    cells: tuple[tuple[Any, str], ...]
    group: str = "types"

    @property
    def name(self) -> str:
        return self.column.name


def _column(name: str, type_: str, **more: Any) -> Column:
    return Column(name, type_, type_.partition("(")[0].partition(" ")[0], **more)


def _text(name: str, characters: int, type_: str = "varchar", **more: Any) -> Column:
    return replace(
        NAME, name=name, type=f"{type_}({characters})", data_type=type_, characters=characters,
        octets=characters * 4, **more,
    )  # fmt: skip


def _days(*when: int) -> int:
    return (date(*when) - date(1970, 1, 1)).days


def _micros(*when: int) -> int:
    return int((datetime(*when, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000  # type: ignore[misc, arg-type]


def _numbers(*values: int) -> tuple[tuple[Any, str], ...]:
    return tuple((value, str(value)) for value in values)


def _decimals(*values: str) -> tuple[tuple[Any, str], ...]:
    return tuple((Decimal(value), value) for value in values)


def _floats(*values: float) -> tuple[tuple[Any, str], ...]:
    return tuple((value, struct.pack("<d", value).hex().upper()) for value in values)


def _texts(*values: str) -> tuple[tuple[Any, str], ...]:
    return tuple((value, value) for value in values)


def _bytes(*values: bytes) -> tuple[tuple[Any, str], ...]:
    return tuple((value, value.hex().upper()) for value in values)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _pieces(value: bytes) -> tuple[Any, str]:
    cuts = (value[i * PIECE : (i + 1) * PIECE] for i in range(MOST_PIECES))
    return value, str(len(value)) + "".join(_hashed(cut.hex().upper()) for cut in cuts)


_LONG = "äbc✓" * 9_000

TYPES = (
    Case(_column("tiny", "tinyint(4)"), _numbers(-128, 127)),
    Case(_column("small", "smallint(6)"), _numbers(-32_768, 32_767)),
    Case(_column("small_u", "smallint(5) unsigned"), _numbers(0, 65_535)),
    Case(_column("whole", "int(11)"), _numbers(-(2**31), 2**31 - 1)),
    Case(_column("whole_u", "int(10) unsigned"), _numbers(0, 2**32 - 1)),
    Case(_column("big", "bigint(20)"), _numbers(-(2**63), 2**63 - 1)),
    Case(_column("big_u", "bigint(20) unsigned"), _decimals("0", str(2**64 - 1))),
    Case(
        _column("price", "decimal(18,4)", precision=18, scale=4), _decimals("-99999999999999.9999", "0.0001")
    ),
    Case(
        _column("exact", "decimal(38,10)", precision=38, scale=10),
        _decimals("9" * 28 + "." + "9" * 10, "-0.0000000001"),
    ),
    Case(_column("single", "float"), _floats(1.5, -3.4028234663852886e38)),
    Case(_column("double", "double"), _floats(0.1, 1.7976931348623157e308)),
    Case(_column("flag", "bit(1)", precision=1), ((True, "1"), (False, "0"))),
    Case(_column("bits", "bit(64)", precision=64), _decimals(str(2**64 - 1), "0")),
    Case(_column("day", "date"), ((_days(1000, 1, 1), "1000-01-01"), (_days(9999, 12, 31), "9999-12-31"))),
    Case(
        _column("moment", "datetime(6)", fraction=6),
        (
            (_micros(1582, 10, 4) + 1, "1582-10-04 00:00:00.000001"),
            (_micros(9999, 12, 31, 23, 59, 59) + 999_999, "9999-12-31 23:59:59.999999"),
        ),
    ),
    Case(
        _column("instant", "timestamp(6)", fraction=6),
        (
            (_micros(2025, 3, 30, 1, 30), "2025-03-30 01:30:00.000000"),
            (_micros(2038, 1, 19), "2038-01-19 00:00:00.000000"),
        ),
    ),
    Case(_column("clock", "time(6)", fraction=6), _texts("-838:59:59.000000", "00:00:00.000001")),
    Case(_column("year", "year(4)"), _numbers(0, 2155)),
    Case(
        _text("words", 30),
        _texts(
            "",
            'it\'s \\ "ä" 😀\t%\n',
        ),
    ),
    Case(_text("kind", 5, "enum"), _texts("a", "")),
    Case(
        _column("long_text", "text", octets=65_535, charset="utf8mb4", collation="utf8mb4_bin"),
        ((_LONG, _hashed(_LONG)), ("", _hashed(""))),
    ),
    Case(_column("some_bytes", "varbinary(16)", octets=16), _bytes(b"", bytes([0, 39, 92, 128, 255]))),
)

# Each in its own table: a value that the database can't hold must not hide the others.
EDGES = (
    Case(_column("minus_zero", "double"), _floats(-0.0, 0.0), "digests"),
    Case(_column("subnormal", "double"), _floats(5e-324, -2.2250738585072009e-308), "digests"),
    Case(_column("year_0", "date"), ((_YEAR_0, "0000-01-01"), (_days(1, 1, 1), "0001-01-01")), "digests"),
    Case(
        _column("moment_0", "datetime(6)", fraction=6),
        ((_YEAR_0 * _DAY, "0000-01-01 00:00:00.000000"), (_micros(1, 1, 1), "0001-01-01 00:00:00.000000")),
        "digests",
    ),
    Case(_text("blanks", 10), _texts("a", "a  "), "digests"),
    Case(
        _column("megabytes", "mediumblob", octets=2**24 - 1),
        (_pieces(bytes(range(256)) * 65_535), _pieces(b"")),
        "digests",
    ),
)


@dataclass(frozen=True)
class _Read:
    """A table as Redshift printed it: the texts by column, and the result of the digest query."""

    printed: dict[str, list[str]]
    hashes: list[str]
    digest: tuple[int, int]
    expected: dict[str, list[str]]
    scope: Scope


def _table(target: str, cases: Sequence[Case]) -> Table:
    return live_table(target, (ID, *(case.column for case in cases)), ("id",), cursor=None)


def _read(live: Live, target: str, cases: Sequence[Case]) -> _Read:
    """Load the values and a row of NULLs in one file, then run the queries that `verify` runs."""
    table = _table(target, cases)
    count = max(len(case.cells) for case in cases) + 1
    columns: dict[str, list[Any]] = {"id": list(range(1, count + 1))}
    expected: dict[str, list[str]] = {}
    scope = Scope(table, forms(table, redshift=True))
    for case in cases:
        cells = [*case.cells, *[(None, None)] * (count - len(case.cells))]
        columns[case.name] = [value for value, _ in cells]
        form = next(form for form in scope.forms if form.field.name == case.name)
        expected[case.name] = [_element(form, printed) for _, printed in cells]
    expected["id"] = [str(n) for n in columns["id"]]
    log = Log(live, table)
    log.load(log.commit(columns))
    warehouse = live.warehouse()

    def question(place: TargetSql) -> tuple[str]:
        """The columns as `verify` prints them; it only compares hashes, which would not show what differs."""
        shown = [place.hashed(scope.forms), *(place.printed(form) for form in scope.keys)]
        shown += [place.element(form) for form in scope.forms]
        return (f"SELECT {', '.join(shown)} FROM {place.table}",)

    found = sorted(warehouse.ask(target, question) or [], key=lambda row: int(row[1]))
    shown = {form.field.name: [str(row[2 + i]) for row in found] for i, form in enumerate(scope.forms)}
    [(_, number, total)] = warehouse.ask(target, lambda place: digests(place, scope, [Span()])) or [(0, 0, 0)]
    return _Read(shown, [str(row[0]) for row in found], (int(number), int(total)), expected, scope)


def _element(form: Form, printed: str | None) -> str:
    if printed is None:
        return "N"
    return f"{len(printed.encode())}:{printed}" if form.print == "text" else printed


def _compared(read: _Read, name: str) -> Answer:
    found, want = read.printed.get(name, []), read.expected[name]
    wrong = [f"{_cut(f)} instead of {_cut(w)}" for f, w in zip(found, want, strict=False) if f != w]
    if len(found) != len(want):
        wrong.append(f"{len(found)} rows instead of {len(want)}")
    return Answer(not wrong, "; ".join(wrong) or f"{len(want)} values, as they were written")


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _row_hashes(read: _Read) -> list[str]:
    """The hashes of the rows, from the expected texts."""
    made = []
    for n in range(len(read.expected["id"])):
        parts = [
            _hashed(",".join(read.expected[form.field.name][n] for form in group))
            for group in groups(read.scope.forms)
        ]
        made.append(parts[0] if len(parts) == 1 else _hashed("".join(parts)))
    return made


def _digest(read: _Read) -> Answer:
    want = _row_hashes(read)
    total = sum(int(h[:15], 16) for h in want)
    right = read.hashes == want and read.digest == (len(want), total)
    return Answer(right, f"{read.digest[0]} rows, sum {read.digest[1]}; Python: {len(want)}, {total}")


def _of_types(name: str) -> Callable[[Live], Answer]:
    def ask(live: Live) -> Answer:
        read = live.once("every type in one file", lambda: _read(live, "every_type", TYPES))
        return _digest(read) if name == "id" else _compared(read, name)

    return ask


def _edge(case: Case, live: Live) -> Answer:
    read = _read(live, case.name, (case,))
    answer, digest = _compared(read, case.name), _digest(read)
    if answer.as_assumed and not digest.as_assumed:
        return digest
    return answer


def _json(live: Live) -> Answer:
    """JSON becomes SUPER and must keep its meaning."""
    document = '{"a": [1, 2.5, null, true], "b": {"ä": "x\\ny"}}'
    table = _table("documents", (Case(_column("doc", "json"), ()),))
    log = Log(live, table)
    log.load(log.commit({"id": [1, 2], "doc": [document, None]}))
    with live.session(live.first) as session:
        found = session.query(f"SELECT JSON_SERIALIZE(doc) FROM {live.path('documents')} ORDER BY id")
    import json

    try:
        same = json.loads(str(found[0][0])) == json.loads(document)
    except ValueError as error:
        raise Unknown(f"no JSON came back: {error}") from error
    return Answer(same and found[1][0] is None, str(found[0][0]))


def _long_document(live: Live) -> Answer:
    """A document that is too long for a VARCHAR."""
    if not live.large_strings:
        raise Unknown("enable_large_strings_opt_in is off")
    document = f'{{"text":"{"ü" * 35_000}"}}'
    log = Log(live, _table("long_documents", (Case(_column("doc", "json"), ()),)), large_strings=True)
    log.load(log.commit({"id": [1], "doc": [document]}))
    with live.session(live.first) as session:
        size = int(session.query(f"SELECT JSON_SIZE(doc) FROM {live.path('long_documents')}")[0][0])
    return Answer(size == len(document.encode()), f"{size:,} bytes of {len(document.encode()):,}")


def _probe(case: Case) -> Probe:
    question = f"Does {case.column.type} arrive exactly?"
    return Probe(case.group, case.name, question, f"{len(case.cells) + 1} values, as they were written", _of_types(case.name))  # fmt: skip


def _edge_probe(case: Case) -> Probe:
    question = (
        f"Does Redshift print and hash {case.name.replace('_', ' ')} ({case.column.type}) as Python does?"
    )
    assumed = f"{len(case.cells) + 1} values, as they were written"
    return Probe(case.group, case.name.replace("_", " "), question, assumed, partial(_edge, case))


PROBES = (
    *(_probe(case) for case in TYPES),
    Probe(
        "types",
        "digest",
        "Is the digest of all these rows the one that Python computes?",
        "the same count and sum",
        _of_types("id"),
    ),
    Probe(
        "types",
        "JSON",
        "Does a JSON document keep its meaning as SUPER?",
        "the same document",
        _json,
    ),
    Probe(
        "types",
        "long JSON",
        "Does a JSON document of 70 kB arrive whole if large strings are on?",
        "70,011 bytes of 70,011",
        _long_document,
    ),
    *(_edge_probe(case) for case in EDGES),
)
