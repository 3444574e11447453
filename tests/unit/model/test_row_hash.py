"""The compiled hash of rows: it is SipHash, over words that depend on a row's values and on nothing else."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.model import row_hash
from floodmark.model.canonical import Digest
from floodmark.model.row_hash import Sums, hashes

KEY = bytes(range(16))
MASK = (1 << 64) - 1


def siphash(message: bytes, key: bytes) -> bytes:
    """SipHash-2-4 with 128 bits, as its authors describe it, for messages of whole words."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [
        k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573,
    ]  # fmt: skip

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & MASK

    def turn(times: int) -> None:
        for _ in range(times):
            for a, b, by, swap in ((0, 1, 13, 0), (2, 3, 16, None), (0, 3, 21, None), (2, 1, 17, 2)):
                v[a] = (v[a] + v[b]) & MASK
                v[b] = rotated(v[b], by) ^ v[a]
                if swap is not None:
                    v[swap] = rotated(v[swap], 32)

    last = struct.pack("<Q", (len(message) & 0xFF) << 56)
    for (word,) in struct.iter_unpack("<Q", message + last):
        v[3] ^= word
        turn(2)
        v[0] ^= word
    v[2] ^= 0xEE
    turn(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    turn(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def words(row: list[Any]) -> bytes:
    """The words of a row, made from Python's values."""
    nulls = sum(1 << i for i, value in enumerate(row) if value is None)
    done = b"".join(struct.pack("<Q", nulls >> at & MASK) for at in range(0, len(row), 64))
    for value in row:
        if isinstance(value, bool | int):
            done += struct.pack("<q", value)
        elif isinstance(value, float):
            done += struct.pack("<d", value)
        elif isinstance(value, Decimal):
            done += int(value.scaleb(4)).to_bytes(16, "little", signed=True)
        elif value is not None:
            data = value.encode() if isinstance(value, str) else value
            done += struct.pack("<Q", len(data)) + data + bytes(-len(data) % 8)
    return done


def test_the_compiled_hash_was_built() -> None:
    assert row_hash.compiled is not None, "run `make setup`: without the compiled hash verify is slower"


def test_the_hash_is_siphash() -> None:
    """Against OpenSSL's."""
    expected = {
        0: "a3817f04ba25a8e66df67214c7550293", 8: "3b62a9ba6258f5610f83e264f31497b4",
        16: "6ee2a4ca67b054bbfd3315bf85230577", 24: "2db479ae78bd50d8882a8a178a6132ad",
    }  # fmt: skip
    assert {n: siphash(bytes(range(n)), KEY).hex() for n in expected} == expected


def columns(r: random.Random, rows: int) -> list[Any]:
    """A column of every kind, with NULLs in some."""

    def some(draw: Any, nulls: float = 0.1) -> list[Any]:
        return [None if r.random() < nulls else draw() for _ in range(rows)]

    text = "aé日😀\0 "
    return [
        pa.array(some(lambda: r.random() < 0.5), pa.bool_()),
        pa.array(some(lambda: r.randrange(-(2**15), 2**15)), pa.int16()),
        pa.array(some(lambda: r.randrange(-(2**31), 2**31), 0), pa.int32()),
        pa.array(some(lambda: r.randrange(-(2**63), 2**63)), pa.int64()),
        pa.array(some(lambda: struct.unpack("<f", struct.pack("<f", r.gauss(0, 1e9)))[0]), pa.float32()),
        pa.array(some(lambda: r.gauss(0, 1e99)), pa.float64()),
        pa.array(some(lambda: Decimal(r.randrange(-(10**30), 10**30)).scaleb(-4)), pa.decimal128(38, 4)),
        pa.array(some(lambda: r.randrange(-(10**5), 10**5)), pa.int32()).view(pa.date32()),
        pa.array(some(lambda: r.randrange(-(2**55), 2**55)), pa.int64()).view(pa.timestamp("us", "UTC")),
        pa.array(some(lambda: "".join(r.choices(text, k=r.randrange(20))), 0.3), pa.string()),
        pa.array(some(lambda: r.randbytes(r.randrange(30))), pa.large_binary()),
        pa.array(some(lambda: "x" * r.randrange(3), 1), pa.string()),
    ]


def plain(column: Any) -> list[Any]:
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return list(column.to_pylist())


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_column_is_hashed_by_its_values(seed: int) -> None:
    r = random.Random(seed)
    whole = columns(r, 200)
    first = r.randrange(1, 20)
    sliced = [column[first:] for column in whole]
    rows = list(zip(*(plain(column) for column in sliced), strict=True))
    key = r.randbytes(16)
    assert hashes(sliced, key).to_pylist() == [siphash(words(list(row)), key) for row in rows]
    assert hashes(whole, key)[first:].equals(hashes(sliced, key))


def test_more_than_sixty_four_columns_have_a_second_word_of_nulls() -> None:
    row = [None if i % 3 == 0 else i for i in range(150)]
    [found] = hashes([pa.array([value], pa.int64()) for value in row], KEY).to_pylist()
    assert found == siphash(words(row), KEY)


def test_widths_make_no_difference_but_values_do() -> None:
    def hashed(*values: Any) -> bytes:
        [found] = hashes([v if isinstance(v, pa.Array) else pa.array([v]) for v in values], KEY).to_pylist()
        return bytes(found)

    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        assert hashed(pa.array([-5], kind)) == hashed(-5)
    assert hashed(pa.array([0.1], pa.float32())) == hashed(float(np.float32(0.1)))
    assert hashed(pa.array(["é"], pa.large_string())) == hashed("é") == hashed("é".encode())
    assert hashed(pa.array(["long enough for a view"], pa.string_view())) == hashed("long enough for a view")
    assert hashed(pa.array([Decimal("1.5")], pa.decimal64(9, 1))) == hashed(
        pa.array([Decimal("1.5")], pa.decimal128(38, 1))
    )
    values: dict[Any, list[tuple[Any, ...]]] = {
        pa.string(): [
            (None,), ("",), ("\0",), ("\0\0",), ("a",), ("a\0",), ("a ",), (None, None), ("ab", "c"), ("a", "bc"),
            ("", None), (None, ""),
        ],
        pa.float64(): [(None,), (0.0,), (-0.0,), (1.0,), (1.0000000000000002,), (0.0, None), (None, 0.0)],
    }  # fmt: skip
    for one, different in values.items():
        made = {hashed(*(pa.array([value], one) for value in row)) for row in different}
        assert len(made) == len(different)
    assert hashes([pa.array([1])], KEY) != hashes([pa.array([1])], bytes(16))


def test_what_lies_below_a_null_is_not_hashed() -> None:
    bits = pa.py_buffer(b"\0")
    one, other = (
        pa.Array.from_buffers(pa.int64(), 1, [bits, pa.py_buffer(struct.pack("<q", value))])
        for value in (1, 2)
    )
    assert hashes([one], KEY).equals(hashes([other], KEY))


def test_sums_depend_on_the_rows_but_not_on_their_order() -> None:
    rows = hashes([pa.array(range(1000))], KEY)
    numbers = [int.from_bytes(row, "little") for row in rows.to_pylist()]

    def summed(*some: Any) -> Digest:
        sums = Sums()
        for one in some:
            sums.add(one)
        [digest] = sums.digests()
        return digest

    assert (
        summed(rows)
        == Digest(1000, sum(numbers) % 2**128)
        == summed(rows[::-1])
        == summed(rows[600:], rows[:600])
    )
    assert summed(rows[:400]) + summed(rows[400:]) == summed(rows), "sums of parts add up, modulo 2**128"
    assert summed() == Digest() == summed(rows[:0])

    parts = np.arange(1000) % 3
    sums = Sums(4)
    sums.add(rows, parts)
    assert sums.digests() == [Digest(len(numbers[n::3]), sum(numbers[n::3]) % 2**128) for n in range(3)] + [
        Digest()
    ]
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match="part"):
            sums.add(rows[:1], np.array([wrong]))


def test_groups_are_the_first_digits() -> None:
    rows = hashes([pa.array(range(300))], KEY)
    texts = row_hash.to_hex(rows)
    for digits in (1, 2, 5):
        assert row_hash.groups(rows, digits).tolist() == [int(text[:digits], 16) for text in texts]
    assert row_hash.groups(rows[7:], 3).tolist() == [int(text[:3], 16) for text in texts[7:]]
    assert row_hash.from_hex(texts).equals(rows)


def test_nothing_is_read_outside_of_a_buffer() -> None:
    module = row_hash.compiled
    good = struct.pack("<iii", 0, 1, 3)
    assert len(module.hashes(2, [(module.TEXT, 4, 0, None, good, b"abc")], KEY)) == 32
    for column in (
        (module.TEXT, 4, 0, None, good, b"ab"), (module.TEXT, 4, 0, None, good[:8], b"abc"), (module.TEXT, 4, 0, None, good, None),
        (module.TEXT, 4, 0, None, struct.pack("<iii", 0, 2, 1), b"abc"), (module.TEXT, 4, 0, None, struct.pack("<iii", -1, 1, 2), b"abc"),
        (module.INTEGER, 8, 0, None, bytes(15), None), (module.INTEGER, 8, 1, None, bytes(16), None),
        (module.INTEGER, 3, 0, None, bytes(16), None), (module.INTEGER, 8, -1, None, bytes(16), None),
        (module.BIT, 0, 7, None, b"\0", None), (module.DECIMAL, 16, 0, None, bytes(31), None),
        (module.INTEGER, 8, 0, b"", bytes(16), None),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            module.hashes(2, [column], KEY)
    with pytest.raises(ValueError):
        module.hashes(1, [(module.INTEGER, 8, 0, None, bytes(8), None)], KEY[:15])
    with pytest.raises(TypeError, match="not hashed"):
        hashes([pa.array([1], pa.uint64())], KEY)
