"""Staged files: listed, cleaned when the warehouse has them, and never missed afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from floodmark import FloodmarkError
from floodmark.store.store import Store, encode
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders


def listed(workspace: Workspace, table: str = "orders") -> list[dict[str, Any]]:
    return list(workspace.pipeline.s3clean_list(table)["files"])


def on_disk(workspace: Workspace) -> set[str]:
    lake = workspace.folder / "lake"
    return {p.as_uri() for p in (lake / "data").rglob("*") if p.is_file()}


def valid(workspace: Workspace) -> None:
    found = workspace.pipeline.watermark_validate()
    assert found["ok"], [f for t in found["tables"] for f in t["findings"]]


def touch(workspace: Workspace, ids: str) -> None:
    workspace.execute(f"UPDATE orders SET note = CONCAT(note, '!') WHERE {ids}")


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(1000))
    workspace.write(defaults={"slice_rows": 250})
    workspace.synced("orders")
    return workspace


def test_the_list_shows_the_state_of_every_file(orders: Workspace) -> None:
    touch(orders, "id <= 700")
    orders.synced("orders", backup_only=True)
    files = listed(orders)
    assert {f["uri"] for f in files} == on_disk(orders)
    assert [f["state"] for f in files] == ["loaded"] * 4 + ["pending"]
    assert sum(f["rows"] for f in files) == 1100
    result = orders.run("s3clean", "list", "-t", "orders").ok()
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(line[0], line[5]) for line in lines] == [(f["state"], f["uri"]) for f in files]
    assert result.stderr == ""


def test_clean_removes_loaded_files_and_nothing_reports_them_missing(orders: Workspace) -> None:
    touch(orders, "id <= 700")
    orders.synced("orders", backup_only=True)
    before = orders.pipeline.watermark_get("orders")
    loaded = [f["uri"] for f in listed(orders) if f["state"] == "loaded"]
    dry = orders.run("s3clean", "clean", "-t", "orders", "--dry-run", "--json").ok().json
    assert [f["uri"] for f in dry["files"]] == loaded and dry["deleted"] == 0 and dry["bytes"] > 0
    assert set(loaded) < on_disk(orders)

    done = orders.run("s3clean", "clean", "-t", "orders", "--force", "--json").ok().json
    assert [f["uri"] for f in done["files"]] == loaded
    assert (done["deleted"], done["bytes"]) == (4, dry["bytes"])
    assert {f["state"] for f in listed(orders)} == {"pending"}
    assert not on_disk(orders) & set(loaded)
    valid(orders)
    after = orders.pipeline.watermark_get("orders")
    for field in ("mysql_rows_extracted", "s3_file_count", "redshift_rows_loaded", "processed_s3_files"):
        assert after[field] == before[field]
    assert after["pending_s3_files"] == before["pending_s3_files"] != []

    assert orders.synced("orders")["rows_loaded"] == 100
    assert orders.compare("orders").equal
    assert orders.run("s3clean", "clean", "-t", "orders", "--force", "--json").ok().json["deleted"] == 1
    again = orders.run("s3clean", "clean", "-t", "orders", "--force").ok()
    assert again.stdout.strip().endswith("orders: nothing to remove")
    assert on_disk(orders) == set()
    valid(orders)
    found = orders.pipeline.watermark_validate(repair=True)
    assert found["ok"] and found["tables"][0]["repaired"] == []
    kinds = [c["kind"] for c in orders.pipeline.watermark_history("orders")["commits"]]
    assert kinds[:2] == ["clean", "claim"] and kinds.count("clean") == 2


def test_without_a_terminal_clean_needs_an_answer(orders: Workspace) -> None:
    for command in (["clean", "-t", "orders"], ["clean-all"], ["orphans", "-t", "orders"]):
        result = orders.run("s3clean", *command)
        assert result.code == 2 and "--yes or --force" in result.stderr
        assert len(on_disk(orders)) == 4
    for command in (["orphans", "-t", "orders", "--yes"], ["clean-all", "-y"]):
        orders.run("s3clean", *command).ok()
    assert on_disk(orders) == set()


def test_a_reload_of_cleaned_files_is_refused_and_names_them(orders: Workspace) -> None:
    name = listed(orders)[0]["uri"]
    orders.pipeline.s3clean_clean("orders", pattern=name)
    assert len(listed(orders)) == 3
    valid(orders)
    result = orders.run("watermark", "reset", "-t", "orders", "--redshift-only")
    assert result.code == 6
    assert (
        name in result.stderr
        and "watermark reset -t" in result.stderr
        and len(result.stderr.splitlines()) == 2
    )
    orders.pipeline.watermark_reset("orders")
    orders.synced("orders")
    assert orders.compare("orders").equal
    valid(orders)


def test_age_and_pattern_limit_what_is_removed(orders: Workspace) -> None:
    touch(orders, "id <= 700")
    orders.synced("orders")
    assert orders.pipeline.s3clean_clean("orders", older_than="1h")["deleted"] == 0
    assert orders.pipeline.s3clean_clean("orders", pattern="*.csv")["deleted"] == 0
    first = listed(orders)[0]["uri"].split("/")[-2]
    done = orders.pipeline.s3clean_clean("orders", pattern=f"{first}/*", older_than="0s")
    assert done["deleted"] == 4 and all(f"/{first}/" in f["uri"] for f in done["files"])
    valid(orders)
    # The claim between the two commits does not split the span.
    orders.pipeline.s3clean_clean("orders")
    document = json.loads(
        (orders.folder / "lake" / f"watermark/tables/{orders.database.name}.orders.json").read_text()
    )
    assert len(document["checkpoint"]["body"]["state"]["cleaned"]) == 1


@pytest.mark.parametrize("strategy", [pytest.param("sequential", marks=pytest.mark.long), "intra-table"])
def test_pending_files_are_given_up_only_on_request_and_their_rows_are_read_again(
    orders: Workspace, strategy: str
) -> None:
    touch(orders, "id <= 3500")
    orders.synced("orders", backup_only=True, strategy=strategy)
    orders.execute("INSERT INTO orders (amount, note) VALUES (1, 'new')")
    orders.synced("orders", backup_only=True, strategy=strategy)
    pending = [f["uri"] for f in listed(orders) if f["state"] == "pending"]
    assert len(pending) >= 2
    assert orders.run("s3clean", "clean", "-t", "orders", "--force").ok()
    assert {f["uri"] for f in listed(orders)} == set(pending)

    done = orders.run("s3clean", "clean", "-t", "orders", "--force", "--include-pending", "--json").ok().json
    assert {f["uri"] for f in done["files"]} == set(pending)
    assert "501 rows that were not loaded will be read again" in done["tables"][0]["notes"][0]
    document = orders.pipeline.watermark_get("orders")
    assert document["pending_s3_files"] == [] and document["redshift_status"] == "success"
    valid(orders)
    report = orders.synced("orders")
    assert report["rows_extracted"] + report["rows_reread"] >= 501
    assert orders.compare("orders").equal
    assert orders.synced("orders")["commits"] == []
    valid(orders)


def test_a_table_without_a_key_moves_back_only_with_force(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE events (what VARCHAR(20), at DATETIME NOT NULL, KEY (at))",
        "INSERT INTO events SELECT CONCAT('e', seq), '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_50",
    )
    workspace.write(tables={workspace.full_name("events"): {"cursor": "at", "mode": "append"}})
    workspace.synced("events")
    workspace.execute("INSERT INTO events VALUES ('late', '2025-04-01')")
    workspace.synced("events", backup_only=True)
    with pytest.raises(FloodmarkError, match="no key") as refused:
        workspace.pipeline.s3clean_clean("events", include_pending=True)
    assert refused.value.code == 2 and len(on_disk(workspace)) == 2
    answered = workspace.run("s3clean", "clean", "-t", "events", "--include-pending", "--yes")
    assert answered.code == 2 and "has no key" in answered.stderr, "an answer allows nothing that is refused"
    assert len(on_disk(workspace)) == 2
    workspace.pipeline.s3clean_clean("events", include_pending=True, force=True)
    workspace.synced("events")
    assert workspace.query("SELECT count(*), count(DISTINCT what) FROM events") == [(51, 51)]
    valid(workspace)


def test_loaded_files_stay_while_an_earlier_commit_waits(orders: Workspace) -> None:
    touch(orders, "id <= 700")
    orders.synced("orders", backup_only=True)
    skipped = orders.pipeline.watermark_get("orders")["pending_s3_files"]
    orders.execute("SELECT SLEEP(1.1)")
    orders.pipeline.watermark_set("orders", timestamp=_now(orders))
    orders.execute("SELECT SLEEP(1.1)", "UPDATE orders SET note = 'later' WHERE id = 7")
    orders.synced("orders", backup_only=True)
    orders.pipeline.watermark_set("orders", timestamp=_now(orders, -1))
    assert orders.synced("orders", load_only=True)["files_loaded"] == 1
    assert orders.pipeline.watermark_get("orders")["pending_s3_files"] == skipped
    done = orders.pipeline.s3clean_clean("orders")
    assert done["deleted"] == 4 and "1 loaded file stays" in done["tables"][0]["notes"][0]
    assert orders.synced("orders", load_only=True) and orders.synced("orders")
    assert orders.query("SELECT note FROM orders WHERE id = 7") == [("later",)]
    assert orders.compare("orders").equal


def _now(workspace: Workspace, shift: int = 0) -> str:
    ((text,),) = workspace.execute(f"SELECT CAST(UTC_TIMESTAMP() + INTERVAL {shift} SECOND AS CHAR)")
    return str(text)


def test_a_warehouse_restored_to_before_cleaned_files_gets_an_error_that_says_what_to_do(
    orders: Workspace,
) -> None:
    backup = orders.warehouse.read_bytes()
    touch(orders, "id <= 700")
    orders.synced("orders")
    orders.pipeline.s3clean_clean("orders")
    orders.warehouse.write_bytes(backup)
    result = orders.run("sync", "-t", "orders")
    assert result.code == 6
    assert "files were cleaned" in result.stderr and "--include-pending" in result.stderr
    found = orders.pipeline.watermark_validate("orders")["tables"][0]["findings"]
    assert {f["kind"] for f in found} == {"missing_file"} and "was cleaned" in found[0]["detail"]
    orders.run("s3clean", "clean", "-t", "orders", "--include-pending", "--force").ok()
    orders.synced("orders")
    assert orders.compare("orders").equal
    valid(orders)


def test_superseded_files_are_cleaned_and_no_manual_watermark_needs_them_afterwards(
    orders: Workspace,
) -> None:
    orders.pipeline.watermark_reset("orders")
    assert {f["state"] for f in listed(orders)} == {"superseded"}
    assert orders.pipeline.s3clean_clean("orders")["deleted"] == 4
    orders.pipeline.watermark_set("orders", timestamp="2025-01-02 00:00:00")
    report = orders.synced("orders", load_only=True)
    assert report["files_loaded"] == 0 and "Found 0 files, filtered to 0" in " ".join(report["notes"])
    orders.pipeline.watermark_reset("orders")
    orders.synced("orders")
    assert orders.compare("orders").equal
    valid(orders)


def test_with_the_warehouse_down_the_list_says_so_and_clean_removes_nothing(orders: Workspace) -> None:
    held = orders.warehouse.rename(orders.folder / "away")
    orders.warehouse.mkdir()  # nothing can be opened there
    result = orders.run("s3clean", "list", "-t", "orders").ok()
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["unknown"] * 4
    assert "the warehouse does not answer" in result.stderr
    refused = orders.run("s3clean", "clean", "-t", "orders", "--force")
    assert refused.code in (2, 4) and len(on_disk(orders)) == 4
    orders.warehouse.rmdir()
    held.rename(orders.warehouse)
    assert orders.pipeline.s3clean_clean("orders")["deleted"] == 4


def test_files_are_kept_as_long_as_the_table_says(orders: Workspace) -> None:
    def keep(age: str) -> None:
        orders.write(tables={orders.full_name("orders"): {"keep_files": age}})

    touch(orders, "id <= 700")
    keep("1h")
    assert orders.synced("orders")["files_cleaned"] == 0 and len(on_disk(orders)) == 5
    assert orders.synced("orders")["commits"] == []  # nothing is due: nothing is written
    keep("1s")
    orders.execute("SELECT SLEEP(1.2)")
    report = orders.synced("orders")  # idle, but for the files that are due
    assert report["rows_extracted"] == report["rows_loaded"] == 0
    assert (report["files_cleaned"], len(report["commits"])) == (5, 1)
    assert report["bytes_cleaned"] > 0 and "keep_files" in " ".join(report["notes"])
    assert on_disk(orders) == set()
    valid(orders)
    assert orders.synced("orders")["commits"] == []
    keep("1h")
    touch(orders, "id <= 70")
    assert orders.synced("orders")["files_cleaned"] == 0 and len(on_disk(orders)) == 1
    assert orders.compare("orders").equal
    valid(orders)


@pytest.mark.long
def test_tables_with_a_common_name_prefix_never_touch_each_other(workspace: Workspace) -> None:
    _no_cross_talk(workspace)


def test_tables_with_a_common_name_prefix_never_touch_each_other_in_s3(s3_workspace: Workspace) -> None:
    _no_cross_talk(s3_workspace)


FOUR = ("orders", "orders_old", "orders_detail", "Orders", "orders é%41")


def _no_cross_talk(workspace: Workspace) -> None:
    names = [workspace.full_name(table) for table in FOUR]
    for n, table in enumerate(FOUR):
        quoted = f"`{table}`"
        workspace.execute(create_orders(name=quoted), fill_orders(50 + n, name=quoted))
    workspace.write(tables={names[3]: {"target": "upper_orders"}, names[4]: {"target": "odd"}})
    report = workspace.sync(*names)
    assert report.ok, report.as_json()
    targets = ("orders", "orders_old", "orders_detail", "upper_orders", "odd")
    assert [workspace.query(f"SELECT count(*) FROM {t}") for t in targets] == [[(50 + n,)] for n in range(5)]
    store = Store(workspace.pipeline.config.store)
    for name in names:
        store.put(f"data/{encode(name)}/20200101_000000_dead/3-window0-abcd-0.parquet", b"orphan")
    for n, name in enumerate(names):
        files = workspace.pipeline.s3clean_list(name)["files"]
        assert [(f["state"], f["rows"]) for f in files] == [("loaded", 50 + n), ("orphan", None)]
        everything = {o.path for o in store.list("")}
        gone = workspace.pipeline.s3clean_clean(name)["files"]
        gone += workspace.pipeline.s3clean_orphans(name)["files"]
        assert {f["uri"] for f in gone} == {f["uri"] for f in files}
        removed = everything - {o.path for o in store.list("")}
        assert {store.uri(path) for path in removed} == {f["uri"] for f in files}
    assert list(store.list("data/")) == []
    valid(workspace)
    assert [t.commits for t in workspace.sync(*names).tables] == [()] * 5


def test_clean_all_continues_when_one_table_is_refused(workspace: Workspace) -> None:
    workspace.execute(
        create_orders(),
        fill_orders(20),
        "CREATE TABLE copy LIKE orders",
        "INSERT INTO copy SELECT * FROM orders",
    )
    workspace.synced("orders")
    workspace.synced("copy")
    log = workspace.folder / "lake" / "commits" / workspace.full_name("copy")
    document = workspace.folder / "lake" / "watermark"
    for path in [*log.iterdir(), *(p for p in document.rglob("*copy*") if p.is_file())]:
        path.write_bytes(b"damaged")
    result = workspace.run("s3clean", "clean-all", "--force", "--json")
    assert result.code == 6 and not result.json["ok"] and result.json["deleted"] == 1
    assert {t["table"].partition(".")[2]: t["ok"] for t in result.json["tables"]} == {
        "orders": True,
        "copy": False,
    }
    assert result.stderr.startswith("floodmark: ") and "copy" in result.stderr
    assert len(on_disk(workspace)) == 1


def test_deletes_are_cleaned_once_loaded_and_never_given_up_before(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"deletes": "hard", "deletes_every": "0s"}})
    orders.execute("DELETE FROM orders WHERE id <= 70")
    orders.synced("orders")
    assert orders.query("SELECT count(*) FROM orders") == [(990,)]
    assert len(listed(orders)) == 5 and {f["state"] for f in listed(orders)} == {"loaded"}
    orders.pipeline.s3clean_clean("orders")
    assert listed(orders) == []
    valid(orders)
    orders.synced("orders")
    assert orders.compare("orders").equal
    valid(orders)
