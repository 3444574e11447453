"""The JVM of Spark's driver: its command line, its log file, its end.

For a local master the JVM is started directly, with flags for a fast start and an archive of Spark's classes
(`-XX:SharedArchiveFile`) that an earlier JVM has made; every other case goes through `spark-submit`. The JVM
can't outlive this process: it ends when its stdin does. No setting, and so no secret, is on its command line.
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
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from floodmark.host.limits import allow_files
from floodmark.host.process import SAFE_PATH, child_environment
from floodmark.host.retry import Retries
from floodmark.host.temp import cache_folder, is_own, scratch
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, TransientError, short_of
from floodmark.spark import worker_daemon as daemon

JAVA_HINT = "install Java 17 or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
START_SECONDS = 120
# Seconds that a JVM may take to write the archive, and days after which an archive counts as abandoned.
TRAINING_SECONDS = 60
ARCHIVE_DAYS = 90
LOG_BYTES = 10 << 20
# Seconds that a failing JVM may take to write its error report.
REPORT_SECONDS = 1.0
FOLDER = "floodmark-spark-"
# Attempts at a task whose worker was lost. Local masters take the number of retries only from their URL.
ATTEMPTS = 4
# Change this when `prepare` begins to run different things.
TRAINING = "3"

DAEMON = "spark.python.daemon.module"
# Settings for things that a JVM does only on an orderly exit.
_AT_END = ("spark.eventLog.", "spark.extraListeners", "spark.metrics.")
# Settings that only spark-submit can apply, because they must be known before the JVM starts.
_BEFORE_START = (
    "spark.jars", "spark.driver.", "spark.submit.", "spark.files", "spark.archives", "spark.plugins",
)  # fmt: skip
_HARMLESS = {
    "spark.driver.memory", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.maxResultSize",
}  # fmt: skip

# The packages that Spark's launcher opens on Java 17 and later (org.apache.spark.launcher.JavaModuleOptions).
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
# Absolute: executors import this module from an archive that they know by a relative path.
_LOGGING = f"-Dlog4j2.configurationFile={(Path(__file__).absolute().parent / 'log4j2.properties').as_uri()}"


class Jvm:
    """One JVM process. `start` may be interrupted by `stop` from another thread."""

    def __init__(self, settings: Mapping[str, str], log_path: Path, *, training: bool = False) -> None:
        self.settings = settings
        self.log_path = log_path
        self.training = training
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None  # of Spark's temporary files and sockets
        self._archive: Archive | None = None
        self._log_start = 0  # where this JVM's output begins in the log
        self._listens = False  # whether it has started
        self._workers: subprocess.Popen[bytes] | None = None  # the parent of the Python workers
        self._stopped = threading.Event()

    def start(self, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, str]:
        """Starts the JVM and waits until it listens for Py4J: at this port, with this secret; raises ConfigError if it can't."""
        java = find_java()
        allow_files()
        self.folder = scratch(FOLDER)
        where = self.folder / "gateway"
        env = child_environment({"_PYSPARK_DRIVER_CONN_INFO_PATH": str(where), "SPARK_CONNECT_MODE": "0"})
        if is_local(self.settings):
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if self._direct:
            self._archive = Archive(java)
            self.training = self.training or (self._archive.wanted() and not self._stopped.is_set())
            command = direct_command(java, self.settings, self._archive, self.training)
            if self.settings.get(DAEMON) == daemon.MODULE:
                env[daemon.WHERE] = str(self.folder / "daemon")
        else:
            command = submit_command(self.settings, self.folder)
        with open_log(self.log_path) as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # when it closes, the JVM ends, even after a kill -9 of this process
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # Ctrl-C goes to this process only, which then cancels in good order
            )
        meanwhile()
        found = self._wait(where)
        self._listens = True
        if early := env.get(daemon.WHERE):
            # Not sooner: Spark's own start has half a second of work left, as long as the daemon's imports take.
            self._workers = daemon.start_early(early)
            if self._workers is not None and self._stopped.is_set():
                daemon.end(self._workers)
        return found

    def _wait(self, where: Path) -> tuple[int, str]:
        assert self.process is not None
        for _ in Retries(pause=0.01, factor=1, seconds=START_SECONDS):
            if where.exists():
                break
            if self._stopped.is_set():
                self.kill()
                raise Interrupted("stopped while Spark was starting")
            if self.process.poll() is not None:
                raise self._died()
        else:
            self.kill()
            raise TransientError(f"Spark did not start within {START_SECONDS} s", hint=f"see {self.log_path}")
        data = where.read_bytes()
        port, length = struct.unpack("!ii", data[:8])
        return port, data[8 : 8 + length].decode()

    def _died(self) -> FloodmarkError:
        if why := self.shortage():
            return why
        said = last_words(self.said())
        if "UnsupportedClassVersionError" in said or "Unrecognized option" in said:
            return ConfigError("the installed Java is too old for Spark", hint=JAVA_HINT)
        return ConfigError(f"Spark did not start: {said}", hint=f"see {self.log_path}")

    def shortage(self) -> FloodmarkError | None:
        """What the JVM ran out of, if it ended for lack of memory or files; None otherwise."""
        with suppress(subprocess.TimeoutExpired):
            if self.process is not None and self.process.wait(REPORT_SECONDS) is not None:
                return short_of(self.said())
        return None

    def said(self) -> str:
        """What this JVM has written to the log."""
        if self.process is None:
            return ""
        with suppress(OSError), self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read(LOG_BYTES).decode(errors="replace")
        return ""

    @property
    def _direct(self) -> bool:
        """Whether no setting needs spark-submit."""
        elsewhere = map(os.environ.get, ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"))
        special = any(k.startswith(_BEFORE_START) and k not in _HARMLESS for k in self.settings)
        return is_local(self.settings) and not any(elsewhere) and not special

    def stop(self, seconds: float = 10) -> None:
        """Ends the JVM: closes its stdin, and kills it if that isn't enough."""
        self._stopped.set()
        if self.process is not None:
            trains = self.training and self._listens  # else it has loaded too few classes
            if self._direct and not trains and not any(k.startswith(_AT_END) for k in self.settings):
                self.kill()  # nothing it would do on exit is of any use
            archive = self._archive if trains and self.process.poll() is None else None
            if self.process.stdin is not None:
                self.process.stdin.close()
            try:
                self.process.wait(seconds if archive is None else TRAINING_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            if archive is not None:
                archive.keep(whole=self.process.returncode == 0)
        if self._workers is not None:
            daemon.end(self._workers)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """kill -9; the Python workers end when their pipes to the JVM close."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Spark's settings: ours, overridden by the user's."""
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
        f"spark.executorEnv.{SAFE_PATH}": "1",  # workers of a JVM that is not ours get it too
        # Settings whose values its UI and event log hide; Spark's own list lacks passphrases.
        "spark.redaction.regex": "(?i)secret|password|passphrase|token|access[._-]?key",
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Otherwise its ports serve blocks to, and deserialize data from, every process on this machine. Spark
        # generates the secret, except for the single-machine cluster that its own tests use.
        if not master.startswith("local-"):
            ours |= {"spark.authenticate": "true"}
        # Over TCP, every task waits 40 ms for an acknowledgement.
        ours |= {"spark.python.unix.domain.socket.enabled": "true"}
        if other_python(conf) is None:
            ours |= {DAEMON: daemon.MODULE}
    else:
        # An executor's JVM moves no rows: startup time matters, peak speed doesn't.
        ours |= {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    return {**ours, **conf, "spark.master": master}


def other_python(settings: Mapping[str, str]) -> str | None:
    """The Python that the user wants the workers to run, if any."""
    return settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")


def is_local(settings: Mapping[str, str]) -> bool:
    return settings["spark.master"].startswith("local")


def find_java() -> str:
    """The java program that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, but there is no {java}", hint=JAVA_HINT)
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise ConfigError("Java is not installed, and Spark needs it", hint=JAVA_HINT)
    return found


def pyspark_folder() -> Path:
    """The folder of the package pyspark, found without importing it; raises ConfigError."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the package pyspark is not installed, and Spark does the reading",
            hint="pip install 'floodmark[spark]'; on a cluster that has its own Spark, start Floodmark with"
            " spark-submit (docs/cluster.md)",
        )
    return Path(spec.origin).parent


def spark_home() -> Path:
    """The folder of Spark itself: that of the package, unless pyspark is the one of a whole Spark."""
    package = pyspark_folder()
    whole = package.parent.parent
    return whole if not (package / "jars").is_dir() and (whole / "jars").is_dir() else package


def direct_command(
    java: str, settings: Mapping[str, str], archive: Archive, training: bool = False
) -> list[str]:
    """The JVM with Spark's gateway, as spark-submit would start it, without an extra JVM to find that out."""
    memory, classes = f"-Xmx{settings.get('spark.driver.memory', '512m')}", list[str]()
    if training:
        classes = [f"-XX:ArchiveClassesAtExit={archive.part}"]
    elif is_own(archive.path):
        classes = ["-Xshare:auto", f"-XX:SharedArchiveFile={archive.path}"]
    gateway = "org.apache.spark.api.python.PythonGatewayServer"
    return [java, *_options(), memory, *classes, _LOGGING, gateway]


def _options() -> list[str]:
    return [
        "-cp",
        f"{spark_home() / 'jars'}/*",
        # A driver that moves no rows: startup time matters, peak speed doesn't.
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
    """Escapes text for a Java properties file."""
    return "".join(f"\\{c}" if c in "\\:=# !" else f"\\u{ord(c):04x}" if ord(c) < 32 else c for c in text)


class Archive:
    """Spark's classes as written by a JVM on exit, for exactly this Java and this Spark.

    A JVM that finds the archive unfit runs without it, so a wrong guess here only costs time. Writing takes
    seconds, so a run does it only if an earlier run found none: in a container whose files don't outlive it,
    no run pays for an archive that no later run could use.
    """

    def __init__(self, java: str) -> None:
        real = Path(java).resolve()
        times = [str(path.stat().st_mtime_ns) for path in (real, spark_home() / "jars")]
        facts = repr([TRAINING, str(real), *times, *_options()])
        self.path = cache_folder() / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"
        # Containers that share a folder may have equal process ids.
        self.part = self.path.with_name(f"{self.path.name}.{os.uname().nodename}.{os.getpid()}")
        self._mark = self.path.with_suffix(".wanted")

    def wanted(self) -> bool:
        """Whether this run's JVM should write the archive; after a failed attempt no other is made."""
        with suppress(OSError):
            if is_own(self.path):
                return False
            if self._mark.exists():
                return self._mark.read_text() == ""
            self._mark.touch()
        return False

    def keep(self, whole: bool) -> None:
        """Moves what the JVM has written into place, and removes old archives.

        If the JVM had to be killed, the file is not `whole` and is deleted: it is useless, and would keep
        other JVMs from writing a new one.
        """
        with suppress(OSError):
            if not whole or not self.part.exists():
                self.part.unlink(missing_ok=True)
                self._mark.write_text("failed")
                return
            self.part.chmod(0o600)  # whatever the umask: an archive that others can write is not used
            self.part.replace(self.path)
            self._mark.unlink(missing_ok=True)
            for other in self.path.parent.glob("spark-*.jsa*"):
                if other.stat().st_mtime < time.time() - ARCHIVE_DAYS * 86_400:
                    other.unlink()


def open_log(path: Path) -> BinaryIO:
    """Opens the log for appending; starts a new one if it has grown large."""
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(path.name + ".old"))
        return open(path, "ab", opener=lambda p, flags: os.open(p, flags | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise ConfigError(
            f"Spark's log {path} can't be written: {error.strerror}", hint="set XDG_CACHE_HOME"
        ) from None


def last_words(said: str) -> str:
    """The last line of what a JVM has said that tells what went wrong."""
    lines = said.splitlines()
    telling = [
        x.strip() for x in lines if ("rror" in x or "Exception" in x) and not x.startswith(("\t", "    at"))
    ]
    found = telling or [x.strip() for x in lines if x.strip()]
    return found[-1][:300] if found else "it left no message"
