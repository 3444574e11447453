"""The keys that row events hold: gathered alike by both versions, and never guessed."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.model.changes import DoesNotFit, KeyDescription, TableMap
from floodmark.model.errors import DataError
from floodmark.model.table import Column
from floodmark.source.binlog import events, keys
from floodmark.source.binlog.keys import Incomplete, KeyRows, RowCounts, _inet6, gathered

INT, VARCHAR = (3, 0), (15, 40)


def column(name: str, type_: str, **more: Any) -> Column:
    return Column(name, type_, type_.split("(")[0].split(" ")[0], nullable=False, **more)


ID = column("id", "int")
NAME = column("name", "varchar(10)", characters=10, octets=40, charset="utf8mb4", collation="utf8mb4_bin")


def shape(*columns: tuple[int, int], **more: Any) -> TableMap:
    types, metadata = bytes(c[0] for c in columns), tuple(c[1] for c in columns)
    return TableMap("d", "t", types, metadata, bytes((len(columns) + 7) // 8), **more)


def described(*columns: Column, key: tuple[str, ...]) -> KeyDescription:
    by_name = {c.name: c for c in columns}
    return KeyDescription("d.t", tuple((c.name, c.type) for c in columns), tuple(by_name[k] for k in key))


SHAPE = shape(INT, VARCHAR, INT)
DESCRIBED = described(ID, NAME, column("v", "int"), key=("id", "name"))


def body(kind: int, rows: bytes, *images: int, columns: int = 3) -> memoryview:
    """A row event of version 2; its images by their bitmaps."""
    return memoryview(bytes(6) + b"\1\0\2\0" + bytes([columns, *images]) + rows)


def image(*cells: int | bytes | None) -> bytes:
    bits = sum(1 << n for n, cell in enumerate(cells) if cell is None)
    made = [bits.to_bytes((len(cells) + 7) // 8, "little")] if cells else []
    for cell in cells:
        if isinstance(cell, int):
            made.append(struct.pack("<i", cell))
        elif cell is not None:
            made.append(bytes([len(cell)]) + cell)
    return b"".join(made)


@pytest.fixture(params=["compiled", "in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in Python":
        monkeypatch.setattr(keys, "compiled", None)
    return str(request.param)


def rows_of(found: KeyRows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.taken().to_pylist()]


def test_inserted_and_deleted_rows_give_their_keys(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    assert found.add(30, body(30, image(1, b"a", 5) + image(2, b"", None), 7)) == RowCounts(2, 0, 0)
    assert found.add(32, body(32, image(3, b"c", 5), 7)) == RowCounts(0, 0, 1)
    assert rows_of(found) == [(1, "a"), (2, ""), (3, "c")]
    assert rows_of(found) == [] and found.bytes == 0


def test_a_key_that_changed_is_two_keys(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    same = image(1, b"a", 5) + image(1, b"a", 6)
    other = image(2, b"b", 5) + image(2, b"B", 5)
    assert found.add(31, body(31, same + other, 7, 7)) == RowCounts(0, 2, 0)
    assert rows_of(found) == [(1, "a"), (2, "b"), (2, "B")]


def test_the_new_key_is_the_old_one_with_what_changed_over_it(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    found.add(31, body(31, image(1, b"a") + image(b"b"), 0b011, 0b010))
    found.add(31, body(31, image(2, b"c") + image(9), 0b011, 0b100))
    assert rows_of(found) == [(1, "a"), (1, "b"), (2, "c")]


def test_a_key_that_the_event_does_not_hold_is_said_and_what_it_holds_is_taken(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    with pytest.raises(Incomplete, match="column name") as stopped:
        found.add(31, body(31, image(1) + image(b"b"), 0b001, 0b010))
    assert stopped.value.counts == RowCounts(0, 1, 0)
    assert rows_of(found) == [(1, "b")]  # the old key can't be told, the new one can
    with pytest.raises(Incomplete, match="column name"):
        found.add(30, body(30, image(1), 0b001))
    with pytest.raises(Incomplete, match="column id"):
        found.add(30, body(30, b"", 0))  # rows of which nothing is written, not even their number
    assert rows_of(found) == []


def test_a_null_in_a_key_is_said(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    with pytest.raises(Incomplete, match="NULL"):
        found.add(30, body(30, image(1, None, 5) + image(2, b"b", 5), 7))
    assert rows_of(found) == [(2, "b")]


def test_a_value_that_no_file_could_hold_is_said_once(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    found.add(30, body(30, image(1, b"\xff", 5) + image(2, b"b", 5), 7))
    with pytest.raises(Incomplete, match="column name"):
        found.taken()
    assert rows_of(found) == [(2, "b")]


def test_a_garbled_event_is_refused_and_nothing_of_it_is_taken(way: str) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    good = image(1, b"a", 5)
    for rows in (good[:-1], good + b"\0", good[:5] + b"\xff" + good[6:]):
        with pytest.raises(DataError):
            found.add(30, body(30, good + rows, 7))
    with pytest.raises(DataError):
        found.add(30, body(30, good, 7, columns=4))
    with pytest.raises(DataError):
        found.add(31, body(31, b"\0", 0, 0))
    assert rows_of(found) == []


MISFITS = [
    (DESCRIBED, shape(INT, VARCHAR), "3 columns"),
    (DESCRIBED, shape(INT, VARCHAR, (8, 0)), "column v"),
    (DESCRIBED, shape(INT, (15, 30), INT), "name has 40 bytes"),
    (DESCRIBED, shape(INT, VARCHAR, INT, unsigned=(True, False, False)), "sign"),
    (DESCRIBED, shape(INT, VARCHAR, INT, names=("id", "other", "v")), "no column name"),
    (DESCRIBED, shape((8, 0), VARCHAR, INT, names=("id", "name", "v")), "column id"),
]


@pytest.mark.parametrize(("description", "map_", "why"), MISFITS)
def test_a_description_that_does_not_fit_is_refused(
    description: KeyDescription, map_: TableMap, why: str
) -> None:
    with pytest.raises(DoesNotFit, match=why):
        KeyRows(description, map_)


def test_with_names_the_key_is_found_wherever_it_is(way: str) -> None:
    moved = shape(VARCHAR, INT, INT, INT, names=("name", "new", "v", "id"))
    found = KeyRows(DESCRIBED, moved)
    found.add(30, body(30, image(b"a", 1, 2, 3), 15, columns=4))
    assert rows_of(found) == [(3, "a")]


@pytest.mark.parametrize("charset", ["swe7", "armscii8", "geostd8", "keybcs2", "dec8", "binary", "new"])
def test_text_that_only_the_server_can_convert_is_refused(charset: str) -> None:
    name = replace(NAME, charset=charset)
    with pytest.raises(DoesNotFit, match=charset):
        KeyRows(described(ID, name, column("v", "int"), key=("name",)), SHAPE)


@pytest.mark.parametrize(("charset", "value", "text"), [
    ("latin1", b"\x80\x81\xe9", "€\x81é"), ("sjis", b"\x81\x5f\\", "\\\\"), ("gbk", "深".encode("gbk"), "深"),
    ("ucs2", b"\x00a\xff\xff", "a\uffff"), ("utf16", "😀".encode("utf-16-be"), "😀"),
    ("ucs2", "😀".encode("utf-16-be"), None), ("big5", b"\xa2\xcc", None), ("big5", b"\xa4\x51", "十"), ("gb18030", b"\xa8\xbc", None),
    ("ascii", b"\x80", None),
])  # fmt: skip
def test_text_is_converted_exactly_or_not_at_all(charset: str, value: bytes, text: str | None) -> None:
    name = replace(NAME, charset=charset)
    found = KeyRows(described(ID, name, column("v", "int"), key=("name",)), SHAPE)
    found.add(30, body(30, image(1, value, 5), 7))
    if text is None:
        with pytest.raises(Incomplete, match=charset):
            found.taken()
    else:
        assert rows_of(found) == [(text,)]


@pytest.mark.parametrize(("words", "text"), [
    ("0 0 0 0 0 0 0 0", "::"), ("0 0 0 0 0 0 0 1", "::0.0.0.1"), ("1 0 2 3 4 5 6 7", "1::2:3:4:5:6:7"),
    ("0 0 0 0 0 ffff 102 304", "::ffff:1.2.3.4"), ("1 0 0 2 0 0 0 3", "1:0:0:2::3"), ("1 2 3 4 5 6 7 0", "1:2:3:4:5:6:7::"),
    ("a b c d e f 1 2", "a:b:c:d:e:f:1:2"), ("0 0 1 0 0 1 1 1", "::1:0:0:1:1:1"),
])  # fmt: skip
def test_addresses_are_written_as_mariadb_writes_them(words: str, text: str) -> None:
    value = struct.pack(">8H", *(int(word, 16) for word in words.split()))
    if words.endswith("0 1") and words.startswith("0 0 0 0 0 0"):
        text = "::1"
    assert _inet6(value) == text


# ---------------------------------------------------------------- both versions

# Prefixed, width: cells of every layout.
FORMS = [(0, 1), (0, 3), (0, 8), (0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]


def cell(rng: random.Random, form: tuple[int, int]) -> bytes:
    prefixed, width = form
    if not prefixed:
        return rng.randbytes(width)
    value = rng.randbytes(rng.choice([0, 1, 5, 40, 300] if width > 1 else [0, 1, 5, 40]))
    return len(value).to_bytes(width, "little") + value


def steps(forms: list[tuple[int, int]], present: list[int], key: list[int]) -> bytes:
    return b"".join(struct.pack("<iii", *forms[n], key.index(n) if n in key else -1) for n in present)


def both(rows: bytes, *given_: Any, key: list[tuple[int, int]]) -> None:
    """Gathers in both ways; they agree, or only Python decides."""

    def empty() -> list[tuple[bytearray, bytearray | None]]:
        return [(bytearray(b"before"), bytearray(8) if prefixed else None) for prefixed, _ in key]

    plan: tuple[Any, ...] = given_
    python: Any = gathered
    compiled_into, python_into = empty(), empty()
    compiled = keys.compiled.gather(rows, *plan, compiled_into)
    try:
        found = python(rows, *plan, python_into)
    except DataError:
        assert compiled is None and python_into == empty()
        found = None
    if compiled is None:
        assert compiled_into == empty()
    else:
        assert (found, python_into) == (compiled, compiled_into)


@given(st.integers(0, 1 << 32), st.booleans())
def test_both_versions_gather_the_same_keys_of_any_event(seed: int, garbled: bool) -> None:
    rng = random.Random(seed)
    forms = [rng.choice(FORMS) for _ in range(rng.randint(1, 20))]
    key = rng.sample(range(len(forms)), rng.randint(1, min(3, len(forms))))
    images = [sorted(rng.sample(range(len(forms)), rng.randint(0, len(forms)))) for _ in range(2)]
    which = rng.randrange(3)
    before, after = (
        (steps(forms, images[0], key) if which != 0 else None),
        (steps(forms, images[1], key) if which != 1 else None),
    )
    partial = rng.choice([-1, -1, 0, 1, 2])
    rows = bytearray()
    for _ in range(rng.randint(0, 5)):
        for number in (0, 1):
            if (before, after)[number] is None:
                continue
            if number and partial >= 0:
                options = rng.randrange(2)
                rows += bytes([options]) + rng.randbytes(options * partial)
            nulls = [rng.random() < 0.1 for _ in images[number]]
            bits = sum(1 << n for n, null in enumerate(nulls) if null)
            rows += bits.to_bytes((len(nulls) + 7) // 8, "little")
            for n, null in zip(images[number], nulls, strict=True):
                rows += b"" if null else cell(rng, forms[n])
    if garbled:
        for _ in range(rng.randint(1, 3)):
            match rng.randrange(3):
                case 0 if rows:
                    rows[rng.randrange(len(rows))] = rng.choice([0, 1, 250, 251, 252, 254, 255])
                case 1:
                    del rows[rng.randrange(len(rows) + 1) :]
                case _:
                    rows.insert(rng.randrange(len(rows) + 1), rng.randrange(256))
    old, new = (which != 0 and rng.random() < 0.8), (which != 1 and rng.random() < 0.8)
    both(bytes(rows), before, after, old, new, partial, key=[forms[n] for n in key])


@given(st.binary(max_size=200), st.integers(0, 1 << 32))
def test_both_versions_agree_on_any_bytes(rows: bytes, seed: int) -> None:
    rng = random.Random(seed)
    forms = [rng.choice(FORMS) for _ in range(rng.randint(1, 9))]
    plan = steps(forms, list(range(len(forms))), [0])
    both(rows, plan, plan, True, True, rng.choice([-1, 1]), key=forms[:1])


@given(st.binary(max_size=60), st.sampled_from(sorted(events.ROWS)))
def test_any_bytes_are_an_event_or_damaged(data: bytes, kind: int) -> None:
    found = KeyRows(DESCRIBED, SHAPE)
    for held in (data, b"\x01\0\0\0\0\0\0\0\2\0" + data, bytes(8) + b"\3\7" + data):
        try:
            found.add(kind, memoryview(held))
            found.taken()
        except (DataError, Incomplete):
            pass


TYPES = [
    ("tinyint", 1, 0), ("mediumint unsigned", 9, 0), ("bigint", 8, 0), ("bigint unsigned", 8, 0), ("float", 4, 4), ("double", 5, 8),
    ("decimal(30,10)", 246, 30 << 8 | 10), ("decimal(9,2)", 246, 9 << 8 | 2), ("decimal(65,30)", 246, 65 << 8 | 30),
    ("bit(9)", 16, 1 << 8 | 1), ("year", 13, 0), ("date", 10, 0), ("datetime(3)", 18, 3), ("datetime", 12, 0), ("timestamp(6)", 17, 6),
    ("timestamp", 7, 0), ("time(2)", 19, 2), ("time", 11, 0), ("binary(5)", 254, 254 << 8 | 5), ("enum('a','b')", 254, 247 << 8 | 1),
    ("set('a','b')", 254, 248 << 8 | 1), ("uuid", 254, 254 << 8 | 16), ("inet6", 254, 254 << 8 | 16), ("blob", 252, 2),
]  # fmt: skip


@given(st.sampled_from(TYPES), st.binary(max_size=40))
def test_any_bytes_of_any_type_are_a_value_or_refused(of: tuple[str, int, int], data: bytes) -> None:
    type_, kind, meta = of
    numbers = (
        [int(n) for n in type_[type_.find("(") + 1 : type_.find(")")].split(",")]
        if type_[-1] == ")" and "'" not in type_
        else []
    )
    one = column(
        "k",
        type_,
        precision=numbers[0] if numbers else None,
        scale=numbers[-1] if len(numbers) > 1 else None,
        characters=1,
    )
    found = KeyRows(described(one, key=("k",)), shape((kind, meta)))
    try:
        found.add(30, body(30, b"\0" + data, 1, columns=1))
    except DataError:
        return
    except Incomplete:  # a NULL
        pass
    try:
        taken = found.taken()
    except Incomplete:
        taken = found.taken()
    taken.validate(full=True)
    assert all(column is not None for column in taken.columns)
