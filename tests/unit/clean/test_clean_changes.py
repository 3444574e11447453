"""Key files of the source's log go once every table has followed them, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.clean.changes import clean_changes, due
from floodmark.clean.choose import Selection
from floodmark.clean.command import s3clean_list, s3clean_orphans
from floodmark.config.load import StoreSpec, load
from floodmark.log import source_log
from floodmark.log.claim import HeldTable
from floodmark.log.document import commit_path
from floodmark.log.fold import State
from floodmark.log.following import here
from floodmark.log.log import Log
from floodmark.log.source_log import waiting
from floodmark.model.changes import SOURCE_LOG, FollowedChanges, FollowedTo, PreparedXa
from floodmark.store.store import Store
from floodmark.watermark.backups import watermark_drill
from floodmark.watermark.validate import watermark_validate
from tests.support.samples import RUN, TABLE
from tests.support.source_logs import (
    ITEMS,
    ORDERS,
    SERVER,
    at,
    changed,
    described,
    end,
    key_file,
    opened,
    touch,
)
from tests.support.watermark_copies import HARMS, published

LATER = datetime.now(UTC) + timedelta(hours=2)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldTable]:
    held = opened(Store(StoreSpec(url=str(tmp_path / "lake"))), ORDERS, ITEMS)
    yield held
    held.release()


def there(held: HeldTable) -> set[str]:
    return {o.path for o in held.log.store.list("changes/keys/")}


def cleaned(held: HeldTable, followed: dict[str, FollowedTo | None]) -> int:
    outcome = clean_changes(held, followed, LATER)
    assert Log(held.log.store, SOURCE_LOG).fold_on(State(SOURCE_LOG)) == held.state
    return outcome.deleted if outcome else 0


def test_files_stay_until_the_last_table_has_followed_them(held: HeldTable) -> None:
    begin = here(held.state)
    touch(held, ORDERS, ITEMS, upto=200)
    middle = here(held.state)
    touch(held, ORDERS, upto=300)
    upto = here(held.state)
    assert cleaned(held, {ORDERS: upto, ITEMS: begin}) == 0
    assert cleaned(held, {ORDERS: middle, ITEMS: middle}) == 2 and len(there(held)) == 1
    assert waiting(held.log, held.state, {ORDERS: middle, ITEMS: middle})[ORDERS].reconcile == ()
    # What a table has not followed and is gone can't be followed any more: the table says so itself.
    assert waiting(held.log, held.state, {ORDERS: begin})[ORDERS].reconcile == ("lost",)


def test_a_table_that_nobody_touched_holds_no_file_back(held: HeldTable) -> None:
    begin = here(held.state)
    touch(held, ORDERS, upto=200)
    assert cleaned(held, {ORDERS: here(held.state), ITEMS: begin}) == 1


def test_a_table_that_was_not_looked_at_holds_every_file_and_one_that_reads_anew_none(
    held: HeldTable,
) -> None:
    touch(held, ORDERS, ITEMS, upto=200)
    assert cleaned(held, {ORDERS: here(held.state)}) == 0
    assert cleaned(held, {ORDERS: here(held.state), ITEMS: None}) == 2


def test_a_table_of_a_lost_log_holds_every_file(held: HeldTable) -> None:
    begin = here(held.state)
    touch(held, ORDERS, upto=200)
    assert begin is not None
    assert cleaned(held, {ORDERS: replace(begin, log="lost"), ITEMS: here(held.state)}) == 0


def test_nothing_is_read_while_nothing_is_due(held: HeldTable) -> None:
    touch(held, ORDERS, upto=200)
    followed = {ORDERS: here(held.state), ITEMS: here(held.state)}
    assert due(held.state, followed, datetime.now(UTC)) is None
    assert cleaned(held, followed) == 1
    assert due(held.state, followed, LATER + timedelta(days=1)) is None


def test_keys_of_a_prepared_transaction_stay_until_its_commit_is_followed(held: HeldTable) -> None:
    file = key_file(held, ORDERS)
    xa = PreparedXa("1,61,62", {ORDERS: changed(file)}, at(150))
    read = FollowedChanges(at(100), at(200), prepared=(xa,))
    source_log.append(held, read, end(200), SERVER, files=(file,))
    touch(held, ORDERS, upto=250, prepared=(xa,))
    before = here(held.state)
    assert cleaned(held, {ORDERS: before, ITEMS: before}) == 1 and there(held) == {file.path}
    read = FollowedChanges(at(250), at(300), {ORDERS: changed(file)})
    source_log.append(held, read, end(300), SERVER)
    assert waiting(held.log, held.state, {ORDERS: before})[ORDERS].files == (file,)
    held.state = replace(held.state, source=replace(held.state.source, cleaned_at=None))  # type: ignore[type-var]
    assert clean_changes(held, {ORDERS: before, ITEMS: before}, LATER) is None
    after = here(held.state)
    assert clean_changes(held, {ORDERS: after, ITEMS: after}, LATER) is not None and there(held) == set()


def test_a_table_that_joins_is_not_in_the_way(held: HeldTable) -> None:
    touch(held, ORDERS, upto=200)
    source_log.listen(held, [described("shop.users")])
    upto = here(held.state)
    assert cleaned(held, {ORDERS: upto, ITEMS: upto, "shop.users": None}) == 1


def test_what_a_dead_run_left_behind_goes_too_and_what_we_are_writing_stays(held: HeldTable) -> None:
    store = held.log.store
    touch(held, ORDERS, upto=200)
    dead, ours = f"changes/keys/{ORDERS}/20250101_000000_dead/3-0.parquet", key_file(held, ITEMS, 7)
    store.put(dead, b"keys")
    followed = {ORDERS: here(held.state), ITEMS: here(held.state)}
    assert cleaned(held, followed) == 2 and there(held) == {ours.path}


def test_orphans_of_a_table_are_not_key_files_of_the_source(held: HeldTable, tmp_path: Path) -> None:
    touch(held, TABLE.name, upto=200)
    published(held.log.store)
    file = tmp_path / "floodmark.yaml"
    file.write_text("source: {url: mysql://reader@127.0.0.1:1/shop}\n")
    config = load(file)
    before = there(held)
    assert before and config.store.url == held.log.store.spec.url
    found = s3clean_orphans(config, [TABLE.name], RUN, Selection())
    assert found.deleted == 0 and there(held) == before
    assert not [f for f in s3clean_list(config)["files"] if "changes/" in f["uri"]]


def test_validate_misses_a_key_file_and_repairs_the_log(held: HeldTable, tmp_path: Path) -> None:
    file = tmp_path / "floodmark.yaml"
    file.write_text("source: {url: mysql://reader@127.0.0.1:1/shop}\n")
    config, store = load(file), held.log.store
    touch(held, ORDERS, ITEMS, upto=200)
    assert cleaned(held, {ORDERS: here(held.state), ITEMS: here(held.state)}) == 2
    touch(held, ORDERS, upto=300)
    held.release()
    assert watermark_validate(config, run=RUN)["ok"]
    assert watermark_drill(config, all_tables=True)["ok"]
    (path,) = there(held)
    store.delete([path])
    store.put("changes/keys/shop.orders/lost/1.parquet", b"keys")
    HARMS["truncated"](store, commit_path(SOURCE_LOG, 2), b"")
    found = watermark_validate(config, run=RUN)["tables"][0]
    kinds = {f["kind"]: f["detail"] for f in found["findings"]}
    assert found["table"] == "source" and set(kinds) == {"damaged_log", "missing_file"}
    assert path in kinds["missing_file"] and "compared with their copies" in kinds["missing_file"]
    repaired = watermark_validate(config, run=RUN, repair=True)["tables"][0]
    assert {f["kind"] for f in repaired["findings"]} == {"missing_file", "orphan"}
