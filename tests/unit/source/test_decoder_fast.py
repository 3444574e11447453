"""The compiled row reader: it returns what the Python functions return, or None."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.source.read import _whole
from floodmark.source.rows import decoder
from floodmark.source.rows.decoder import SLACK, Digits, Kind, Moment, Number, _compiled, binary_columns
from floodmark.source.rows.packets import MySQLError
from tests.support.mysql_packets import cell, moment, packets, row

KINDS: list[Kind] = [
    Number("<i8"),
    Number("<u4"),
    Number("<i2"),
    Number("<i1"),
    Number("<f8"),
    Moment(6),
    Moment(0, date=True),
    Digits(pa.decimal128(18, 4)),
    Digits(pa.decimal128(38, 0)),
    pa.binary(),
    pa.large_binary(),
]


def good_row(rng: random.Random) -> bytes:
    """A row of KINDS as servers send it, a third of its cells NULL."""
    time = f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02} 10:{rng.randint(0, 59):02}:07.{rng.randint(0, 999_999):06}"
    if rng.random() < 0.9:
        time = time[:8] + "28" + time[10:]
    cells = [
        struct.pack("<q", rng.randint(-(2**63), 2**63 - 1)),
        struct.pack("<I", rng.randint(0, 2**32 - 1)),
        struct.pack("<h", rng.randint(-(2**15), 2**15 - 1)),
        struct.pack("<b", rng.randint(-128, 127)),
        struct.pack("<d", rng.random()),
        moment(time if rng.random() < 0.5 else time[:19]),
        moment(time[:10]),
        cell(b"%.4f" % (rng.randint(-(10**12), 10**12) / 10**4)),
        cell(b"%d" % rng.randint(-(10**38) + 1, 10**38 - 1)),
        cell(rng.randbytes(rng.choice([0, 1, 7, 250, 251, 300]))),
        cell(rng.randbytes(rng.randint(0, 20))),
    ]
    return row(*(None if rng.random() < 0.3 else c for c in cells))


def read(rows: list[bytes], kinds: list[Kind], compiled: bool, monkeypatch: Any) -> list[list[Any]] | None:
    """The values, None if Python finds it malformed, and what the compiled half leaves alone."""
    data: Any = np.frombuffer(packets(rows) + bytes(SLACK), np.uint8)
    heads = np.cumsum([0, *(4 + len(r) for r in rows)])
    with monkeypatch.context() as patch:
        if compiled:
            patch.setattr("floodmark.source.rows.decoder._there", lambda *_: pytest.fail("read in Python"))
            if decoder.compiled.columns(data, heads, [_compiled(k) for k in kinds]) is None:
                return None
        else:
            patch.setattr(decoder, "compiled", None)
        try:
            found = binary_columns(data, heads, kinds)
        except MySQLError as error:
            assert error.args[0] == 2027
            return None
    for column in found:
        column.validate(full=True)
    typed = [
        c.view(pa.string()).cast(k.type) if isinstance(k, Digits) and pa.types.is_binary(c.type) else c
        for c, k in zip(found, kinds, strict=True)
    ]
    return [c.to_pylist() for c in typed]


def test_the_compiled_decoder_was_built() -> None:
    assert decoder.compiled is not None, "run `make setup`: without the compiled reader syncs are slower"


def test_well_formed_rows_are_decoded_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    read_by_it = 0
    for _ in range(300):
        rows = [good_row(rng) for _ in range(rng.randint(1, 12))]
        expected = read(rows, KINDS, False, monkeypatch)
        found = read(rows, KINDS, True, monkeypatch)
        assert expected is not None
        if found is not None:
            read_by_it += 1
            assert found == expected
    assert read_by_it > 150  # the others have a 30 February


def test_rows_with_changed_bytes_are_decoded_as_in_python_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(11)
    agreed = refused = 0
    for _ in range(4000):
        rows = [bytearray(good_row(rng)) for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(1, 3)):
            one = rng.choice(rows)
            match rng.randrange(3):
                case 0 if one:
                    one[rng.randrange(len(one))] = rng.choice([0, 1, 4, 7, 11, 250, 251, 252, 253, 254, 255])
                case 1:
                    del one[rng.randrange(len(one) + 1) :]
                case _:
                    one.insert(rng.randrange(len(one) + 1), rng.randrange(256))
        sent = [bytes(r) for r in rows]
        found = read(sent, KINDS, True, monkeypatch)
        if found is None:
            refused += 1
            continue
        agreed += 1
        assert repr(found) == repr(read(sent, KINDS, False, monkeypatch))  # NaN is not equal to itself
    assert agreed > 100 and refused > 100


@given(st.lists(st.none() | st.decimals(1 - 10**34, 10**34 - 1, places=4), min_size=1))
@settings(deadline=None)
def test_any_decimal_is_read_as_it_was_printed(values: list[Decimal | None]) -> None:
    rows = [row(None if v is None else cell(f"{v:f}".encode())) for v in values]
    data: Any = np.frombuffer(packets(rows) + bytes(SLACK), np.uint8)
    (found,) = binary_columns(
        data, np.cumsum([0, *(4 + len(r) for r in rows)]), [Digits(pa.decimal128(38, 4))]
    )
    found.validate(full=True)
    assert found.type == pa.decimal128(38, 4) and found.to_pylist() == values


@pytest.mark.parametrize("text", [b"", b"-", b".", b"1", b"1.23", b"1.23456", b"1e2", b"+1.0000", b"12345.0000", b"--1.0000", b" 1.0000"])  # fmt: skip
def test_an_unusual_number_is_left_to_python(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = np.frombuffer(packets([row(cell(text))]) + bytes(SLACK), np.uint8)
    kinds: list[Kind] = [Digits(pa.decimal128(8, 4))]
    (found,) = binary_columns(data, np.array([0, len(data) - SLACK]), kinds)
    assert found.to_pylist() == [text]


@pytest.mark.parametrize("text", [b".", b"5.", b"-.", b"-"])
def test_a_whole_number_with_a_point_is_left_to_python(text: bytes) -> None:
    data: Any = np.frombuffer(packets([row(cell(text))]) + bytes(SLACK), np.uint8)
    (found,) = binary_columns(data, np.array([0, len(data) - SLACK]), [Digits(pa.decimal128(8, 0))])
    assert found.to_pylist() == [text]


def test_packet_starts_outside_the_buffer_are_refused() -> None:
    for heads, count, end in (([0, 0], 1, 9), ([-1, 0], 1, 8), ([0, 0], 3, 8), ([0, 0], 0, 8)):
        with pytest.raises(ValueError, match="outside"):
            decoder.compiled.follow(bytearray(8), np.array(heads), count, end)
    good = packets([row(struct.pack("<b", 7))])
    for wrong in ([0, len(good) + 1], [-8, len(good)], [5, 4], [0, 2**40]):
        assert decoder.compiled.columns(good, np.array(wrong), [(decoder.compiled.FIXED, 1, 0)]) is None


def test_blocks_decoded_by_either_decoder_make_one_column() -> None:
    exact = pa.array([Decimal("0.00000001"), None, Decimal("-12.50000000")], pa.decimal128(20, 8))
    texts = pa.array([b"3.00000000", None], pa.binary())
    whole = _whole([exact, texts]).view(pa.string()).cast(pa.decimal128(20, 8))
    assert whole.to_pylist() == [*exact.to_pylist(), Decimal("3.00000000"), None]
