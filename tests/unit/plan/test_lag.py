"""The lag behind the source is measured quickly, and an unreachable source costs only a moment."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.cli.layout import behind
from floodmark.cli.main import main
from floodmark.config.load import load
from floodmark.log.claim import claim
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Set
from floodmark.model.run import Lag
from floodmark.plan.lag import lags
from floodmark.store.store import Store
from tests.support.samples import TABLE, History, at, files, window


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def configured(folder: Path, port: int) -> Path:
    path = folder / "floodmark.yaml"
    path.write_text(f"source: {{url: 'mysql://reader:x@127.0.0.1:{port}/shop'}}\n")
    return path


def read_table() -> History:
    history = History()
    history.claim(window=window("w", None, (), at(42, 7)))
    history.add(Batch, window_id="w", slices=(0,), files=files(3))
    return history


def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path, silent: int) -> None:
    config = load(configured(tmp_path, silent))
    began = time.monotonic()
    assert lags(config, {"shop.orders": read_table().state}, patience=0.5) == {}
    assert time.monotonic() - began < 1.5


def test_a_server_that_is_not_there_is_unknown_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    assert lags(load(configured(tmp_path, 1)), {"shop.orders": read_table().state}) == {}
    assert time.monotonic() - began < 2.5


def test_the_source_is_not_queried_for_tables_without_a_position(tmp_path: Path, silent: int) -> None:
    began = time.monotonic()
    assert lags(load(configured(tmp_path, silent)), {"shop.orders": History().state}) == {}
    assert time.monotonic() - began < 0.2


def test_get_and_list_answer_while_mysql_is_silent_and_say_what_is_unknown(
    tmp_path: Path, silent: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configured(tmp_path, silent)
    log = Log(Store(load().store), "shop.orders")
    run = "20250819_153000_ab12"
    taken = claim(log, log.read(), run=run, purpose="set", table=TABLE)
    with taken.lease:
        log.append(taken.state, draft(taken.state, Set, run, position=at(42, 7)))
    began = time.monotonic()
    assert main(["watermark", "get", "-t", "shop.orders"]) == 0
    assert time.monotonic() - began < 5
    assert "    Lag behind the source   unknown" in capsys.readouterr().out.splitlines()
    assert main(["watermark", "list", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["tables"]
    assert document["lag_seconds"] is None and document["last_mysql_data_id"] == [7]


def test_a_lag_is_shown_in_time_or_in_ids() -> None:
    assert behind(Lag(seconds=7500.0)) == "2 h 5 min"
    assert behind(Lag(ids=1250)) == "1,250 ids"
    assert behind(Lag()) == "unknown"
