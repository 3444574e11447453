"""`pack`: Floodmark and its packages in one archive, for a Spark whose machines have none of them.

The archive has two parts: `packages/`, and `bin/python`, a script that runs the machine's own Python with them.
It holds no link and no absolute path, so Spark can unpack it anywhere, as .tar.gz or .zip. pyspark stays out: the
cluster's own is the right one. Compiled packages fit one Python version and one kind of machine; the script
refuses any other.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import floodmark
from floodmark.host.temp import is_own, whole_file
from floodmark.model.errors import ConfigError
from floodmark.model.text import counted, size

JOB = "floodmark_job.py"
# Extras that a sync on a cluster may need; the others are for other machines.
EXTRAS = frozenset({"ed25519", "notify"})
LEVEL = 6  # of compression
LEFT_TO_SPARK = {"pyspark", "py4j"}
# Members get one time, so that equal contents make equal archives; zip knows none before 1980.
_TIME = (1980, 1, 1, 0, 0, 0)
_SECONDS = 315_532_800
# Needed for building or testing packages, not for running them. Nothing reads Arrow Flight.
_UNUSED = re.compile(
    r"(^|/)(__pycache__|tests|include)/|\.(c|pxd|pxi|pyx|a|dist-info/RECORD)$|(^|/)(_flight|libarrow_flight|libarrow_python_flight)\."
)
_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?[^;]*(?:;(.*))?$", re.DOTALL)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")

# What an archive is known by: its script, which is the first of a tar's members.
_LAUNCHER = "bin/python"
_MADE = b"Made by `floodmark pack`"
_SHORT = 4096

LAUNCHER = """#!/bin/sh
# Made by `floodmark pack`: this machine's Python {python}, with the packages of this archive.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 2
refuse() {{
    echo "Floodmark's archive is for Python {python} on {system} {machine}, but $1" >&2
    exit 2
}}
there="$(uname -s) $(uname -m)"
[ "$there" = "{system} {machine}" ] || refuse "this machine is $there: run \\`floodmark pack\\` on one like it"
for python in ${{FLOODMARK_PYTHON:-}} python{python} /usr/bin/python{python} /usr/local/bin/python{python} python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {version})' 2>/dev/null; then
        PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}"
        export PYTHONPATH PYTHONSAFEPATH=1
        exec "$python" "$@"
    fi
done
found=$(python3 --version 2>/dev/null) || found="no Python"
refuse "this machine has $found: install Python {python}, or set spark.executorEnv.FLOODMARK_PYTHON to its path"
"""

JOB_TEXT = '''"""Floodmark under spark-submit: `spark-submit --master … floodmark_job.py --config floodmark.yaml sync --all`.

The submitted Spark is used, with its master and settings; the exit code is Floodmark's.
"""

import sys

if __name__ == "__main__":
    try:
        from floodmark.cli.main import main
    except ImportError as error:
        print(f"floodmark: {sys.executable} lacks what Floodmark needs: {error}", file=sys.stderr)
        print("  install it there, or name another Python: spark.pyspark.driver.python", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(main())
'''


@dataclass(frozen=True)
class Platform:
    """What an archive's compiled packages fit: `3.11`, `Linux`, `x86_64`."""

    python: str
    system: str
    machine: str

    @classmethod
    def here(cls) -> Platform:
        return cls("{}.{}".format(*sys.version_info), platform.system(), platform.machine())

    def launcher(self) -> str:
        """The script `bin/python`."""
        version = "({}, {})".format(*self.python.split("."))
        return LAUNCHER.format(python=self.python, system=self.system, machine=self.machine, version=version)


@dataclass(frozen=True)
class PackedArchive:
    """The archive that was made."""

    archive: Path
    bytes: int
    target: Platform | None  # None: pure Python, for any machine
    packages: Mapping[str, str]
    compiled: bool
    job: Path

    def as_json(self) -> dict[str, Any]:
        target = asdict(self.target) if self.target else dict.fromkeys(("python", "system", "machine"))
        made = {"ok": True, "archive": str(self.archive), "bytes": self.bytes, **target}
        return {**made, "packages": dict(self.packages), "compiled": self.compiled, "job": str(self.job)}

    def lines(self) -> list[str]:
        """What the user sees: what was made, and the options of spark-submit for it."""
        what = f"Wrote {self.archive} ({size(self.bytes)}): Floodmark {self.packages['floodmark']}"
        if self.target is None:
            return [
                f"{what}, without its packages",
                f"  spark-submit --py-files {self.archive} {self.job} sync --all",
            ]
        others = counted(len(self.packages) - 1, "package")
        reader = "" if self.compiled else ", without the compiled row reader: syncs are up to a third slower"
        return [
            f"{what} and {others} for Python {self.target.python} on {self.target.system} {self.target.machine}{reader}",
            f"  spark-submit --archives {self.archive}#floodmark --conf spark.pyspark.python=./floodmark/bin/python \\",
            f"    --conf spark.pyspark.driver.python={sys.executable} {self.job} sync --all",
        ]


