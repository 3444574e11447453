"""The ledger on the dashboard: when it is queried, and what its answer changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.config.load import Config
from floodmark.load.duckdb import ledger as glance
from floodmark.log.lease import lease_path
from floodmark.model.errors import TransientError
from floodmark.model.ledger import LoadSum
from floodmark.status.health import Mark
from floodmark.web import documents
from floodmark.web.pages import Pages, View
from floodmark.web.snapshot import LedgerReading, Looks, due, loads_of, waiting
from tests.support.dashboards import Filled

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
USUAL: dict[str, Any] = {
    "tried": None, "failed": False, "asked_of": "a", "published": "b", "published_at": NOW, "held": False,
}  # fmt: skip


def asked(kind: str, **other: Any) -> bool:
    return due(kind == "duckdb", NOW, **{**USUAL, **other})


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_a_duckdb_file_is_read_only_while_nobody_holds_a_table() -> None:
    assert asked("duckdb") and not asked("duckdb", held=True)
    assert not asked("duckdb", tried=ago(10)) and asked("duckdb", tried=ago(16))
    assert not asked("duckdb", tried=ago(200), asked_of="b") and asked("duckdb", tried=ago(301), asked_of="b")
    assert not asked("duckdb", tried=ago(20), failed=True) and asked("duckdb", tried=ago(31), failed=True)


def test_redshift_is_queried_rarely_and_only_right_after_a_run() -> None:
    assert asked("redshift") and asked("redshift", held=True)
    assert not asked("redshift", published_at=ago(700)), "it may be asleep"
    assert not asked("redshift", asked_of="b"), "nothing has happened since"
    assert not asked("redshift", published_at=None)
    assert not asked("redshift", tried=ago(500)) and asked("redshift", tried=ago(601))


MARK = Mark(
    "s.t", log="l", load_epoch=1, pending_files=2, loads=(1, 5, 10),
    document={"backup_metadata": {"saved_at": "2026-11-17T11:00:00.000000Z"}},
)  # fmt: skip


def says(commits: int, files: int, at: str = "2026-11-17T11:30:00.000000Z", epoch: int = 1) -> LedgerReading:
    return LedgerReading(at, {("l", epoch): LoadSum("l", epoch, commits, 100, files, at)})


@pytest.mark.parametrize(
    ("seen", "agrees", "files"),
    [
        (says(5, 10), True, 2),
        (says(6, 12), False, 0),
        (says(4, 9), False, 3),
        (says(9, 9, epoch=0), False, 12),
        (says(6, 12, at="2026-11-17T10:59:00.000000Z"), None, 2),  # what was published is newer
        (LedgerReading(problem="it is away"), None, 2),
    ],
)
def test_files_that_wait_are_those_that_the_ledger_lacks(
    seen: LedgerReading, agrees: bool | None, files: int
) -> None:
    loads = loads_of(MARK, seen)
    assert (loads.agrees if loads else None) == agrees
    assert waiting(MARK, loads) == files


@pytest.fixture
def ledger(config: Config, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse with one loaded commit of log x."""
    monkeypatch.setattr(glance, "OPEN_SECONDS", 60.0)  # this machine may be busy
    path = config.warehouse.path
    assert path is not None
    with duckdb.connect(path) as con:
        con.execute(
            "CREATE TABLE floodmark_ledger (log_id TEXT, epoch INT, rows INT, files INT, loaded_at TIMESTAMP)"
        )
        con.execute("INSERT INTO floodmark_ledger VALUES ('x', 0, 7, 2, TIMESTAMP '2026-11-17 10:00:00')")
    os.utime(path, (0, 0))  # so that nobody waits until the last write is a second old
    return path


def test_a_glance_at_the_ledger_sums_it_up(ledger: Path) -> None:
    assert glance.ledger_sums(ledger, "main") == [LoadSum("x", 0, 1, 7, 2, "2026-11-17T10:00:00.000000Z")]
    assert glance.ledger_sums(ledger, "elsewhere") == []


def test_a_glance_ends_when_its_time_is_up_and_leaves_the_file_to_others(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glance, "OPEN_SECONDS", 0.0005)
    with pytest.raises(TransientError, match="within"):
        glance.ledger_sums(ledger, "main")
    duckdb.connect(ledger).close()
    with pytest.raises(TransientError, match="a run is active"):
        glance.ledger_sums(ledger, "main", lambda: False)
    with pytest.raises(TransientError, match="no file"):
        glance.ledger_sums(ledger.with_name("missing.duckdb"), "main")


def test_a_sync_that_opens_the_file_during_a_glance_neither_waits_nor_fails(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = ledger.with_name("inside"), ledger.with_name("go-on")
    pause = (
        f"if file == path:\n        open({str(inside)!r}, 'w').close()\n"
        f"        while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n    "
    )
    monkeypatch.setattr(glance, "_CHILD", glance._CHILD.replace("found = con", f"{pause}found = con"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(glance.ledger_sums, ledger, "main")
        while not inside.exists() and not answer.done():
            time.sleep(0.01)
        with duckdb.connect(ledger) as con:  # fails at once if anyone has a lock
            con.execute("INSERT INTO floodmark_ledger VALUES ('x', 0, 1, 1, now())")
        go_on.touch()
        with pytest.raises(TransientError, match="is being written"):
            answer.result()


def test_a_glance_finds_a_file_of_any_name_and_what_a_killed_writer_has_committed(ledger: Path) -> None:
    folder = ledger.with_name("we'ir d[1]*%41#~")
    folder.mkdir()
    moved = folder / "a b.duckdb"
    write = (
        "import duckdb, os, sys\n"
        "con = duckdb.connect(sys.argv[1])\n"
        "con.execute('INSERT INTO floodmark_ledger VALUES (?, 0, 1, 1, now())', ['y'])\n"
        "os._exit(0)"
    )
    ledger.rename(moved)
    subprocess.run([sys.executable, "-c", write, str(moved)], check=True)
    assert moved.with_name("a b.duckdb.wal").exists()
    assert {one.log for one in glance.ledger_sums(moved, "main")} == {"x", "y"}


def test_a_loss_in_the_warehouse_shows_and_a_lease_keeps_the_file_closed(
    config: Config, filled: Filled, ledger: Path
) -> None:
    filled = replace(filled, now=datetime.now(UTC))
    filled.table("shop.orders")  # published as loaded, and the ledger has nothing of it
    looks = Looks(config, str, ask_ledger=True)
    with filled.held("shop.busy"):
        held = looks.look()
        looks.ledger.wait()
        assert looks.look().ledger.at is None
        orders = held.row("shop.orders")
        assert orders is not None and orders.health.word == "ok" and orders.loads is None
    filled.store.delete([lease_path("shop.busy")])
    looks.look()
    looks.ledger.wait()
    seen = looks.look()
    orders = seen.row("shop.orders")
    assert seen.ledger.problem is None and orders is not None and orders.loads is not None
    assert (orders.health.word, orders.loads.commits) == ("waiting to load", 0)
    assert documents.ledger(seen)["tables"] == [
        {"table": "shop.orders", "commits": 0, "commits_published": 1}
    ]
    away = replace(seen, ledger=replace(seen.ledger, problem="it is <away>"))
    pages, now = Pages(config), datetime.now(UTC)
    assert "the ledger can’t be read right now" in pages.overview(away, View(), now)
    text = pages.house(away, pages.places, None, None, now)
    assert "it is &lt;away&gt;" in text and "0 commits, 1 published" in text
