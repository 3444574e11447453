"""How Spark's JVM is started, without starting one."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from floodmark.config.load import load
from floodmark.host.temp import cache_folder
from floodmark.model.errors import ConfigError, Interrupted, TransientError
from floodmark.spark.jvm import (
    Archive,
    Jvm,
    _escaped,
    direct_command,
    find_java,
    last_words,
    open_log,
    other_python,
    settings,
    submit_command,
)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'Error: no such thing' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return str(program)


def test_local_masters_retry_tasks_and_stay_on_the_loopback() -> None:
    assert settings("local[*]", {}, "x")["spark.master"] == "local[*,4]"
    assert settings("local", {}, "x")["spark.master"] == "local[1,4]"
    assert settings("local[3,2]", {}, "x")["spark.master"] == "local[3,2]"
    assert settings("local[*]", {}, "x")["spark.driver.bindAddress"] == "127.0.0.1"


def test_other_masters_are_left_as_they_are() -> None:
    made = settings("spark://host:7077", {}, "x")
    assert made["spark.master"] == "spark://host:7077"
    assert "spark.driver.host" not in made


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api.internal:6443"])
def test_yarn_and_kubernetes_get_the_master_and_the_settings_of_the_file_by_spark_submit(
    java: str, tmp_path: Path, master: str
) -> None:
    (tmp_path / "floodmark.yaml").write_text(
        f"source: {{url: mysql://u@h/shop}}\nspark:\n  master: {master}\n"
        "  conf: {spark.archives: '/srv/env.tar.gz#environment', spark.pyspark.python: ./environment/bin/python}\n"
    )
    config = load(tmp_path / "floodmark.yaml")
    made = settings(config.spark.master, config.spark.conf, "x")
    assert not Jvm(made, tmp_path / "log")._direct
    assert other_python(made) == "./environment/bin/python"
    assert not {"spark.driver.host", "spark.python.daemon.module"} & made.keys()
    submit_command(made, tmp_path)
    written = (tmp_path / "spark.properties").read_text().splitlines()
    assert f"spark.master={_escaped(master)}" in written
    assert "spark.archives=/srv/env.tar.gz\\#environment" in written
    assert not any(
        line.startswith("spark.submit.deployMode") for line in written
    )  # client is Spark's default


def test_the_users_settings_win() -> None:
    made = settings("local[*]", {"spark.ui.enabled": "true", "spark.master": "local[8,1]"}, "x")
    assert (made["spark.ui.enabled"], made["spark.master"]) == ("true", "local[8,1]")


def test_no_setting_is_on_the_command_line(java: str, tmp_path: Path) -> None:
    made = settings(
        "local[*]", {"spark.hadoop.fs.s3a.secret.key": "s3cret", "spark.driver.memory": "2g"}, "x"
    )
    command = direct_command(java, made, Archive(java))
    assert "s3cret" not in " ".join(command)
    assert "-Xmx2g" in command
    command = submit_command(made, tmp_path)
    assert "s3cret" not in " ".join(command)
    file = tmp_path / "spark.properties"
    assert "s3cret" in file.read_text() and file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("master", "conf", "direct"),
    [
        ("local[*]", {}, True),
        ("local[2]", {"spark.executor.memory": "2g", "spark.driver.memory": "1g"}, True),
        ("local[2]", {"spark.jars.packages": "a:b:1"}, False),
        ("local[2]", {"spark.driver.extraJavaOptions": "-Dx=y"}, False),
        ("spark://host:7077", {}, False),
        ("yarn", {}, False),
    ],
)
def test_settings_that_only_spark_submit_can_apply_are_left_to_it(
    java: str, tmp_path: Path, master: str, conf: dict[str, str], direct: bool
) -> None:
    assert Jvm(settings(master, conf, "x"), tmp_path / "log")._direct is direct


def test_a_different_spark_is_started_by_its_own_launcher(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert Jvm(settings("local[*]", {}, "x"), tmp_path / "log")._direct is False
    assert submit_command(settings("local[*]", {}, "x"), tmp_path)[0] == "/opt/spark/bin/spark-submit"


def test_properties_survive_their_file() -> None:
    assert _escaped("a=b: c\\d") == "a\\=b\\:\\ c\\\\d"
    assert _escaped("x\ny") == "x\\u000ay"


def test_the_class_archive_is_used_when_it_is_there(java: str) -> None:
    made, archive = settings("local[*]", {}, "x"), Archive(java)
    assert not any("SharedArchiveFile" in option for option in direct_command(java, made, archive))
    assert f"-XX:ArchiveClassesAtExit={archive.part}" in direct_command(java, made, archive, training=True)
    archive.part.write_bytes(b"")
    archive.keep(whole=True)
    more = settings("local[2]", {"spark.driver.memory": "2g"}, "y")
    for one in (made, more):
        assert f"-XX:SharedArchiveFile={archive.path}" in direct_command(java, one, Archive(java))


def test_the_class_archive_is_made_by_the_second_run_that_misses_it_and_once(java: str) -> None:
    assert [Archive(java).wanted() for _ in range(3)] == [False, True, True]
    Archive(java).part.write_bytes(b"")
    Archive(java).keep(whole=True)
    assert not Archive(java).wanted()
    Archive(java).path.unlink()  # it is missed again
    assert [Archive(java).wanted() for _ in range(2)] == [False, True]


def test_a_java_that_writes_no_class_archive_is_tried_once(java: str) -> None:
    assert [Archive(java).wanted() for _ in range(2)] == [False, True]
    Archive(java).keep(whole=True)
    assert not Archive(java).wanted()


HALF = """#!/bin/sh
for option in "$@"; do
    case $option in -XX:ArchiveClassesAtExit=*) echo half > "${option#*=}" ;; esac
