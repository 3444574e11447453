"""Values as the JSON in the store."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter

from floodmark.model import json


@dataclass(frozen=True)
class Part:
    one: int
    two: str
    three: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole:
    first: Part
    second: Part | None = None
    others: tuple[Part, ...] = ()


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_tables_that_need_an_adapter_at_the_same_time_build_it_once() -> None:
    together = threading.Barrier(8)

    def adapter(_: int) -> TypeAdapter[Whole]:
        together.wait()
        return json.adapter(Whole)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(adapter, range(8)))
    assert len({id(one) for one in found}) == 1


def test_a_value_comes_back_from_its_json_unchanged() -> None:
    value = Whole(Part(1, "é"), None, (Part(2, "", (3, 4)),))
    stored = json.dump(value)
    assert (
        stored
        == '{"first":{"one":1,"two":"é","three":[]},"second":null,"others":[{"one":2,"two":"","three":[3,4]}]}'.encode()
    )
    assert json.load(Whole, stored) == value
