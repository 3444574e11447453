"""A private Spark standalone cluster on this machine, from the pip package: a master and its workers.

Every process is a separate JVM with its own work folder, started by Spark's `spark-class`, and ends with its parent.
If the machine allows it, folders can be hidden from the workers and so from the executors, as on another machine;
Spark itself is then mounted elsewhere for them. The cluster's settings are in files, so no process list shows them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from floodmark.setup.services.process import HOST, ServerProcess, free_ports
from floodmark.spark.jvm import spark_home

START_SECONDS = 180.0
# For JVMs that live for seconds.
BRIEFLY = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
# Starts a worker: Spark under another path, then the folders to cover with empty ones up to "--", then the worker.
_ELSEWHERE = """set -e
mount -o bind,ro "$1" "$2"; shift 2
until [ "$1" = -- ]; do mount -t tmpfs none "$1"; shift; done; shift
exec "$@"
"""


class _Daemon(ServerProcess):
    """A JVM of the cluster, with a web interface."""

    grace = 5.0
    host = HOST

    def __init__(self, conf: Mapping[str, str], home: Path | None = None) -> None:
        super().__init__()
        self.port, self.web_port = free_ports(2)
        self.home = home or spark_home()
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir()
        self._settings = self.folder / "spark.conf"
        self._settings.touch(mode=0o600)
        self._settings.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))

    def page(self, path: str = "/") -> str:
        """A page of its web interface."""
        with urllib.request.urlopen(f"http://{self.host}:{self.web_port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def state(self) -> dict[str, Any] | None:
        """Its own status, or None while it does not answer."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.page("/json/")))
        return None

    def spark(self, name: str, *args: str) -> list[str]:
        program = str(self.home / "bin" / "spark-class")
        settings = ("--properties-file", str(self._settings))
        return [program, f"org.apache.spark.deploy.{name}", *settings, *args]

    @property
    def env(self) -> dict[str, str]:
        """An environment without ours: a cluster machine has neither our PYTHONPATH nor our settings."""
        ours = {name: "" for name in os.environ if name.startswith(("PYTHON", "FLOODMARK", "AWS_", "MYSQL"))}
        return {
            **ours,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": BRIEFLY,
            "SPARK_LAUNCHER_OPTS": BRIEFLY,
            "HOME": str(self.folder),
            # A killed executor leaves behind what it had fetched.
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._temporary}",
        }


class Master(_Daemon):
    name = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def start(self) -> None:
        ports = ["--port", str(self.port), "--webui-port", str(self.web_port)]
        command = self.spark("master.Master", "--host", HOST, *ports)
        self.launch(command, lambda: self.state() is not None, START_SECONDS, env=self.env)


class Worker(_Daemon):
    name = "spark-worker"

    def __init__(
        self,
        master: Master,
        cores: int,
        memory: str,
        hidden: Sequence[Path],
        conf: Mapping[str, str],
        host: str = HOST,
    ) -> None:
        super().__init__(conf, master.home)
        self.host = host
        self.master, self.cores, self.memory = master, cores, memory
        self.work = self.folder / "work"
        self._elsewhere: list[str] = []
        if hidden and can_hide():
            theirs = self.folder / "spark"
            theirs.mkdir()
            folders = [str(self.home), str(theirs), *map(str, hidden)]
            self._elsewhere = ["unshare", "--mount", "sh", "-c", _ELSEWHERE, "sh", *folders, "--"]
            self.home = theirs

    def start(self) -> None:
        ports = ["--port", str(self.port), "--webui-port", str(self.web_port)]
        size = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.work)]
        command = self.spark("worker.Worker", "--host", self.host, *ports, *size, self.master.url)
        self.work.mkdir(exist_ok=True)
        self.launch([*self._elsewhere, *command], self._registered, START_SECONDS, env=self.env)

    def _registered(self) -> bool:
        known = (self.master.state() or {}).get("workers", [])
        return any(w["port"] == self.port and w["state"] == "ALIVE" for w in known)

    def executors(self) -> list[int]:
        """The process ids of its executors; it also has other, short-lived children."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and b"ExecutorBackend" in (stat.parent / "cmdline").read_bytes():
                    found.append(int(stat.parent.name))
        return found


def can_hide() -> bool:
    """Whether this user may have a private mount namespace: root may, unless in a container."""
    ask = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(ask, capture_output=True).returncode == 0


class SparkCluster:
    """A master and some workers, which don't see the `hidden` folders; a context manager that starts and removes them.

    `home` is another Spark than the installed one. `apart`: each worker has a loopback address of its own, and so is
    another machine to Spark, which never makes a speculative attempt where the first one runs.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "512m",
        hidden: Sequence[Path] = (),
        conf: Mapping[str, str] | None = None,
        home: Path | None = None,
        apart: bool = False,
    ) -> None:
        conf = conf or {}
        self.master = Master(conf, home)
        hosts = [f"127.0.0.{2 + number}" if apart else HOST for number in range(workers)]
        self.workers = [Worker(self.master, cores, memory, hidden, conf, host) for host in hosts]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor() as pool:
            stack.enter_context(self.master)
            for worker in self.workers:
                stack.callback(worker.remove)
            list(pool.map(Worker.start, self.workers))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
