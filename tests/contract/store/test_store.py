"""One suite over every store."""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import DataError, TransientError
from floodmark.setup.doctor.store import prove
from floodmark.store.store import NO_DOCUMENT, Store, encode
from tests.support.store_addresses import paths, s3_spec


@pytest.fixture(params=["folder", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    if request.param == "folder":
        return StoreSpec(str(tmp_path / "lake"))
    return s3_spec(request.getfixturevalue("seaweed"), f"store tests/{secrets.token_hex(6)}")


@pytest.fixture
def store(spec: StoreSpec) -> Store:
    return Store(spec)


def test_a_missing_object_is_returned_as_none(store: Store) -> None:
    assert store.get("commits/a.b/00000000000000000000.json") is None
    assert paths(store, "") == []


def test_an_object_that_is_too_large_for_its_kind_is_not_read(store: Store) -> None:
    store.put("pipeline.json", b" " * ((1 << 20) + 1))
    store.put("data/a.b/f.parquet", b"x" * 100)
    assert store.get("pipeline.json") == NO_DOCUMENT
    assert store.get("data/a.b/f.parquet", most=99) == NO_DOCUMENT
    assert store.get("data/a.b/f.parquet", most=100) == b"x" * 100
    store.put("pipeline.json", b" " * (1 << 20))
    assert len(store.get("pipeline.json") or b"") == 1 << 20


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(1 << 16)])
def test_an_object_is_read_back_as_it_was_put(store: Store, data: bytes) -> None:
    store.put("data/a.b/f.parquet", data)
    assert store.get("data/a.b/f.parquet") == data
    store.put("data/a.b/f.parquet", b"newer")
    assert store.get("data/a.b/f.parquet") == b"newer"


def test_a_large_object_passes_in_parts_from_memory_and_from_a_file(store: Store, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 21
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(data)
    for body in (data, memoryview(data), source):
        store.put("data/big", body)
        store.download("data/big", copy)
        assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert store.get("data/big") == data
    assert {item.name for item in tmp_path.iterdir()} <= {"source", "copy", "lake"}


def test_create_writes_once_and_only_once(store: Store) -> None:
    assert store.create("commits/a.b/1.json", b"first") is True
    assert store.create("commits/a.b/1.json", b"second") is False
    assert store.get("commits/a.b/1.json") == b"first"
    store.delete(["commits/a.b/1.json"])
    assert store.create("commits/a.b/1.json", b"third") is True


def test_a_swap_replaces_only_what_was_read(store: Store) -> None:
    assert store.tagged("status/x.json") == (None, None)
    assert store.swap("status/x.json", b"first", None) is True
    data, tag = store.tagged("status/x.json")
    assert data == b"first" and tag is not None
    assert store.swap("status/x.json", b"other", None) is False
    assert store.swap("status/x.json", b"second", tag) is True
    assert store.swap("status/x.json", b"third", tag) is False
    assert store.get("status/x.json") == b"second"
    tag = store.tagged("status/x.json")[1]
    store.delete(["status/x.json"])
    assert store.swap("status/x.json", b"fourth", tag) is False


def test_concurrent_swaps_lose_no_change(spec: StoreSpec) -> None:
    many, rounds = (3, 3) if spec.endpoint else (4, 25)
    stores = [Store(spec) for _ in range(many)]
    stores[0].put("status/count", b"0")

    def count(store: Store) -> None:
        for _ in range(rounds):
            while True:
                data, tag = store.tagged("status/count")
                if store.swap("status/count", b"%d" % (int(data or b"0") + 1), tag):
                    break

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(count, stores))
    assert stores[0].get("status/count") == b"%d" % (many * rounds)


def test_of_many_concurrent_creates_exactly_one_wins(spec: StoreSpec) -> None:
    # SeaweedFS makes those that contend for one name wait for whole seconds, so fewer rounds there.
    many, rounds = (4, 4) if spec.endpoint else (8, 100)
    stores = [Store(spec) for _ in range(many)]
    start = threading.Barrier(many)

    def attempt(me: int, path: str) -> bool:
        start.wait()
        return stores[me].create(path, b"%d" % me * 1000)

    with ThreadPoolExecutor(many) as pool:
        for path in [f"race/{n}" for n in range(rounds)]:
            won = list(pool.map(attempt, range(many), [path] * many))
            assert won.count(True) == 1
            assert stores[0].get(path) == b"%d" % won.index(True) * 1000


