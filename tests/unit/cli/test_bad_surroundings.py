"""A hostile environment: closed streams, things that are not files, impossible numbers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.config import file as configfile
from floodmark.config.load import load
from floodmark.model.errors import ConfigError, TransientError, bug
from floodmark.model.run import MOST_ROWS, SyncOptions
from floodmark.setup.doctor import secrets
from floodmark.source.errors import UnknownName, as_discovered
from floodmark.store.folder import Folder, translate

SOURCE = "source: {url: mysql://a@b/c}\n"


@pytest.mark.parametrize("arguments", [["plan", "-t", "a.b"], ["plan"], ["watermark", "get"]])
def test_a_log_file_in_a_missing_folder_costs_no_traceback(
    tmp_path: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--log-file", str(tmp_path / "none" / "log"), *arguments]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and said[0].startswith("floodmark: "), said


def test_a_log_file_that_is_a_pipe_without_a_reader_is_refused_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "log")
    assert main(["--log-file", str(tmp_path / "log"), "plan", "-t", "a.b"]) == 2
    assert os.strerror(errno.ENXIO) in capfd.readouterr().err


PRINTING = """
import os, sys
from floodmark.cli.main import main
from floodmark.model.results import WatermarkList
from floodmark.watermark import show
def watermark_list(config, tables):
    with open("opened", "w") as file:
        assert file.fileno() > 2, "a stream's number"
    os.write(1, b"by a library") ; os.write(2, b"by a library")
    return WatermarkList(tables=())
show.watermark_list = watermark_list
sys.argv[1:] = ["watermark", "list", "--config", sys.argv[1]]
main()
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_and_their_descriptors_are_not_reused(
    tmp_path: Path, closed: str
) -> None:
    (tmp_path / "c.yaml").write_text(SOURCE)
    (tmp_path / "c.yaml").chmod(0o600)
    (tmp_path / "printing.py").write_text(PRINTING)
    command = f"{sys.executable} printing.py c.yaml {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "opened").read_text() == ""


def test_a_configuration_may_come_from_a_program_and_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("w") as file:
            time.sleep(0.2)
            file.write(SOURCE)
            file.flush()
            time.sleep(0.2)
            file.write("# the end\n")

    writer = threading.Thread(target=write)
    writer.start()
    config = load(pipe)
    writer.join()
    assert config.source.database == "c" and config.store.url == str(tmp_path / "lake")
    assert list(secrets(config.path)) == [], "nobody writes to it a second time"


def test_paths_in_a_configuration_from_stdin_are_those_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = "from floodmark.config.load import load; c = load(Path(sys.argv[1])); print(c.store.url, c.warehouse.path)"
    for name in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; from pathlib import Path; {seen}", name],
            input=SOURCE, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.stdout.split() == [f"{tmp_path}/lake", f"{tmp_path}/warehouse.duckdb"], done.stderr


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this machine has no /dev/shm")
def test_a_file_in_memory_is_a_file_and_its_folder_is_what_its_paths_are_relative_to() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (file := Path(folder) / "floodmark.yaml").write_text(SOURCE)
        assert load(file).store.url == f"{folder}/lake"


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configfile, "PIPE_SECONDS", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="it is a pipe that sent nothing"):
        load(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["# " + "x" * 5_000_000, "a: " + "[" * 1200 + "]" * 1200])
def test_an_oversized_configuration_is_not_blamed_on_indentation(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "c.yaml")
    assert refused.value.hint == "is it the right file? See --config"


def test_absurd_numbers_of_rows_are_refused_or_capped(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(SOURCE + f"defaults: {{slice_rows: {10**30}}}")
    with pytest.raises(ConfigError, match=r"defaults\.slice_rows: must be at most 1000000000000000"):
        load(tmp_path / "c.yaml")
    asked = SyncOptions(limit=10**30, max_chunks=10**30)
    assert asked.chunk == asked.most == MOST_ROWS
    assert SyncOptions(max_chunks=10**30, slice_rows=MOST_ROWS).most == MOST_ROWS


def test_a_name_that_was_there_a_moment_ago_is_worth_another_try() -> None:
    with (
        pytest.raises(TransientError, match=r"changed while it was being read: no column x \(1054\)"),
        as_discovered(),
    ):
        raise UnknownName("no column x (1054)", hint="check the names")
    with pytest.raises(ConfigError), as_discovered():
        raise ConfigError("no right")


def test_limits_of_the_machine_are_reported_as_such_not_as_bugs() -> None:
    files = bug(OSError(errno.EMFILE, "Too many open files"))
    assert files.code == 2 and "ran out of open files" in files.message and "ulimit -n" in (files.hint or "")
    for error in (MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "")):
        assert bug(error).kind in ("config", "transient") and "bug" not in bug(error).message
    wrapped = ValueError("could not be read")
    wrapped.__cause__ = MemoryError()
    assert bug(wrapped).code in (2, 4)
    assert bug(ValueError("odd")).code == 1


LIMITED = """
import resource, sys
from floodmark.model.errors import FloodmarkError, bug
from floodmark.host.limits import allow_files, check_addresses
name, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(getattr(resource, name), (most // 2, most))
try:
    allow_files()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
    check_addresses()
    held = bytearray(1 << 40)
except FloodmarkError as error:
    print(error.code, error.message)
except Exception as error:
    print(bug(error).code, bug(error).message)
"""


@pytest.mark.parametrize(
    ("name", "most", "said"),
    [
        ("RLIMIT_NOFILE", 64, "2 the limit of 64 open files (ulimit -n) is too low: Spark needs"),
        ("RLIMIT_NOFILE", 1024, "(1024, 1024)"),
        (
            "RLIMIT_AS",
            200 << 20,
            "2 the address-space limit of 100 MB (ulimit -v) is too low: Floodmark needs",
        ),
        (
            "RLIMIT_AS",
            6 << 30,
            "2 this process ran out of address space: its limit is 3,072 MB (ulimit -v)",
        ),
    ],
)
def test_a_process_raises_its_limits_and_reports_those_that_stay_too_low(
    name: str, most: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, name, str(most)], capture_output=True, text=True, timeout=30
    )
    assert said in done.stdout, done.stdout + done.stderr


def test_a_table_name_too_long_for_a_folder_gets_the_hint_to_use_s3(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file name too long") as refused:
        Folder(tmp_path).create(f"commits/shop.{'%C3%BC' * 64}/1.json", b"")
    assert "S3" in (refused.value.hint or "")
    assert "S3" not in (translate(OSError(errno.ENOTDIR, ""), "read", "the store").hint or "")
