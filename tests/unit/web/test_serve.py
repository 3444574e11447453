"""Whatever keeps the dashboard from being served is reported in one line, before anything is done; and the report is one file."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from floodmark.cli import monitoring as commands
from floodmark.cli.main import main
from floodmark.config.load import Config
from floodmark.model.errors import ConfigError
from floodmark.web.serve import check_store, listen, read_token, report, serve
from tests.support.dashboards import HOSTILE, Filled, every_health


def never(address: str) -> None:
    raise AssertionError(f"it listens at {address}")


def plain(text: str) -> str:
    return text


def test_a_port_in_use_is_reported_with_a_free_one(config: Config) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use") as refused:
            serve(config, plain, never, port=port)
        assert refused.value.hint == f"use another one: floodmark serve --port {port + 1}"


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", socket.gethostname()])
def test_other_machines_need_a_token(config: Config, host: str) -> None:
    with pytest.raises(ConfigError, match="lets other machines in, which requires a token"):
        serve(config, plain, never, host=host)


@pytest.mark.parametrize("text", ["", "short", "\n\n", "fifteen-letters"])
def test_a_short_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        read_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="can't be read"):
        read_token(tmp_path / "nothing")


def test_the_token_is_the_files_first_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-some-length\nand a remark\n")
    assert read_token(tmp_path / "token").is_it("a-token-of-some-length")


def test_a_missing_store_is_reported(config: Config) -> None:
    check_store(config)
    Path(config.store.url).rmdir()
    with pytest.raises(ConfigError, match="there is no store"):
        serve(config, plain, never, port=0)


def test_a_missing_extra_is_reported_in_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "NEEDED", ("starlette", "floodmark_no_such_package"))
    for line in (["serve"], ["report", "-o", "x.html"], ["demo", "--serve"]):
        assert main(line) == 2
        said = capsys.readouterr().err.splitlines()
        assert said == [
            "floodmark: the dashboard needs floodmark_no_such_package",
            "  pip install 'floodmark[web]'",
        ]


def test_the_report_is_one_file_that_needs_nothing_else(
    config: Config, filled: Filled, tmp_path: Path
) -> None:
    every_health(filled)
    for name in HOSTILE:
        filled.table(name)
    document = report(config, tmp_path / "report.html", plain)
    text = (tmp_path / "report.html").read_text()
    assert document["tables"] == len(HOSTILE) + 7
    assert not re.findall(r"<(?:script|link|img|iframe)\b|<[^>]* (?:src|action)=[\"']|url\(|@import", text)
    targets = set(re.findall(r'href="([^"]+)"', text))
    assert targets and all(target[0] == "#" and f'id="{target[1:]}"' in text for target in targets)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_report_that_can_not_be_written_leaves_nothing(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        report(config, tmp_path / "no" / "report.html", plain)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="can't be written"):
        report(config, tmp_path / "taken", plain)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
