"""The other Pythons of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def python(version: str) -> str | None:
    """A Python of that version that runs, on the PATH or among pyenv's; None if there is none."""
    own = sorted(map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}")))
    for each in filter(None, (shutil.which(f"python{version}"), *own)):
        if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return each
    return None
