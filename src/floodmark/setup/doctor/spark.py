"""Checks Spark: Java, the version, memory, space for temporary files, and the Python packages where tasks run.

On this machine tasks run under this Python, so checking it is enough. On other machines only a task can tell. That needs
a Spark, with a JVM and a place in the cluster's queue, so it is done only on request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from floodmark.config.load import Config
from floodmark.host.process import child_environment
from floodmark.model.errors import FloodmarkError
from floodmark.model.text import counted, size
from floodmark.setup.doctor import packages
from floodmark.setup.doctor.check import Check, Section, reach
from floodmark.spark.context import Spark
from floodmark.spark.failures import places
from floodmark.spark.jvm import JAVA_HINT, find_java, is_local, settings
from floodmark.spark.pyspark_internals import check_installed, version_text

SECTION = Section("spark")
LEAST_JAVA = 17
JAVA_SECONDS = 10
SPARK_SECONDS = 150.0
ASK_SECONDS = 0.3
# Of one Python worker over any number of rows; rows of a megabyte take more.
WORKER = 200 << 20
DUCKDB = 500 << 20  # what a load of ordinary rows takes; its limit is higher, and it spills
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Each of them encrypts what goes from driver to executors.
_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
)


def examine_engine(config: Config, start: bool) -> Iterator[Check]:
    """What Spark needs with this configuration; with `start`, starts it and asks its executors."""
    conf = settings(config.spark.master, config.spark.conf, "floodmark-doctor")
    master = conf["spark.master"]
    local = is_local(conf)
    java = _java()
    yield java
    spark = _spark(conf)
    yield spark
    yield secrecy(conf)
    if local:
        embedded, driver = config.warehouse.can.embedded, conf.get("spark.driver.memory", "512m")
        yield check_memory(available(), cores(master), driver, embedded)
    else:
        yield check_executors(conf)
        yield from _master(master)
    yield space(Path(conf.get("spark.local.dir", "").split(",")[0] or tempfile.gettempdir()))
    broken = next((one for one in ((java, spark) if start else (spark,)) if one.status == "failure"), None)
    if broken is not None:
        yield from SECTION.skipped("packages", f"see {broken.name}")
    elif start:
        yield from _asked(config)
    elif local:
        yield from _packages_here(conf)
    else:
        said = "only a task can show this: `floodmark doctor --spark` starts one"
        yield from SECTION.skipped("packages", said)


# ---------------------------------------------------------------- Java and Spark


def _java() -> Check:
    try:
        program = find_java()
        done = _ran(program, "-version")
    except FloodmarkError as error:
        return SECTION.failed("Java", error)
    except (OSError, subprocess.TimeoutExpired) as error:
        return SECTION.failure("Java", f"java can't be run: {error}", JAVA_HINT)
    return java(done.stderr or done.stdout, program)


def _ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=JAVA_SECONDS, check=False, env=child_environment()
    )


def java(said: str, program: str) -> Check:
    """What `java -version` says."""
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)
    if found is None:
        wrong = f"{program} does not report a version: {said.strip()[:100]}"
        return SECTION.failure("Java", wrong, JAVA_HINT)
    if int(found[1]) < LEAST_JAVA:
        wrong = f"{program} is Java {found[1]}, but Spark needs {LEAST_JAVA} or newer"
        return SECTION.failure("Java", wrong, JAVA_HINT)
    return SECTION.ok("Java", f"{found[0].split(chr(34))[1]}, {program}")


def _spark(conf: Mapping[str, str]) -> Check:
    try:
        check_installed()
        ours = version_text()
    except FloodmarkError as error:
        return SECTION.failed("Spark", error)
    wrong, home = None, os.environ.get("SPARK_HOME")
    if home and (release := Path(home) / "RELEASE").is_file():
        other = re.search(r"Spark (\S+)", release.read_text(errors="replace"))
        if other and other[1] != ours:
            wrong = f"SPARK_HOME is Spark {other[1]}, but the package pyspark is {ours}"
    hint = "unset SPARK_HOME, or install pyspark in the same version"
    return SECTION.check("Spark", f"{ours}, master {conf['spark.master']}", wrong, hint)


def secrecy(conf: Mapping[str, str]) -> Check:
    """Whether others can read what is sent to tasks. Spark's own files may enable encryption too; they are not read."""

    def on(*names: str) -> bool:
        return any(conf.get(name, "").lower() == "true" for name in names)

    if is_local(conf):
        wrong = (
            "spark.authenticate is off: any process on this machine can connect to Spark's ports and run code"
        )
        safe, fine = on("spark.authenticate"), "Spark's ports answer only to this run"
        return SECTION.check("secrecy", fine, None if safe else wrong, "remove it from spark.conf")
    lacking = [] if on("spark.authenticate") else ["spark.authenticate"]
    lacking += [] if on(*_ENCRYPTED) else ["spark.network.crypto.enabled"]
    what = f"tasks carry passwords and keys, but spark.conf lacks {' and '.join(lacking)}"
    return SECTION.check(
        "secrecy",
        "what is sent to tasks is encrypted, and only this application's processes can read it",
        f"{what}: anyone who reaches Spark's ports can read them" if lacking else None,
        "set them (docs/cluster.md), unless Spark's own configuration does",
    )


