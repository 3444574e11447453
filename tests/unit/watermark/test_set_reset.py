"""`watermark set` and `reset` of one table, with only the store available."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.config.load import load
from floodmark.log import pipeline
from floodmark.log.claim import claim
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.position import Position
from floodmark.store.store import Store
from floodmark.watermark.set_reset import back, watermark_reset, watermark_set
from tests.support.samples import TABLE, at, files, window

RUN = "20250819_153000_ab12"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline whose table `shop.orders` was read, in a file that waits to be loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    (tmp_path / "floodmark.yaml").write_text("source: {url: 'mysql://reader:x@127.0.0.1:1/shop'}\n")
    log = Log(Store(load().store), "shop.orders")
    taken = claim(
        log, log.read(), run=RUN, purpose="sync", table=TABLE, window=window("w", None, (), at(42, 7))
    )
    with taken.lease:
        log.append(taken.state, draft(taken.state, Batch, RUN, window_id="w", slices=(0,), files=files(3)))
    return tmp_path


def test_a_reset_says_what_starts_where_and_how_to_undo_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watermark", "reset", "-t", "shop.orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shop.orders: both stages are reset; the next sync starts from the first row",
        "To undo: floodmark watermark restore -t shop.orders --commit 1",
    ]
    assert main(["watermark", "reset", "-t", "orders", "--mysql-only", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["mysql_rows_extracted"], document["mysql_status"]) == (0, "pending")
    assert document["undo"] == f"floodmark watermark restore -t shop.orders --commit {document['commit'] - 1}"


def test_a_reset_of_a_table_that_began_later_says_that_the_first_rows_come_too(folder: Path) -> None:
    log = Log(Store(load().store), "shop.others")
    low, high = at(10), at(42, 7)
    taken = claim(log, log.read(), run=RUN, purpose="sync", table=TABLE, window=window("w", low, (), high))
    with taken.lease:
        log.append(taken.state, draft(taken.state, Batch, RUN, window_id="w", slices=(0,)))
    said = watermark_reset(load(), "shop.others", RUN)
    assert said["next_start"] is None
    assert said["notes"] == [
        "the next sync also reads rows at or before 2025-08-14 15:00:10, which were left out so far"
    ]


def test_the_load_is_reset_only_while_its_files_are_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watermark", "reset", "-t", "shop.orders", "--redshift-only"]) == 6
    said = capsys.readouterr().err.splitlines()
    assert "1 of 1 files" in said[0] and "f-0.parquet" in said[0] and len(said) == 2


def test_a_set_works_without_mysql_once_the_table_is_known(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watermark", "set", "-t", "shop.orders", "--timestamp", "2025-08-14", "--id", "5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shop.orders: the next sync starts after 2025-08-14 00:00:00 (id 5), set by hand",
        "To undo: floodmark watermark restore -t shop.orders --commit 3",
    ]
    with pytest.raises(TransientError):  # nothing is known of this one
        watermark_set(load(), "shop.others", "2025-08-14", None, RUN)


def test_an_unknown_table_is_not_created_by_a_reset(folder: Path) -> None:
    with pytest.raises(TransientError):
        watermark_reset(load(), "shop.others", RUN)
    assert [p.name for p in (folder / "lake" / "commits").iterdir()] == ["shop.orders"]


def test_a_pipeline_moves_to_the_configured_warehouse_once_that_has_answered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watermark", "move"]) == 2
    assert "has no pipeline yet" in capsys.readouterr().err
    store = Store(load().store)
    begun = pipeline.establish(store, load().warehouse.label, "2025-08-19T15:30:00Z")
    with (folder / "floodmark.yaml").open("a") as file:
        file.write("warehouse: {url: 'duckdb:///other/w.duckdb'}\n")
    assert main(["watermark", "move"]) == 2  # there is no such folder
    assert pipeline.read(store) == begun
    (folder / "other").mkdir()
    capsys.readouterr()
    log = Log(store, "shop.orders")
    held = claim(log, log.read(), run="20250819_153001_cd34", purpose="sync", table=TABLE)
    with held.lease:
        assert main(["watermark", "move"]) == 3
    assert pipeline.read(store) == begun
    capsys.readouterr()
    assert main(["watermark", "move"]) == 0
    first, waits, undo = capsys.readouterr().out.splitlines()
    assert "other/w.duckdb (previously " in first and waits.endswith("next sync loads 1 file, 3 rows")
    assert undo.startswith(f"To undo: set warehouse.url back to {begun.warehouse}")
    assert pipeline.read(store) == replace(begun, warehouse=load().warehouse.label)


@pytest.mark.parametrize("text", ["2099-01-01", "1969-12-31 23:59:59", "14.8.2025"])
def test_an_impossible_time_is_refused_before_any_service_is_contacted(folder: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"future|1970|YYYY"):
        watermark_set(load(), "shop.orders", text, None, RUN)


@pytest.mark.parametrize(
    ("here", "there", "is_back"),
    [
        (at(10, 5), at(9, 9), True),
        (at(10, 5), at(10, 4), True),
        (at(10, 5), at(10, 5), False),
        (at(10, 5), at(10), False),  # behind every row of that second
        (at(10, 5), at(11), False),
        (at(10), at(10, 999), True),
        ((7,), (6,), True),
        ((7,), (70,), False),
        ((9,), (10,), False),
        (None, (70,), True),
        (at(10), (70,), True),
    ],
)
def test_a_move_goes_back_unless_it_is_known_not_to(
    here: Position | None, there: Position, is_back: bool
) -> None:
    assert back(here, there) == is_back
