"""The command under a Python with all our packages but pyspark, or with a pyspark of another version."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import floodmark

PACKAGES = Path(sysconfig.get_path("purelib"))


def without_spark(folder: Path, version: str | None = None) -> list[str]:
    """The command line up to Floodmark's arguments; `version`: of a pyspark that is there but too old to be of use."""
    packages = folder / "packages"
    packages.mkdir()
    for each in PACKAGES.iterdir():
        if not each.name.lower().startswith(("pyspark", "py4j")):
            (packages / each.name).symlink_to(each)
    if version is not None:
        (packages / "pyspark").mkdir()
        (packages / "pyspark" / "__init__.py").write_text("raise AssertionError('imported')\n")
        (packages / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')
    places = [str(packages), str(Path(floodmark.__file__).parents[1])]
    script = folder / "command.py"
    script.write_text(
        f"import sys; sys.path[:0] = {places!r}\nfrom floodmark.cli.main import main\nraise SystemExit(main())\n"
    )
    return [sys.executable, "-S", str(script)]  # without the folder of the packages themselves


def ran(command: list[str], where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], cwd=where, capture_output=True, text=True, timeout=120)
