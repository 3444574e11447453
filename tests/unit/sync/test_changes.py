"""How a read of the binary log is divided: one stretch for each file."""

from __future__ import annotations

import pytest

from floodmark.model.changes import LogEnd, LogPlace
from floodmark.source.binlog.end import LogFile, LogGone
from floodmark.sync.changes import size_of, stretches, went_back

FILES = tuple(LogFile(f"bin.{n:06}", 1000) for n in (8, 9, 10))


def at(number: int, position: int = 4) -> LogPlace:
    return LogPlace(f"bin.{number:06}", position)


def parts(begin: LogPlace, end: LogPlace) -> list[tuple[LogPlace, LogPlace]]:
    return [(a, b.place) for a, b in stretches(FILES, begin, LogEnd(end))]


def test_each_file_is_a_stretch() -> None:
    assert parts(at(8, 500), at(10, 700)) == [(at(8, 500), at(9)), (at(9), at(10)), (at(10), at(10, 700))]
    assert parts(at(9), at(9, 700)) == [(at(9), at(9, 700))]
    assert parts(at(8), at(10)) == [(at(8), at(9)), (at(9), at(10))]


def test_every_stretch_sees_the_same_transactions() -> None:
    assert {one.visible for _, one in stretches(FILES, at(8), LogEnd(at(10, 700), "x:1-3"))} == {"x:1-3"}


def test_a_file_that_is_gone_ends_the_read() -> None:
    with pytest.raises(LogGone, match=r"bin\.000007"):
        parts(at(7), at(10, 700))


def test_the_size_is_that_of_the_files_between() -> None:
    assert size_of(FILES, at(8, 400), at(8, 500)) == 100
    assert size_of(FILES, at(8, 400), at(10, 500)) == 600 + 1000 + 500


def test_a_log_that_ends_before_what_was_read_was_reset() -> None:
    assert went_back(at(8, 500), LogEnd(at(8, 500)), LogEnd(at(8, 400)))
    assert not went_back(at(8, 500), LogEnd(at(8, 500)), LogEnd(at(8, 500)))


def test_a_log_that_lacks_transactions_that_were_read_was_reset() -> None:
    uuid = "11111111-2222-3333-4444-555555555555"
    before, fewer, more = (LogEnd(at(8, 500 + n), f"{uuid}:1-{n}") for n in (7, 6, 8))
    assert went_back(at(8, 507), before, LogEnd(at(8, 600), fewer.visible))
    assert not went_back(at(8, 507), before, more)