def _master(master: str) -> Iterator[Check]:
    """Whether a standalone master can be reached; where YARN's or Kubernetes' is, only Spark knows."""
    if master.startswith("spark://"):
        for host, port in places(master)[:1]:
            yield from reach(SECTION, host, port, "master")


# ---------------------------------------------------------------- memory and space


def amount(text: str) -> int | None:
    """Spark's `512m` or `2g` in bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", text.lower())
    return int(found[1]) * _UNITS[found[2]] if found else None


def available() -> int | None:
    """Free memory of this machine, or of the container that this process runs in."""
    free: list[int] = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=None)


def cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    found = re.match(r"local\[(\d+|\*)", master)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(found[1]) if found and found[1] != "*" else here if found else 1


def check_memory(free: int | None, tasks: int, driver: str, duckdb: bool) -> Check:
    """This machine's free memory against what a sync needs here."""
    need = (amount(driver) or 512 << 20) + tasks * WORKER + (DUCKDB if duckdb else 0)
    what = f"about {size(need)} for {counted(tasks, 'parallel task')}"
    if free is None:
        return SECTION.ok("memory", f"{what}; free memory unknown")
    wrong = f"{what}, but only {size(free)} is free" if free < need else None
    hint = "use fewer tasks (spark: {master: local[1]}), or free some memory"
    return SECTION.check("memory", f"{what}; {size(free)} free", wrong, hint)


def check_executors(conf: Mapping[str, str]) -> Check:
    """An executor's memory for Python workers, which run outside its JVM."""
    heap = amount(conf.get("spark.executor.memory", "1g")) or 1 << 30
    factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.1"))
    beside = amount(conf.get("spark.executor.memoryOverhead", "")) or max(384 << 20, int(heap * factor))
    beside += amount(conf.get("spark.executor.pyspark.memory", "")) or 0
    tasks = int(conf.get("spark.executor.cores", "1") or 1)
    need = tasks * WORKER
    what = f"about {size(need)} outside the JVM for {counted(tasks, 'task')} per executor"
    enforced = conf["spark.master"].startswith(("yarn", "k8s"))
    wrong = f"{what}, but an executor has only {size(beside)}: it would be killed"
    hint = f"set spark.executor.memoryOverhead: {need >> 20}m in spark.conf"
    fine = f"{what}; an executor has {size(beside)}"
    return SECTION.check("memory", fine, wrong if enforced and beside < need else None, hint)


