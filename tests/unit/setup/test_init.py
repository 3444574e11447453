"""The first configuration: what becomes of a URL, and the file that is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.config.load import load
from floodmark.model.errors import ConfigError
from floodmark.setup.init import EXAMPLE, ListedTable, initial, text, understood
from floodmark.source.binlog.fitness import Fitness, LogFinding


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYSQL_PASSWORD", raising=False)
    monkeypatch.setenv("DB_PASSWORD", "from the environment")


@pytest.mark.parametrize(
    ("url", "written", "variable", "password"),
    [
        ("mysql://me:a%40b@h:3307/d", "mysql://me:${MYSQL_PASSWORD}@h:3307/d", "MYSQL_PASSWORD", "a@b"),
        ("mysql://me:a@b@h", "mysql://me:${MYSQL_PASSWORD}@h", "MYSQL_PASSWORD", "a@b"),
        (
            "mysql://me:${DB_PASSWORD}@h/d",
            "mysql://me:${DB_PASSWORD}@h/d",
            "DB_PASSWORD",
            "from the environment",
        ),
        ("mysql://me@h/d", "mysql://me@h/d", None, ""),
        (
            "mysql://me:x@/d?socket=/run/s",
            "mysql://me:${MYSQL_PASSWORD}@/d?socket=/run/s",
            "MYSQL_PASSWORD",
            "x",
        ),
    ],
)
def test_a_password_becomes_a_variable(url: str, written: str, variable: str | None, password: str) -> None:
    given = understood(url)
    assert (given.written, given.variable, given.spec.password) == (written, variable, password)


def test_a_variable_for_the_whole_url_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", "mysql://me:pw@h/d")
    given = understood("${SOURCE}")
    assert (given.written, given.variable, given.spec.host) == ("${SOURCE}", "SOURCE", "h")


def test_a_variable_with_the_password_is_used_when_the_url_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", "known")
    given = understood("mysql://me@h/d")
    assert (given.written, given.spec.password) == ("mysql://me:${MYSQL_PASSWORD}@h/d", "known")


@pytest.mark.parametrize(
    "url", ["", "me@h/d", "pg://me:secret@h/d", "mysql://h/d", "mysql://me:secret@h:x/d"]
)
def test_an_invalid_source_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        understood(url)
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


def test_the_file_can_be_read_whatever_the_tables_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    tables = (
        ListedTable("shop.orders", "upsert, about 3 rows", ("a remark: with a colon",)),
        ListedTable("shop.odd: #name", "full", cursor="date changed"),
        ListedTable('shop.qu"oted', target="other"),
        ListedTable("shop.bad", error="column x has type y"),
    )
    file = tmp_path / "floodmark.yaml"
    file.write_text(text(EXAMPLE, tables, "here"))
    config = load(file)
    assert config.tables == ("shop.orders", "shop.odd: #name", 'shop.qu"oted')
    assert config.options('shop.qu"oted').target == "other"
    assert config.options("shop.odd: #name").cursor is None
    file.write_text(file.read_text().replace('# cursor: "date changed"', 'cursor: "date changed"'))
    assert load(file).options("shop.odd: #name").cursor == "date changed"
    assert "# can't be copied: column x has type y\n  # shop.bad:" in file.read_text()
    file.write_text(text(EXAMPLE, (), None))
    assert load(file).tables == ()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be written: No such file"):
        initial(tmp_path / "nowhere" / "floodmark.yaml", None, force=False)


def test_the_file_says_what_the_binary_log_lacks_in_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    log = Fitness((LogFinding("no_binlog", "it is off (log_bin)", "set log_bin"),), "")
    file = tmp_path / "floodmark.yaml"
    file.write_text(text(EXAMPLE, (), None, log))
    load(file)
    assert "  # The binary log is not used; it can't be followed (docs/binlog.md):\n" in file.read_text()
    assert "  #   ! it is off (log_bin) → set log_bin\n" in file.read_text()
    assert "could be followed; kept for 30 d (docs/binlog.md)\n" in text(
        EXAMPLE, (), None, Fitness((), "kept for 30 d")
    )
    assert "binary log" not in text(EXAMPLE, (), None)