def pack(output: Path, code_only: bool = False, target: Platform | None = None) -> PackedArchive:
    """Writes the archive, and floodmark_job.py beside it unless there is one; raises ConfigError."""
    zipped = check_name(output, code_only)
    job = output.absolute().parent / JOB
    if os.path.lexists(output) and not is_archive(output):
        raise _refused(output)
    if os.path.lexists(job) and job.lstat().st_uid not in (os.getuid(), 0):
        raise _refused(job)  # spark-submit would run it
    ours = dict(_own_files())
    # Python loads no compiled code from a zip on its path; what it could not load, it must not find there.
    pure = {name: path for name, path in ours.items() if path.suffix != ".so"}
    packages, made_for = {"floodmark": floodmark.__version__}, None
    members: dict[str, Path | str] = {**pure}
    if not code_only:
        made_for = target or Platform.here()
        members = {f"packages/{name}": path for name, path in ours.items()}
        members[_LAUNCHER] = made_for.launcher()
        for one in needed("floodmark", EXTRAS, distribution):
            packages[one.name] = one.version
            members.update((f"packages/{name}", path) for name, path in _files(one))
    with _written(output) as part:
        (_zip if zipped else _tar)(part, members)
    if not os.path.lexists(job):
        with _written(job) as part:
            part.write_text(JOB_TEXT, encoding="utf-8")
    compiled = not code_only and len(pure) < len(ours)
    return PackedArchive(output, output.stat().st_size, made_for, packages, compiled, job)


def check_name(output: Path, code_only: bool) -> bool:
    """Whether the archive is a zip, by its name; raises ConfigError for a kind that Spark does not take."""
    if output.suffix == ".zip":
        return True
    if code_only:
        raise ConfigError(f"{output.name} is for --py-files, which takes a .zip", hint="-o floodmark.zip")
    if output.name.endswith((".tar.gz", ".tgz")):
        return False
    raise ConfigError(
        f"{output.name} is not a kind of archive that Spark unpacks",
        hint="-o floodmark.tar.gz or floodmark.zip",
    )


def needed(name: str, extras: frozenset[str], find: Callable[[str], Distribution]) -> list[Distribution]:
    """The installed packages that `name` requires, and theirs, without Spark's; raises ConfigError if one is missing."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras, True)]
    while waiting:
        name, extras, must = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in LEFT_TO_SPARK or (key, extras) in seen:
            continue
        seen.add((key, extras))
        try:
            one = find(name)
        except PackageNotFoundError:
            if must:
                raise ConfigError(
                    f"the package {name} is not installed", hint="pip install floodmark"
                ) from None
            continue
        if key != "floodmark":
            found[key] = one
        waiting += _required(one.requires or (), extras)
    return [found[key] for key in sorted(found)]


def _required(lines: Iterable[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str], bool]]:
    """Names and extras; the flag is off where a condition may be why a package is not installed here."""
    for line in lines:
        if (read := _REQUIREMENT.match(line)) is None:
            continue
        marker = read[3] or ""
        if (wanted := _EXTRA.findall(marker)) and not extras & set(wanted):
            continue
        inner = frozenset(part.strip() for part in (read[2] or "").split(",") if part.strip())
        yield read[1], inner, not marker


def _own_files() -> Iterator[tuple[str, Path]]:
    """This package's files, wherever it was imported from: a development install lists none."""
    folder = Path(floodmark.__file__).parent
    for path in sorted(folder.rglob("*")):
        name = f"floodmark/{path.relative_to(folder).as_posix()}"
        if path.is_file() and not _UNUSED.search(name):
            yield name, path


def _files(one: Distribution) -> Iterator[tuple[str, Path]]:
    if one.files is None:
        raise ConfigError(
            f"there is no list of the installed files of {one.name}",
            hint="run pack in a virtual environment created with pip: pip install floodmark",
        )
    for file in one.files:
        path = Path(str(one.locate_file(file)))
        name = file.as_posix()
        # Scripts and manual pages lie outside the folder of the packages.
        if not name.startswith(("../", "/")) and not _UNUSED.search(name) and path.is_file():
            yield name, path


# ---------------------------------------------------------------- writing


def is_archive(path: Path) -> bool:
    """Whether this is an archive of this user's that `pack` has written: nothing else is replaced."""
    if not is_own(path):
        return False
    try:
        if path.suffix != ".zip":
            with tarfile.open(path) as tar:
                first = tar.next()
                launcher = tar.extractfile(first) if first and first.name == _LAUNCHER else None
                return launcher is not None and _MADE in launcher.read(_SHORT)
        with zipfile.ZipFile(path) as zipped:
            names = zipped.namelist()
            if _LAUNCHER in names:
                return _MADE in zipped.open(_LAUNCHER).read(_SHORT)
            return "floodmark/setup/pack.py" in names and all(n.startswith("floodmark/") for n in names)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error):
        return False


def _refused(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} exists, and `floodmark pack` did not write it",
        hint="remove it, or name another file with -o",
    )


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file to write that takes its place only when it is whole, and only that of our own archive; raises ConfigError."""
    try:
        with whole_file(path, os.path.lexists(path), "-o names the file to write") as part:
            yield part
            part.chmod(0o644)  # the cluster's users read it, and it holds no secret
    except FileExistsError:
        raise _refused(path) from None


def _contents(members: Mapping[str, Path | str]) -> Iterator[tuple[str, bytes, int]]:
    for name in sorted(members):
        what = members[name]
        if isinstance(what, str):
            yield name, what.encode(), 0o755
        else:
            yield name, what.read_bytes(), 0o755 if os.access(what, os.X_OK) else 0o644


def _tar(to: Path, members: Mapping[str, Path | str]) -> None:
    with (
        to.open("wb") as file,
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data, mode in _contents(members):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, _SECONDS
            archive.addfile(entry, io.BytesIO(data))


def _zip(to: Path, members: Mapping[str, Path | str]) -> None:
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        for name, data, mode in _contents(members):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16  # Unix, a file
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, LEVEL)
