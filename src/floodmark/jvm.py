"""The JVM that Spark's driver lives in: its command line, its log file, its end.

For a local master the JVM is started directly, with flags for a fast start and an archive of Spark's classes
(`-XX:SharedArchiveFile`) that an earlier one has made; every other case goes through Spark's own `spark-submit`. The
JVM can't outlive this process: it ends when its stdin does. No setting, and so no secret, is on its command line.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from floodmark import daemon
from floodmark.errors import ConfigError, FloodmarkError, Interrupted, TransientError, short_of
from floodmark.limits import allow_files
from floodmark.scratch import cache_folder, scratch

JAVA_HINT = "install Java 17 or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
START_SECONDS = 120
# How long a JVM may take to write its classes down, and after how long what it wrote is taken for forgotten.
TRAINING_SECONDS = 60
ARCHIVE_DAYS = 90
LOG_BYTES = 10 << 20
FOLDER = "floodmark-spark-"
# Attempts of a task whose worker was lost. Local masters know of retries only by their URL.
ATTEMPTS = 4
# To be changed when `prepare` runs other things than before.
TRAINING = "3"

DAEMON = "spark.python.daemon.module"
# Settings of things that a JVM does when it is left to end by itself.
_AT_END = ("spark.eventLog.", "spark.extraListeners", "spark.metrics.")
# Settings that only spark-submit can act on, because they must be known before the JVM runs.
_BEFORE_START = (
    "spark.jars", "spark.driver.", "spark.submit.", "spark.files", "spark.archives", "spark.plugins",
)  # fmt: skip
_HARMLESS = {
    "spark.driver.memory",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.maxResultSize",
}

# What Spark's launcher adds for Java 17 and later (org.apache.spark.launcher.JavaModuleOptions).
_OPENED = [
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
]
# Absolute: executors import this from an archive that they know by a relative path.
_LOGGING = f"-Dlog4j2.configurationFile={(Path(__file__).absolute().parent / 'log4j2.properties').as_uri()}"


@dataclass(frozen=True)
class Gateway:
    """Where the JVM listens for Py4J."""

    port: int
    secret: str


class Jvm:
    """One JVM process. `start` may be interrupted by `stop` from another thread."""

    def __init__(self, settings: Mapping[str, str], log_path: Path, *, training: bool = False) -> None:
        self.settings = settings
        self.log_path = log_path
        self.training = training
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None  # of Spark's temporary files and sockets
        self._archive: Archive | None = None
        self._workers: subprocess.Popen[bytes] | None = None  # the parent of the Python workers
        self._stopped = threading.Event()

    def start(self, meanwhile: Callable[[], None] = lambda: None) -> Gateway:
        """Starts the JVM and waits until it listens; raises ConfigError when it can't."""
        java = find_java()
        allow_files()
        self.folder = scratch(FOLDER)
        where = self.folder / "gateway"
        env = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(where), "SPARK_CONNECT_MODE": "0"}
        if is_local(self.settings):
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if self._direct:
            self._archive = Archive(java)
            self.training = self.training or self._archive.wanted()
            command = direct_command(java, self.settings, self._archive, self.training)
            if self.settings.get(DAEMON) == daemon.MODULE:
                self._workers, more = daemon.start_early(self.folder)
                env |= more
        else:
            command = submit_command(self.settings, self.folder)
        with open_log(self.log_path) as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end is the JVM's end, also after a kill -9 of this process
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # Ctrl-C is for this process, which then cancels in good order
            )
        meanwhile()
        return self._wait(where)

    def _wait(self, where: Path) -> Gateway:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not where.exists():
            if self._stopped.is_set():
                self.kill()
                raise Interrupted("stopped while Spark was starting")
            if self.process.poll() is not None:
                raise self._died()
            if time.monotonic() > deadline:
                self.kill()
                raise TransientError(
                    f"Spark did not start within {START_SECONDS} s", hint=f"see {self.log_path}"
                )
            time.sleep(0.01)
        data = where.read_bytes()
        port, length = struct.unpack("!ii", data[:8])
        return Gateway(port, data[8 : 8 + length].decode())

    def _died(self) -> FloodmarkError:
        said = last_words(self.log_path)
        if why := short_of(said):
            return why
        if "UnsupportedClassVersionError" in said or "Unrecognized option" in said:
            return ConfigError("the installed Java is too old for Spark", hint=JAVA_HINT)
        return ConfigError(f"Spark did not start: {said}", hint=f"see {self.log_path}")

    @property
    def _direct(self) -> bool:
        """Whether nothing asks for what only spark-submit does."""
        elsewhere = any(
            os.environ.get(name) for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
        )
        special = any(k.startswith(_BEFORE_START) and k not in _HARMLESS for k in self.settings)
        return is_local(self.settings) and not elsewhere and not special

    def stop(self, seconds: float = 10) -> None:
        """Ends the JVM: by closing its stdin, and by force when that does not do."""
        self._stopped.set()
        if self.process is not None:
            if self._direct and not self.training and not any(k.startswith(_AT_END) for k in self.settings):
                self.kill()  # nothing that it would do at its end is of use to anybody
            archive = self._archive if self.training and self.process.poll() is None else None
            _ended(self.process, seconds if archive is None else TRAINING_SECONDS)
            if archive is not None:
                archive.keep(whole=self.process.returncode == 0)
        if self._workers is not None:
            daemon.end(self._workers)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """kill -9; the Python workers end with the pipes that they hold to it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ends a process by the end of its stdin, and by force when that does not do."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Spark's settings: ours, overruled by the user's."""
    master = conf.get("spark.master", master)
    if master == "local":
        master = "local[1]"
    if master.startswith("local[") and "," not in master:
        master = f"{master[:-1]},{ATTEMPTS}]"
    ours = {
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.task.killTimeout": "100ms",
        "spark.task.maxFailures": str(ATTEMPTS),
        # In its UI and event log, what settings of these names hold; Spark's own list knows no passphrase.
        "spark.redaction.regex": "(?i)secret|password|passphrase|token|access[._-]?key",
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Else its ports hand blocks to every process of this machine, and deserialize what it sends. Spark makes the
        # secret, but not for the cluster on one machine that its own tests use.
        if not master.startswith("local-"):
            ours |= {"spark.authenticate": "true"}
        # Over TCP every task waits 40 ms for an acknowledgement.
        ours |= {"spark.python.unix.domain.socket.enabled": "true"}
        if other_python(conf) is None:
            ours |= {DAEMON: daemon.MODULE}
    else:
        # An executor's JVM moves no rows: it is short of start-up time, not of peak speed.
        ours |= {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    return {**ours, **conf, "spark.master": master}


def other_python(settings: Mapping[str, str]) -> str | None:
    """The Python that the workers are to run with, where the user has named one."""
    return settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")


def is_local(settings: Mapping[str, str]) -> bool:
    return settings["spark.master"].startswith("local")


def find_java() -> str:
    """The java program that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, and there is no {java}", hint=JAVA_HINT)
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise ConfigError("Java is not installed, and Spark needs it", hint=JAVA_HINT)
    return found


def spark_home() -> Path:
    """The folder of the pyspark package, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the package pyspark is not installed", hint="install floodmark again: pip install floodmark"
        )
    return Path(spec.origin).parent


def direct_command(
    java: str, settings: Mapping[str, str], archive: Archive, training: bool = False
) -> list[str]:
    """The JVM with Spark's gateway in it: what spark-submit would start, minus a JVM just to find that out."""
    options = [*_options(), f"-Xmx{settings.get('spark.driver.memory', '512m')}"]
    if training:
        options.append(f"-XX:ArchiveClassesAtExit={archive.part}")
    elif archive.path.exists():
        options += ["-Xshare:auto", f"-XX:SharedArchiveFile={archive.path}"]
    return [java, *options, _LOGGING, "org.apache.spark.api.python.PythonGatewayServer"]


def _options() -> list[str]:
    return [
        "-cp",
        f"{spark_home() / 'jars'}/*",
        # A driver that moves no rows is short of start-up time, not of peak speed.
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:-UsePerfData",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
    ]


def submit_command(settings: Mapping[str, str], folder: Path) -> list[str]:
    """Spark's own launcher, with the settings in a file that only this user can read."""
    home = os.environ.get("SPARK_HOME") or str(spark_home())
    java_options = " ".join([settings.get("spark.driver.extraJavaOptions", ""), _LOGGING]).strip()
    file = folder / "spark.properties"
    file.touch(mode=0o600)
    written = {**settings, "spark.driver.extraJavaOptions": java_options}
    file.write_text("".join(f"{_escaped(k)}={_escaped(v)}\n" for k, v in written.items()))
    command = [f"{home}/bin/spark-submit", "--properties-file", str(file), "--load-spark-defaults"]
    return [*command, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))]


