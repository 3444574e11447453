"""Private temporary folders that bear the number of their process, so that a killed one's are found and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def scratch(prefix: str) -> Path:
    """A fresh folder for this user only; removes those of the same prefix whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _alive(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