def test_a_listing_is_sorted_and_distinguishes_folders_from_names_with_the_same_prefix(store: Store) -> None:
    names = [
        "data/a/b",
        "data/a-b",
        "data/a.b/c",
        "data/a0",
        "data/orders/1",
        "data/orders/2/x",
        "data/orders_old/1",
    ]
    for name in names:
        store.put(name, b"12345")
    assert paths(store, "") == sorted(names)
    assert paths(store, "data/orders/") == ["data/orders/1", "data/orders/2/x"]
    assert paths(store, "data/orders_") == ["data/orders_old/1"]
    assert paths(store, "data/orders/1") == ["data/orders/1"]
    assert paths(store, "nothing/here/") == []
    item = next(store.list("data/a0"))
    assert item.bytes == 5
    assert abs((datetime.now(UTC) - item.modified).total_seconds()) < 120


def test_a_listing_that_starts_after_its_own_prefix_finds_all_of_it_and_nothing_else(store: Store) -> None:
    names = ("s.a_20250101", "s.t_20250101", "s.t_20250102", "s.t_2_20250101", "s.u_20250101")
    for name in names:
        store.put(f"daily/{name}.json", b"x")
    assert paths(store, "daily/s.t_2025", "daily/s.t_2025") == [
        "daily/s.t_20250101.json",
        "daily/s.t_20250102.json",
    ]
    assert paths(store, "daily/s.z_", "daily/s.z_") == [] == paths(store, "daily/s.b_", "daily/s.b_")


def test_a_listing_goes_over_many_pages_and_can_start_after_a_path(store: Store) -> None:
    names = [f"commits/a.b/{n:020}.json" for n in range(1203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(name, b"{}"), names))
    assert paths(store, "commits/a.b/") == names
    assert paths(store, "commits/a.b/", names[1100]) == names[1101:]
    assert paths(store, "commits/a.b/", names[-1]) == []
    store.delete(names)
    assert paths(store, "commits/") == []


def test_folders_are_the_names_right_below_and_no_more(store: Store) -> None:
    for path in (
        "commits/s.t/1.json",
        "commits/s.t/2.json",
        "commits/a%20b.c/1.json",
        "commits/x.json",
        "other/y/1",
    ):
        store.put(path, b"x")
    assert store.folders("commits/") == ("a%20b.c", "s.t")
    assert store.folders("nothing/") == store.folders("commits/s.t/") == ()


def test_deleting_a_missing_object_is_no_error(store: Store) -> None:
    store.put("data/a/1", b"x")
    store.delete(["data/a/1", "data/a/2", "data/never/3"])
    store.delete([])
    assert paths(store, "") == []


def test_encoded_names_come_back_as_they_were_written(store: Store) -> None:
    name = f"data/{encode('shöp. x')}.{encode('a/b%c#d')}/1.parquet"
    store.put(name, b"x")
    assert paths(store, "data/") == [name]
    assert store.get(name) == b"x"
    assert store.uri(name).startswith(("s3://", "file:///"))


def test_encode_leaves_only_plain_characters() -> None:
    assert encode("shop.Orders_$-1") == "shop.Orders_$-1"
    assert encode("ö/ %#?~") == "%C3%B6%2F%20%25%23%3F%7E"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a//b", "a/../../b", "a/", "."])
def test_a_path_that_leaves_the_prefix_is_refused(store: Store, path: str) -> None:
    with pytest.raises(DataError, match="not the path of an object"):
        store.get(path)


def test_a_download_of_a_missing_object_is_a_data_error_and_leaves_nothing(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="not in the store"):
        store.download("data/none", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_download_into_a_folder_that_is_full_or_gone_leaves_nothing(store: Store, tmp_path: Path) -> None:
    store.put("data/x", b"x")
    with pytest.raises(TransientError):
        store.download("data/x", tmp_path / "gone" / "copy")


def test_doctor_s_proof_passes_and_leaves_nothing(store: Store) -> None:
    checks = list(prove(store))
    assert [check.name for check in checks] == ["read", "create", "list", "delete"]
    assert {check.status for check in checks} == {"ok"}
    assert paths(store, "") == []


def test_a_spec_travels_and_shows_no_secret(spec: StoreSpec) -> None:
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.secret_access_key is None or spec.secret_access_key not in repr(spec)
