"""Tables with state, with only the store available: what a sync reports about those it can't reach or find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.config.load import Config, load
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Reset
from floodmark.model.errors import ConfigError
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.run import TableReport
from floodmark.plan.tables import StoredTables
from floodmark.store.store import Store
from floodmark.watermark.validate import count_findings
from tests.support.samples import RUN, TABLE, at, window
from tests.support.watermark_copies import synced


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that has read `shop.orders` and `shop.others`, and `else.where` by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    configured(tmp_path)
    store = Store(load().store)
    for name in ("shop.orders", "shop.others", "else.where"):
        read(store, name)
    return tmp_path


def configured(folder: Path, more: str = "") -> Config:
    (folder / "floodmark.yaml").write_text(f"source: {{url: 'mysql://reader:x@127.0.0.1:1/shop'}}\n{more}")
    return load()


def read(store: Store, name: str) -> None:
    log = Log(store, name)
    taken = claim(
        log, log.read(), run=RUN, purpose="sync", table=TABLE, window=window("w", None, (), at(42, 7))
    )
    with taken.lease:
        state = log.append(taken.state, draft(taken.state, Batch, RUN, window_id="w", slices=(0,)))
        Publisher(store, name, RUN).publish(state, ())


def stored(config: Config) -> StoredTables:
    return StoredTables(config, Store(config.store))


def test_tables_that_all_would_include_and_the_source_does_not_show_are_gone(folder: Path) -> None:
    found = list(stored(load()).gone(["shop.orders"]))
    assert [t.table for t in found] == ["shop.others"]
    assert found[0].exit_code == 2 and "retire -t shop.others" in str(found[0].error and found[0].error.hint)
    config = configured(folder, "tables: {'else.*': {}, 'shop.orders': {}}\n")
    assert [t.table for t in stored(config).gone([])] == ["else.where"]


def test_a_retired_table_is_missed_by_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = [TableReport("others", error=ConfigError("there is no table")), TableReport("new")]
    assert [t.table for t in stored(load()).not_retired(unknown)] == ["shop.others", "new"]
    for _ in range(2):  # a second time changes nothing
        assert main(["watermark", "retire", "-t", "others", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["retired"] and document["undo"] == "floodmark sync -t shop.others"
    assert document["commit"] == 3
    assert list(stored(load()).gone(["shop.orders"])) == []
    assert list(stored(load()).not_retired([TableReport("others")])) == []
    assert main(["watermark", "retire", "-t", "shop.nothing"]) == 2


def test_a_pattern_without_a_match_is_reported_unless_its_tables_are_gone_or_retired(folder: Path) -> None:
    config = configured(folder, "tables: {'shop.o*': {}, 'new.*': {}}\n")
    unknown = [TableReport("shop.o*", error=ConfigError("none")), TableReport("new.*")]
    assert [t.table for t in stored(config).not_retired(unknown)] == ["new.*"]
    assert [t.table for t in stored(config).gone([])] == ["shop.orders", "shop.others"]
    for name in ("shop.orders", "shop.others"):
        assert not stored(config).retired("shop.o*")
        assert main(["watermark", "retire", "-t", name]) == 0
    assert stored(config).retired("shop.o*") and not stored(config).retired("new.*")


def test_an_unreachable_source_is_reported_for_every_table_of_the_sync(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watermark", "retire", "-t", "others"]) == 0
    assert main(["sync", "--all"]) == 4
    copies = sorted((folder / "lake/watermark").rglob("*.json"))
    assert main(["sync", "--all"]) == 4  # the same again leaves no more copies
    assert sorted((folder / "lake/watermark").rglob("*.json")) == copies
    assert main(["sync", "-t", "never"]) == 4
    capsys.readouterr()
    expected = {"orders": "failed", "others": "success", "else.where": "success", "never": "failed"}
    for name, status in expected.items():
        assert main(["watermark", "get", "-t", name, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["mysql_status"] == status, name
        assert bool(document["last_error"]) == ("last_error_time" in document) == (status == "failed")
        assert document["activity"]["state"] == "idle" and document["last_check_time"] is None
    assert not (folder / "lake/commits/shop.never").exists()


def test_a_ledger_that_has_more_than_was_extracted_is_a_finding() -> None:
    history = synced()
    once = history.ledger()[0]

    def found(state: State, *rows: LedgerRow) -> list[str]:
        return [f.detail for f in count_findings(state, Ledger(0, rows))]

    assert found(history.state) == found(history.state, once) == []
    (said,) = found(history.state, once, once)
    assert "200 rows" in said and "100 rows" in said
    history.add(Reset, stages=("extract", "load"))
    by_hand = once._replace(epoch=history.state.load_epoch)
    assert found(history.state, by_hand) == []  # superseded, and loaded by a manual watermark