def space(folder: Path) -> Check:
    """Where tasks and loads put their temporary files."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        wrong = f"{folder} is not a folder that this user can write to"
        return SECTION.failure("temp files", wrong, "set TMPDIR, or spark.local.dir")
    return SECTION.space("temp files", folder, str(folder), "free some space, or set TMPDIR to a larger disk")


# ---------------------------------------------------------------- Python packages


def check_packages(ours: Mapping[str, Any], theirs: Iterable[Mapping[str, Any]]) -> Iterator[Check]:
    """The tasks' Python and packages against these; one check for each host that differs, or one for all."""
    seen = {str(one["host"]): one for one in theirs}
    good = True
    for host, one in seen.items():
        wrong = [f"{name} can't be imported ({why})" for name, why in one["missing"].items()]
        wrong += [
            f"{name} {version}, here {ours['packages'].get(name)}"
            for name, version in one["packages"].items()
            if version != ours["packages"].get(name)
        ]
        if one["python"].split(".")[:2] != ours["python"].split(".")[:2]:
            wrong.insert(0, f"Python {one['python']}, here {ours['python']}")
        if wrong:
            good = False
            yield SECTION.failure(
                "packages",
                f"tasks on {host}: {'; '.join(wrong)}",
                "install the same versions there, or name the right Python in spark.conf's spark.pyspark.python",
            )
        elif not one["compiled"]:
            yield SECTION.warning(
                "packages",
                f"tasks on {host} have no compiled row reader: syncs are correct, but up to a third slower",
                "install Floodmark there with a C compiler (Debian: gcc, python3-dev), not as a zip",
            )
    if good:
        listed = ", ".join(f"{name} {version}" for name, version in ours["packages"].items())
        yield SECTION.ok("packages", f"Python {ours['python']}, {listed}; tasks on {', '.join(sorted(seen))}")


def check_tasks(answers: Sequence[Mapping[str, Any]]) -> Check:
    """How many tasks really ran, and where."""
    hosts = Counter(str(one["host"]) for one in answers)
    executors = {(one["host"], one["parent"]) for one in answers}
    ran = f"{counted(hosts.total(), 'task')} ran in {counted(len(executors), 'executor')}"
    where = ", ".join(f"{host} {number}" for host, number in sorted(hosts.items()))
    return SECTION.ok("tasks", f"{ran} on {counted(len(hosts), 'host')}: {where}")


def _packages_here(conf: Mapping[str, str]) -> Iterator[Check]:
    """Tasks on this machine run under this Python, or the configured one."""
    named = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    theirs = packages.tell()
    if shutil.which(named) != shutil.which(sys.executable):
        try:
            done = _ran(named, packages.__file__)
            done.check_returncode()
            theirs = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            wrong = f"the tasks' Python, {named}, can't be run: {error}"
            yield SECTION.failure("packages", wrong, "correct spark.pyspark.python or PYSPARK_PYTHON")
            return
    yield from check_packages(packages.tell(), [theirs])


def asker() -> Callable[[Iterable[int]], list[dict[str, Any]]]:
    """A task that reports its packages. It carries the source text: our own modules may be missing there."""
    text, seconds = Path(packages.__file__).read_text(), ASK_SECONDS

    def run(_: Iterable[int]) -> list[dict[str, Any]]:
        scope: dict[str, Any] = {"__name__": "told"}
        exec(text, scope)
        time.sleep(seconds)  # or one quick core would answer for all
        return [scope["tell"]()]

    return run


def _asked(config: Config) -> Iterator[Check]:
    """Starts Spark and has a few tasks report their packages."""
    spark = Spark(config.spark.master, config.spark.conf, name="floodmark-doctor")
    try:
        spark.start()
        yield SECTION.ok("start", f"Spark starts and runs {counted(spark.parallelism, 'task')} in parallel")
        answers = spark.answers(asker(), 2 * spark.parallelism)
        yield check_tasks(answers)
        yield from check_packages(packages.tell(), answers)
    except FloodmarkError as error:
        yield SECTION.failed("start", error)
    finally:
        spark.stop()