def _escaped(text: str) -> str:
    """Text for a Java properties file."""
    return "".join(f"\\{c}" if c in "\\:=# !" else f"\\u{ord(c):04x}" if ord(c) < 32 else c for c in text)


class Archive:
    """Spark's classes as a JVM wrote them down at its end, for exactly this Java and this Spark.

    A JVM that finds it unfit goes on without it, so a wrong guess here costs time only. Writing takes seconds, so a
    run does it only where an earlier run has found none: in a container whose files end with it no run ever waits for the next.
    """

    def __init__(self, java: str) -> None:
        real = Path(java).resolve()
        times = [str(path.stat().st_mtime_ns) for path in (real, spark_home() / "jars")]
        facts = repr([TRAINING, str(real), *times, *_options()])
        self.path = cache_folder() / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"
        # Containers that share a folder have the same process ids.
        self.part = self.path.with_name(f"{self.path.name}.{os.uname().nodename}.{os.getpid()}")
        self._mark = self.path.with_suffix(".wanted")

    def wanted(self) -> bool:
        """Whether this run's JVM is to write it; one that has failed to is not followed by others."""
        with suppress(OSError):
            if self.path.exists():
                return False
            if self._mark.exists():
                return self._mark.read_text() == ""
            self._mark.touch()
        return False

    def keep(self, whole: bool) -> None:
        """Puts in its place what the JVM has written, and removes what no JVM has written for long.

        What is not `whole`, of a JVM that had to be killed, goes: no JVM could use it, and none would write another.
        """
        with suppress(OSError):
            if not whole or not self.part.exists():
                self.part.unlink(missing_ok=True)
                self._mark.write_text("failed")
                return
            self.part.replace(self.path)
            self._mark.unlink(missing_ok=True)
            for other in self.path.parent.glob("spark-*.jsa*"):
                if other.stat().st_mtime < time.time() - ARCHIVE_DAYS * 86_400:
                    other.unlink()


def open_log(path: Path) -> BinaryIO:
    """The log, to be appended to; begun anew when it has grown large."""
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(path.name + ".old"))
        return open(path, "ab", opener=lambda p, flags: os.open(p, flags, 0o600))
    except OSError as error:
        raise ConfigError(
            f"Spark's log {path} can't be written: {error.strerror}", hint="set XDG_CACHE_HOME"
        ) from None


def last_words(path: Path) -> str:
    """The last line of the log that says what went wrong."""
    try:
        lines = path.read_bytes()[-8192:].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    telling = [
        x.strip() for x in lines if ("rror" in x or "Exception" in x) and not x.startswith(("\t", "    at"))
    ]
    found = telling or [x.strip() for x in lines if x.strip()]
    return found[-1][:300] if found else "it left no message"
