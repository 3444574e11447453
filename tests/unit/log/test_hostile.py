"""Hostile input in the store, in names and values, and wherever others have access: pure and on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import printing
from floodmark.cli.logs import JsonLines, TextLines
from floodmark.cli.main import main
from floodmark.cli.options import Settings
from floodmark.cli.progress import PlainProgress
from floodmark.config.file import parse
from floodmark.config.load import StoreSpec, load
from floodmark.load.files import fetch
from floodmark.log.document import commit_path, primary_path
from floodmark.log.fold import Damaged, State
from floodmark.log.log import Log, draft
from floodmark.model import events
from floodmark.model.commit import DataFile, Open
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.secrets import Scrubber
from floodmark.model.text import shown, shown_json
from floodmark.setup.doctor import exposed, in_clear
from floodmark.store.store import MOST_COMMIT, NO_DOCUMENT, Store

NAME = "shop.orders"
STEERING = "a\x1b[2Jb\x9b31mc\rd\ne\u202ef\x7f"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSpec(url=str(tmp_path / "lake")))


def sparse(store: Store, path: str, size: int) -> Path:
    """A sparse file of that many bytes."""
    file = store.local(path)
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        stream.truncate(size)
    return file


# the store


@pytest.mark.parametrize(
    "path", ["pipeline.json", commit_path(NAME, 0), primary_path(NAME), f"leases/{NAME}.json"]
)
def test_a_document_of_many_gigabytes_takes_no_memory(store: Store, path: str) -> None:
    sparse(store, path, 20 << 30)
    tracemalloc.start()
    assert store.get(path) == NO_DOCUMENT
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_pipe_or_a_device_is_not_a_document_and_nothing_waits_for_it(store: Store) -> None:
    file = sparse(store, "pipeline.json", 0)
    file.unlink()
    os.mkfifo(file)
    assert store.get("pipeline.json") == NO_DOCUMENT
    file.unlink()
    file.symlink_to("/dev/zero")
    assert store.get("pipeline.json") == NO_DOCUMENT


def test_a_commit_too_large_to_be_one_is_damage_and_is_named(store: Store) -> None:
    log = Log(store, NAME)
    log.append(State(NAME), draft(State(NAME), Open, "r"))
    sparse(store, commit_path(NAME, 1), 100_000_000)
    with pytest.raises(Damaged, match=r"commit 1 is too large") as damage:
        log.read()
    assert commit_path(NAME, 1) in (damage.value.hint or "")


def test_an_abandoned_log_is_kept_aside_as_a_whole_however_large(store: Store) -> None:
    log = Log(store, NAME)
    log.append(State(NAME), draft(State(NAME), Open, "r"))
    sparse(store, commit_path(NAME, 1), MOST_COMMIT + 5)
    assert log.begin(force=True).n == -1
    kept = {o.path.rpartition("/")[2]: o.bytes for o in store.list("damaged/")}
    assert kept[commit_path(NAME, 1).rpartition("/")[2]] == MOST_COMMIT + 5 and not log.numbers()


def test_a_commit_too_large_to_be_read_is_not_written(store: Store) -> None:
    log = Log(store, NAME)
    commit = draft(State(NAME), Open, "r", note="x" * MOST_COMMIT)
    with pytest.raises(ConfigError, match="would have"):
        log.append(State(NAME), commit)
    assert not log.numbers()


@pytest.mark.parametrize("swapped", ["larger", "endless", "pipe", "other"])
def test_a_data_file_that_was_swapped_is_refused_before_it_is_read(store: Store, swapped: str) -> None:
    path, content = f"data/{NAME}/f.parquet", b"parquet"
    commits = DataFile(path, 1, len(content), hashlib.sha256(content).hexdigest(), 0)
    file = sparse(store, path, 20 << 30)
    if swapped != "larger":
        file.unlink()
    if swapped == "endless":
        file.symlink_to("/dev/zero")
    elif swapped == "pipe":
        os.mkfifo(file)
    elif swapped == "other":
        file.write_bytes(b"parkett")
    with pytest.raises(DataError, match="does not match its commit"):
        fetch(store, [commits], Path("unused"), NAME)


def test_an_oversized_printed_watermark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "floodmark.yaml"
    config.write_text("source: {url: mysql://reader@127.0.0.1:1/shop}")
    with (tmp_path / "f").open("wb") as stream:
        stream.truncate(20 << 30)
    code = main(["watermark", "restore", "-t", NAME, "--file", str(tmp_path / "f"), "--config", str(config)])
    assert code == 2 and "it is too large" in capsys.readouterr().err


# what is shown


def steers(text: str) -> bool:
    return any(not (c.isprintable() or c in "\n\t") for c in text)


def test_control_characters_are_escaped_everywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(STEERING) == "a\\x1b[2Jb\\x9b31mc\\rd\\ne\\u202ef\\x7f"
    assert json.loads(shown_json(json.dumps(STEERING, ensure_ascii=False))) == STEERING
    settings = Settings()
    settings.result({}, lambda _: [STEERING, "second"])
    settings.json = True
    settings.result({"table": STEERING}, list)
    PlainProgress(Scrubber())(events.Noted(STEERING, STEERING))
    for line in printing.error_lines(ConfigError(STEERING, hint=STEERING, table=STEERING)):
        assert not steers(line) and "\n" not in line
    record = logging.LogRecord("floodmark", 30, "", 0, "%s", (STEERING,), None)
    record.table = STEERING
    for form in (TextLines, JsonLines):
        line = form(Scrubber(), lambda: "run", tracebacks=False).format(record)
        assert not steers(line) and "\n" not in line
    out, err = capsys.readouterr()
    assert not steers(out) and not steers(err) and "\\x1b[2J" in out and len(out.splitlines()) == 5
    assert json.loads("\n".join(out.splitlines()[2:])) == {"table": STEERING}


def test_only_the_colours_of_floodmark_itself_reach_a_terminal() -> None:
    assert shown("\x1b[32mok\x1b[0m \x1b[8mhidden", painted=True) == "\x1b[32mok\x1b[0m \\x1b[8mhidden"


def test_an_error_s_line_is_never_endless() -> None:
    told = printing.error_lines(ConfigError("m" * 500_000, hint="h" * 500_000, table="t" * 500_000))
    assert len(told) == 2 and all(len(line) < 2000 for line in told)


# secrets

SPARK = {
    "spark.hadoop.fs.s3a.secret.key": "hadoop-hush",
    "spark.hadoop.fs.s3a.access.key": "hadoop-id-hush",
    "spark.ssl.keyPassword": "ssl-hush",
    "spark.hadoop.fs.s3a.session.token": "token-hush",
    "spark.driver.extraJavaOptions": "-Xss1m -Djavax.net.ssl.trustStorePassword=java-hush -Da=b",
    "spark.executor.memory": "2g",
    "spark.x.token.enabled": "true",
}


def config_file(folder: Path, **sections: Any) -> Path:
    file = folder / "floodmark.yaml"
    file.write_text(json.dumps({"source": {"url": "mysql://reader@127.0.0.1:1/shop"}, **sections}))
    file.chmod(0o600)
    return file


def test_secrets_in_spark_s_settings_are_masked_and_hidden(tmp_path: Path) -> None:
    config = load(config_file(tmp_path, spark={"conf": SPARK}))
    scrub = Scrubber()
    scrub.learn(config)
    said = scrub(json.dumps(SPARK))
    assert "hush" not in said and "2g" in said and "true" in said and "-Da=b" in said
    assert "hush" not in repr(config)


def test_keys_of_the_environment_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-hush-1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-hush-2")
    settings = Settings(config=config_file(tmp_path))
    settings.load()
    assert settings.scrub("env-hush-1 env-hush-2") == "*** ***"


def test_spark_secrets_in_clear_text_are_reported(tmp_path: Path) -> None:
    conf = {**SPARK, "spark.ssl.keyPassword": "${HUSH}"}
    found = in_clear(parse(json.dumps({"spark": {"conf": conf}}))[0])
    assert found == [f"spark.conf.{key}" for key in list(SPARK)[:2] + list(SPARK)[3:5]]


def test_a_configuration_that_others_can_change_and_a_key_that_they_can_read_are_warnings(
    tmp_path: Path,
) -> None:
    for name in ("cert.pem", "key.pem", "id"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o600)
    tls = {"cert": "cert.pem", "key": "key.pem"}
    source = {
        "url": "mysql://reader@127.0.0.1:1/shop", "tls": tls, "ssh": {"host": "bastion", "key": "id"},
    }  # fmt: skip
    file = config_file(tmp_path, source=source)
    assert list(exposed(load(file))) == []
    file.chmod(0o620)
    (tmp_path / "key.pem").chmod(0o640)
    (tmp_path / "id").chmod(0o604)
    told = [f"{check.detail}; {check.hint}" for check in exposed(load(file))]
    assert "other users can change it" in told[0] and f"chmod go-w {file}" in told[0]
    assert "source.tls.key" in told[1] and "source.ssh.key" in told[2] and len(told) == 3