done
printf '\\0\\0\\0\\1\\0\\0\\0\\0' > "$_PYSPARK_DRIVER_CONN_INFO_PATH.new"
mv "$_PYSPARK_DRIVER_CONN_INFO_PATH.new" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
exec sleep 60
"""


def test_a_partly_written_archive_of_a_killed_jvm_is_not_kept(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(java).write_text(HALF)
    monkeypatch.setattr("floodmark.spark.jvm.TRAINING_SECONDS", 0.1)
    jvm = Jvm(settings("local[*]", {"spark.pyspark.python": "python3"}, "x"), tmp_path / "log", training=True)
    jvm.start()
    assert Archive(java).part.exists()
    jvm.stop()
    assert [path.suffix for path in cache_folder().glob("spark-*")] == [".wanted"]
    assert not Archive(java).wanted()


def test_a_jvm_that_is_stopped_before_it_has_started_is_not_the_one_attempt_at_an_archive(
    java: str, tmp_path: Path
) -> None:
    Path(java).write_text("#!/bin/sh\nexec sleep 60\n")
    assert [Archive(java).wanted() for _ in range(2)] == [False, True]
    jvm = Jvm(settings("local[*]", {"spark.pyspark.python": "python3"}, "x"), tmp_path / "log")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(jvm.start)
        while jvm.process is None:
            time.sleep(0.01)
        jvm.stop()
        with pytest.raises(Interrupted):
            starting.result(10)
    assert jvm.training and jvm.process.poll() is not None
    assert Archive(java).wanted(), "the next run may write it"


def test_stale_archives_are_removed_with_the_next_one(java: str) -> None:
    archive = Archive(java)
    old, young = (archive.path.with_name(f"spark-{name}.jsa") for name in ("old", "young"))
    for path in (old, young, archive.part):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    archive.keep(whole=True)
    assert archive.path.exists() and young.exists() and not old.exists()


def test_a_different_java_has_its_own_archive(java: str) -> None:
    before = Archive(java).path
    assert before.parent == cache_folder()
    os.utime(java, (1, 1))
    assert Archive(java).path != before


def test_without_a_writable_home_only_a_folder_of_the_user_s_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = cache_folder()
    assert made.parent == tmp_path and made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o770)
    with pytest.raises(ConfigError, match="nobody else can write"):
        cache_folder()
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="nobody else can write"):
        cache_folder()
    (tmp_path / "floodmark-12345").mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)  # so somebody else has made it
    with pytest.raises(ConfigError, match="floodmark-12345 is a folder of this user's that nobody else"):
        cache_folder()


def test_a_cache_at_home_that_others_can_write_or_that_is_a_link_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    home = tmp_path / "home" / "floodmark"
    assert cache_folder() == home
    for mode, used in ((0o770, False), (0o702, False), (0o755, True)):
        home.chmod(mode)
        assert (cache_folder() == home) is used
    home.rename(tmp_path / "elsewhere")
    home.symlink_to(tmp_path / "elsewhere")
    assert cache_folder().parent == tmp_path / "tmp"


def test_a_class_archive_or_a_log_that_somebody_else_could_have_put_there_is_not_used(
    java: str, tmp_path: Path
) -> None:
    archive = Archive(java)
    (tmp_path / "theirs.jsa").write_bytes(b"")
    archive.path.symlink_to(tmp_path / "theirs.jsa")
    command = direct_command(java, settings("local[*]", {}, "x"), archive)
    assert not any("SharedArchiveFile" in option for option in command)
    archive.path.unlink()
    archive.path.write_bytes(b"")
    archive.path.chmod(0o620)
    command = direct_command(java, settings("local[*]", {}, "x"), archive)
    assert not any("SharedArchiveFile" in option for option in command)
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "spark.log").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="can't be written"):
        open_log(tmp_path / "spark.log")


def test_a_missing_java_is_reported_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Java is not installed") as caught:
        find_java()
    assert "openjdk-17" in (caught.value.hint or "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        find_java()


def test_a_jvm_that_ends_at_once_is_reported_in_one_line(java: str, tmp_path: Path) -> None:
    jvm = Jvm(settings("local[*]", {}, "x"), tmp_path / "logs" / "spark.log")
    with pytest.raises(ConfigError, match="Spark did not start: Error: no such thing") as caught:
        jvm.start()
    assert str(tmp_path / "logs" / "spark.log") in (caught.value.hint or "")


def test_a_jvm_that_runs_out_of_memory_is_reported_as_such_whatever_it_says_last(
    java: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("Too many open files, said another one\n")
    said = "Error occurred during initialization of VM\nCould not allocate compressed class space: 1073741824 bytes"
    Path(java).write_text(f"#!/bin/sh\necho '{said}\nError: more of it'\nexit 1\n")
    jvm = Jvm(settings("local[1]", {}, "x"), tmp_path / "log")
    try:
        with pytest.raises(TransientError, match="out of memory"):
            jvm.start()
        assert isinstance(jvm.shortage(), TransientError)
        Path(java).write_text("#!/bin/sh\necho 'Error: no such thing'\nexit 1\n")
        with pytest.raises(ConfigError, match="Error: no such thing"):
            jvm.start()
        assert jvm.shortage() is None
    finally:
        jvm.stop()


def test_last_words_are_the_error_and_not_its_stack() -> None:
    said = "fine\njava.lang.Exception: bad thing\n\tat a.b(Error.java)\n\tat c.d\nbye\n"
    assert last_words(said) == "java.lang.Exception: bad thing"
    assert last_words("") == "it left no message"
