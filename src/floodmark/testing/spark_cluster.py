"""A private Spark standalone cluster on this machine, from the pip package: a master and its workers.

Every process is a JVM of its own with its own work folder, started by Spark's `spark-class`, and ends with its parent.
Where the machine allows it, a folder can be hidden from the workers and so from the executors, as on another machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from floodmark.jvm import spark_home
from floodmark.testing.process import HOST, Server, free_ports

START_SECONDS = 60.0


class _Daemon(Server):
    """A JVM of the cluster, with a web page."""

    grace = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.port, self.web_port = free_ports(2)

    def page(self, path: str = "/") -> str:
        """A page of its web interface."""
        with urllib.request.urlopen(f"http://{HOST}:{self.web_port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def state(self) -> dict[str, Any] | None:
        """What it says of itself, or None while it does not answer."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.page("/json/")))
        return None

    def spark(self, name: str, *args: str) -> list[str]:
        return [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *args]

    @property
    def env(self) -> dict[str, str]:
        """Nothing of ours: a machine of a cluster has neither our PYTHONPATH nor our settings."""
        ours = {name: "" for name in os.environ if name.startswith(("PYTHON", "FLOODMARK", "AWS_", "MYSQL"))}
        return {
            **ours,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            "HOME": str(self.folder),
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

    def __init__(self, master: Master, cores: int, memory: str, hidden: Path | None) -> None:
        super().__init__()
        self.master, self.cores, self.memory, self.hidden = master, cores, memory, hidden
        self.work = self.folder / "work"

    def start(self) -> None:
        ports = ["--port", str(self.port), "--webui-port", str(self.web_port)]
        size = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.work)]
        command = self.spark("worker.Worker", "--host", HOST, *ports, *size, self.master.url)
        self.work.mkdir(exist_ok=True)
        if self.hidden is not None and can_hide():
            empty = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", empty, str(self.hidden), *command]
        self.launch(command, self._registered, START_SECONDS, env=self.env)

    def _registered(self) -> bool:
        known = (self.master.state() or {}).get("workers", [])
        return any(w["port"] == self.port and w["state"] == "ALIVE" for w in known)

    def executors(self) -> list[int]:
        """The process ids of its executors; it has other children too, for a moment each."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and b"ExecutorBackend" in (stat.parent / "cmdline").read_bytes():
                    found.append(int(stat.parent.name))
        return found


def can_hide() -> bool:
    """Whether this user may have a view of the disk of its own: root may, unless in a container."""
    ask = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(ask, capture_output=True).returncode == 0


class SparkCluster:
    """A master and some workers, which don't see the `hidden` folder; a context manager that starts and removes them."""

    def __init__(
        self, workers: int = 2, cores: int = 1, memory: str = "512m", hidden: Path | None = None
    ) -> None:
        self.master = Master()
        self.workers = [Worker(self.master, cores, memory, hidden) for _ in range(workers)]
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
