"""The system watermark: one timestamp in the store, written by people only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.config.load import load
from floodmark.log.pipeline import SYSTEM_PATH, Starts, system_get, system_set
from floodmark.model.errors import DataError
from floodmark.store.store import Store

CONFIG = "source: {url: 'mysql://reader:x@127.0.0.1:1/shop'}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    (tmp_path / "floodmark.yaml").write_text(CONFIG)
    return tmp_path


def test_the_system_watermark_takes_precedence_over_the_configured_start(folder: Path) -> None:
    config = load()
    store = Store(config.store)
    assert Starts(store, config).of("shop.orders").timestamp is None
    system_set(config, timestamp="2025-08-04")
    found = Starts(store, config).of("shop.orders")
    assert (found.timestamp, found.by) == ("2025-08-04 00:00:00", "the system watermark")


@pytest.mark.parametrize(
    "text", ["2025-08-04 00:00:00", "2025-08-04T00:00:00Z\n", "2025-08-04T00:00:00+00:00", "\ufeff2025-08-04"]
)
def test_the_older_tool_s_file_is_understood(folder: Path, text: str) -> None:
    config = load()
    Store(config.store).put(SYSTEM_PATH, text.encode())
    assert system_get(config) == {"timestamp": "2025-08-04 00:00:00"}


def test_an_unreadable_one_is_never_ignored(folder: Path) -> None:
    config = load()
    Store(config.store).put(SYSTEM_PATH, b"\xff\x00rubbish")
    with pytest.raises(DataError, match="does not hold a timestamp"):
        Starts(Store(config.store), config).of("shop.orders")
    assert system_set(config, preset="today")["undo"] == "floodmark watermark clear --force"
    assert Starts(Store(config.store), config).of("shop.orders").by == "the system watermark"


def test_get_prints_it_or_says_that_there_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermark", "get"]) == 0
    assert "no system watermark" in capsys.readouterr().out
    assert main(["watermark", "get", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"timestamp": None}
    assert main(["watermark", "set", "--timestamp", "2025-08-04T12:00:00", "--force"]) == 0
    assert "start after 2025-08-04 12:00:00" in capsys.readouterr().out
    assert main(["watermark", "get", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"timestamp": "2025-08-04 12:00:00"}


@pytest.mark.parametrize(
    "line", [["set", "yesterday"], ["set", "--timestamp", "2025-08-04"], ["reset", "1week"]]
)
@pytest.mark.parametrize("answer", ["--yes", "-y", "--force"])
def test_without_a_terminal_it_is_changed_only_when_the_question_is_answered(
    folder: Path, capsys: pytest.CaptureFixture[str], line: list[str], answer: str
) -> None:
    assert main(["watermark", *line]) == 2
    assert "--yes or --force" in capsys.readouterr().err
    assert not (folder / "lake").exists()
    assert main(["watermark", *line, answer]) == 0
    assert (folder / "lake" / SYSTEM_PATH).exists()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_on_a_terminal_it_asks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    typist, terminal = os.openpty()
    os.write(typist, answer.encode())
    with open(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["watermark", "reset", "aug4"]) == code
    os.close(typist)
    assert (folder / "lake" / SYSTEM_PATH).exists() == (code == 0)


def test_the_command_to_undo_a_change_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["watermark", "set", "--timestamp", "2025-08-04", "--force"])
    assert "To undo: floodmark watermark clear --force" in capsys.readouterr().out
    main(["watermark", "set", "--timestamp", "2025-08-05", "--force"])
    assert (
        'To undo: floodmark watermark set --timestamp "2025-08-04 00:00:00" --force'
        in capsys.readouterr().out
    )


def test_clear_removes_it_and_can_be_undone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermark", "clear"]) == 0  # nothing to ask about
    assert "no system watermark" in capsys.readouterr().out
    main(["watermark", "set", "--timestamp", "2025-08-04", "--force"])
    capsys.readouterr()
    assert main(["watermark", "clear"]) == 2
    assert "--force" in capsys.readouterr().err and (folder / "lake" / SYSTEM_PATH).exists()
    assert main(["watermark", "clear", "--force", "--json"]) == 0
    undo = 'floodmark watermark set --timestamp "2025-08-04 00:00:00" --force'
    assert json.loads(capsys.readouterr().out) == {"timestamp": None, "undo": undo}
    assert not (folder / "lake" / SYSTEM_PATH).exists()


def test_clear_removes_an_unreadable_one(folder: Path) -> None:
    Store(load().store).put(SYSTEM_PATH, b"rubbish")
    assert main(["watermark", "clear", "--yes"]) == 0
    assert system_get(load()) == {"timestamp": None}
