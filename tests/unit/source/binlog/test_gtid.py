"""Sets of transactions, compared with a naive model that holds every one of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.source.binlog.gtid import GtidSet, unaccounted

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
sources = st.sampled_from([A, B, f"{A}:blue", f"{A}:green"])
intervals = st.tuples(sources, st.integers(1, 12), st.integers(0, 4))
sets = st.lists(intervals, max_size=8)


def text(several: list[tuple[str, int, int]]) -> str:
    return ",".join(f"{source}:{first}-{first + more}" for source, first, more in several)


def every(several: list[tuple[str, int, int]]) -> set[tuple[str, int]]:
    return {(source, n) for source, first, more in several for n in range(first, first + more + 1)}


def listed(gtids: GtidSet) -> set[tuple[str, int]]:
    """Every transaction, read from what the set prints."""
    found: set[tuple[str, int]] = set()
    for part in gtids.text().split(","):
        uuid, *pieces = part.split(":")
        source = uuid
        for piece in pieces:
            if piece[0].isdigit():
                first, _, last = piece.partition("-")
                found |= {(source, n) for n in range(int(first), int(last or first) + 1)}
            else:
                source = f"{uuid}:{piece}"
    return found


@given(sets, sets)
def test_sets_of_mysql_are_sets(one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]) -> None:
    a, b = GtidSet.parse(text(one)), GtidSet.parse(text(other))
    assert listed(a) == every(one)
    assert listed(a.minus(b)) == every(one) - every(other)
    assert a.contains(b) == (every(other) <= every(one))
    assert (a == b) == (every(one) == every(other))
    assert bool(a) == bool(one)
    for source, number in every(other):
        assert a.contains(f"{source}:{number}") == ((source, number) in every(one))
    assert GtidSet.parse(a.text()) == a
    a.update(b)
    assert listed(a) == every(one) | every(other)


@given(sets, st.lists(st.tuples(sources, st.integers(1, 15)), max_size=20))
def test_transactions_are_added_in_any_order(
    one: list[tuple[str, int, int]], more: list[tuple[str, int]]
) -> None:
    grown = GtidSet.parse(text(one))
    for source, number in more:
        grown.add(f"{source}:{number}")
        assert grown.contains(f"{source}:{number}")
    assert listed(grown) == every(one) | set(more)


def test_a_set_prints_as_the_server_does_whatever_spelling_it_was_read_from() -> None:
    spelled = f"{A.upper()}:1-5:7:Blue:1-3:5,\n{B}:9-9 , {A}:6"
    assert GtidSet.parse(spelled).text() == f"{A}:1-7:blue:1-3:5,{B}:9"
    assert GtidSet.parse("").text() == "" and not GtidSet.parse(" \n")


@pytest.mark.parametrize(
    "wrong", ["x", A, f"{A}:", f"{A}:0", f"{A}:1-", f"{A}:blue", f"{A}:9x:1", "0-1", "0-1-2-3"]
)
def test_what_is_not_a_set_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        GtidSet.parse(wrong)


def test_a_position_of_mariadb_holds_all_earlier_transactions_of_its_domains() -> None:
    position = GtidSet.parse("0-1-7,5-2-3")
    assert position.contains("0-1-7") and position.contains("0-1-1") and not position.contains("0-1-8")
    assert position.contains("0-9-6"), "a server that isn't named: the domain decides"
    assert not position.contains("1-1-1"), "an unknown domain"
    assert position.minus(GtidSet.parse("0-1-5,5-2-3")).text() == "0-1-7"
    position.add("0-1-8")
    assert position.text() == "0-1-8,5-2-3" and not GtidSet.parse("0-1-8,5-2-3").minus(position)
    position.add("0-1-2")
    assert position.contains("0-1-8")


def test_a_binlog_state_tells_servers_that_have_diverged() -> None:
    state = GtidSet.parse("0-1-7,0-2-9")
    assert state.contains("0-1-7") and not state.contains("0-1-8"), "server 1 was left at 7"
    assert state.has_logged(GtidSet.parse("0-1-7")) and not state.has_logged(GtidSet.parse("0-3-7"))
    assert state.has_logged(GtidSet.parse("")) and not state.has_logged(GtidSet.parse("1-1-1"))


def test_transactions_that_the_end_promises_and_the_log_lacks_are_unaccounted() -> None:
    assert not unaccounted(f"{A}:1-5", f"{A}:1-9:11", f"{A}:6-9:11")
    assert unaccounted(f"{A}:1-5", f"{A}:1-9", f"{A}:6-8").text() == f"{A}:9"
    assert not unaccounted(f"{A}:1-5", f"{A}:1-6", f"{A}:6-8"), (
        "what was seen beyond the end is left out by others"
    )
    assert not unaccounted("0-1-5", "0-1-9", "0-1-9") and unaccounted("0-1-5", "0-1-9", "0-1-8")


def test_65_000_transactions_are_added_in_a_fraction_of_a_second() -> None:
    numbers = [f"{A}:{n}" for n in range(1, 65_001)] + [f"{B}:blue:{n}" for n in range(65_000, 0, -1)]
    began = time.process_time()
    gtids = GtidSet()
    for number in numbers:
        gtids.add(number)
    assert gtids.text() == f"{A}:1-65000,{B}:blue:1-65000"
    assert all(gtids.contains(number) for number in numbers)
    assert time.process_time() - began < 1
