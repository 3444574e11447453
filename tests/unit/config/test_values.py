"""The values of the configuration file: YAML's scalars, variables, secrets, URLs, paths, durations, timestamps."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.config.values import duration, timestamp, url
from tests.unit.conftest import SOURCE, Load, mistakes

SECRET = "s3cr:et/@#%41{}'\"&*!"


def test_scalars_mean_what_they_say(read: Load) -> None:
    config = read(
        SOURCE
        + """
spark: {conf: {a: 010, b: 1e3, c: 12:30:00, d: on, e: 1.10}}
tables:
  a.b: {key: [on, no, 2024], where: 1 = 1, target: 0123, exclude: y}
"""
    )
    assert config.spark.conf == {"a": "010", "b": "1e3", "c": "12:30:00", "d": "on", "e": "1.10"}
    options = config.options("a.b")
    assert (options.key, options.where, options.target) == (("on", "no", "2024"), "1 = 1", "0123")
    assert options.exclude == ("y",)


def test_start_may_be_a_date_a_timestamp_or_null_quoted_or_not(read: Load) -> None:
    for written, meant in {
        "2025-03-04": "2025-03-04 00:00:00",
        "2025-03-04 05:06:07": "2025-03-04 05:06:07",
        "2025-03-04T05:06:07.123456": "2025-03-04 05:06:07.123456",
        "'2025-03-04'": "2025-03-04 00:00:00",
        "null": None,
        "~": None,
    }.items():
        assert read(SOURCE + f"defaults: {{start: {written}}}\n").options("a.b").start == meant
    for written in ("", "2025-02-30", "2025-03-04T05:06:07Z", "'null'", "soon", "2025-03-04 25:00:00"):
        assert "defaults.start: is not a timestamp" in mistakes(
            read, SOURCE + f"defaults:\n  start: {written}\n"
        )


def test_null_is_a_choice_for_zero_dates_and_overflow(read: Load) -> None:
    options = read(SOURCE + "defaults: {zero_dates: null, overflow: 'null'}\n").options("a.b")
    assert (options.zero_dates, options.overflow) == ("null", "null")


# variables and secrets


def test_a_missing_variable_is_a_mistake_with_its_path(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    said = mistakes(
        read,
        """
source: {url: "mysql://u:${NOPE}@${ALSO_NOPE}/x", max_connections: "${NOPE}"}
store: {region: "${1X}"}
""",
    )
    assert "source.url: environment variables NOPE, ALSO_NOPE are not set" in said
    assert said.count("source.max_connections") == 1
    assert "store.region: has a ${ without a variable's name" in said


def test_a_doubled_dollar_is_a_literal_one(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "1")
    where = read(SOURCE + "defaults: {where: 'a = $${X} and b = ${X} and c = $5'}\n").options("a.b").where
    assert where == "a = ${X} and b = 1 and c = $5"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_a_secret_in_a_url_is_taken_literally_whatever_it_contains(secret: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", secret)
        found = url("mysql://reader:${SECRET}@db.internal:3307/shop")
    assert (found.user, found.password, found.host, found.port, found.path) == (
        "reader", secret, "db.internal", 3307, "shop",
    )  # fmt: skip


def test_a_secret_cannot_change_the_structure_of_the_file(
    read: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x}\nstore:\n  url: s3://elsewhere")
    config = read(SOURCE + "defaults:\n  where: ${SECRET}\n")
    assert config.options("a.b").where == "x}\nstore:\n  url: s3://elsewhere"


def test_secrets_show_in_no_repr_and_no_error(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    config = read("""
source: {url: "mysql://u:${SECRET}@h/d"}
store: {url: "s3://b", access_key_id: k, secret_access_key: "${SECRET}"}
warehouse: {url: "redshift://u:${SECRET}@h/d"}
""")
    assert config.source.password == config.store.secret_access_key == config.warehouse.password == SECRET
    assert SECRET not in repr(config)
    assert pickle.loads(pickle.dumps(config.source)) == config.source
    for broken in (
        "mysql://u:${SECRET}@h:x/d",
        "postgres://u:${SECRET}@h/d",
        "${SECRET}",
        "mysql://u:${SECRET}@h/d?a=b",
    ):
        assert SECRET not in mistakes(read, f'source: {{url: "{broken}"}}\nstore: {{region: [a]}}\n')


# URLs


def test_literal_urls_are_percent_decoded() -> None:
    found = url("mysql://us%40er:p%2Fw%25@[::1]:3307/my%20shop?socket=/run/my.sock")
    assert (found.user, found.password, found.host, found.port) == ("us@er", "p/w%", "::1", 3307)
    assert (found.path, found.query) == ("my shop", {"socket": "/run/my.sock"})


def test_a_url_may_be_one_variable(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", "mysql://u:p%40@h:3308/d")
    monkeypatch.setenv("WAREHOUSE", "duckdb:////data/w.duckdb")
    config = read('source: {url: "${SOURCE}"}\nwarehouse: {url: "${WAREHOUSE}"}\n')
    assert (config.source.password, config.source.port) == ("p@", 3308)
    assert config.warehouse.path == Path("/data/w.duckdb")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("db.internal", "is not a URL"),
        ("postgres://u@h/d", "not a MySQL URL"),
        ("mysql://h/d", "has no user"),
        ("mysql://u@/d", "has no host"),
        ("mysql://u@h:99999/d", "invalid host or port"),
        ("mysql://u@h:port/d", "invalid host or port"),
        ("mysql://u@h/d/e", "more than one database"),
        ("mysql://u@h/d?ssl=1", "options after ?"),
    ],
)
def test_a_bad_source_url_says_what_is_wrong(read: Load, written: str, said: str) -> None:
    message = mistakes(read, f"source:\n  url: {written}\n")
    assert "source.url: " in message
    assert said in message


def test_a_socket_replaces_the_host(read: Load) -> None:
    source = read("source: {url: 'mysql://u@/d?socket=/run/mysqld.sock'}\n").source
    assert (source.host, source.socket) == ("localhost", "/run/mysqld.sock")


def test_paths_are_relative_to_the_file_and_know_the_home_folder(
    read: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir("/")
    for written, meant in {
        "./lake": tmp_path / "lake",
        "lake/x": tmp_path / "lake/x",
        "/data/lake": Path("/data/lake"),
        "~/lake": Path("/home/me/lake"),
        "file:///data/my%20lake": Path("/data/my lake"),
    }.items():
        assert Path(read(SOURCE + f"store: {{url: {written}}}\n").store.url) == meant
    for written, path in {
        "duckdb:///w.duckdb": tmp_path / "w.duckdb",
        "duckdb:///sub/w.duckdb": tmp_path / "sub/w.duckdb",
        "duckdb:////data/w.duckdb": Path("/data/w.duckdb"),
    }.items():
        assert read(SOURCE + f"warehouse: {{url: '{written}', schema: x}}\n").warehouse.path == path
    for written in (
        "duckdb:///",
        "duckdb:///:memory:",
        "duckdb:w",
        "bigquery://x",
        "redshift://h/d",
        "redshift://u@h",
    ):
        assert "warehouse.url: " in mistakes(read, SOURCE + f"warehouse: {{url: '{written}'}}\n")


# single values


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604_800), ("24h", 86_400), ("30m", 1800), ("30s", 30), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7w", "-1d", "1.5h", "7 d", "7D"])
def test_anything_but_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration(text)


@given(st.datetimes())
def test_every_timestamp_keeps_its_digits(moment: object) -> None:
    assert timestamp(str(moment)) == str(moment)
    assert timestamp(str(moment).replace(" ", "T")) == str(moment)
