"""Temporary folders of killed processes are swept, those of living ones are not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from floodmark.host.temp import scratched


def test_leftovers_of_a_killed_process_are_removed_and_files_in_use_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = os.fork()
    if not process:
        os._exit(0)
    os.waitpid(process, 0)
    left, used, fresh = (
        tmp_path / f"floodmark-load-{name}" for name in (f"{process}-a", f"{os.getppid()}-a", f"{process}-b")
    )
    for folder in (left, used, fresh):
        folder.mkdir()
        (folder / "000000.parquet").write_bytes(b"x")
    for folder in (left, used):
        os.utime(folder, (0, 0))
    with scratched("floodmark-load-") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        # A child of the killed process may still be starting in a fresh one.
        assert not left.exists() and used.exists() and fresh.exists()
    assert not folder.exists()
