"""What all experiments of a laboratory run share: the servers, one JVM with Spark, the process that forks commands.

Each starts when first needed and ends with the laboratory. The source's clock is five hours behind UTC, so that a
bound in the wrong zone is never right by accident.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socketserver
import subprocess
import tempfile
import threading
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.accumulators import AccumulatorUnixServer, UpdateRequestHandler

from floodmark.host.temp import scratch
from floodmark.setup.services.databases import DatabaseServer, chosen
from floodmark.setup.services.process import ServerProcess
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark import jvm
from floodmark.spark.jvm import Jvm
from floodmark.spark.jvm import settings as spark_settings
from tests.support.redshift import RedshiftStandIn

from .spawn import INJECT, Spawner

ROOT = Path(__file__).parents[3]
ZONE = "-05:00"
# Must never appear in anything that a run prints or writes for people.
PASSWORD = "s3cr3t-Of-The-Source"


FOLDER = "floodmark-lab-"


def _give_back() -> None:
    """Unmount the small disks that a killed laboratory may have left; the next `scratch` removes its folder."""
    for line in Path("/proc/mounts").read_text().splitlines():
        where = line.split()[1]
        owner = where.partition(FOLDER)[2].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["umount", where], capture_output=True)


class _Ear(socketserver.ThreadingMixIn, AccumulatorUnixServer):
    """An accumulator server for many drivers at once."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: killing drivers is what the laboratory does."""


class Services:
    """The servers of one laboratory run; a context manager."""

    def __init__(self, source: str | None = None) -> None:
        """`source`: the kind of server that rows come from, `mysql` or `mariadb`."""
        _give_back()
        # The laboratory may run on a very busy machine.
        ServerProcess.patience, jvm.START_SECONDS = 20.0, 1200
        self.scratch = scratch(FOLDER)
        self._kind = chosen(source)
        self.kept: dict[tuple[str, str], Any] = {}  # created once, then reused
        self._stack = ExitStack()

    def __enter__(self) -> Services:
        paths = [str(ROOT / "src"), str(INJECT), os.environ.get("PYTHONPATH", "")]
        self._before = os.environ.get("PYTHONPATH")
        # So that the JVM's Python workers find the laboratory's part of every task.
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._before
        shutil.rmtree(self.scratch, ignore_errors=True)
        for folder in Path(tempfile.gettempdir()).glob("floodmark-*-*-*"):
            if (
                folder.name.split("-")[2] in Spawner.pids
            ):  # left by a killed command for the next one to remove
                shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def server(self) -> DatabaseServer:
        """The source. The user `lab` sees everything; `narrow` does not see who holds which locks."""
        server = self._stack.enter_context(self._kind(default_time_zone=ZONE))
        server.create_user("lab", PASSWORD, "SELECT ON *.*", "PROCESS ON *.*")
        server.create_user("narrow", PASSWORD, "SELECT ON `lab\\_%`.*", "PROCESS ON *.*")
        return server

    @cached_property
    def source(self) -> str:
        """Its name and version, for the results."""
        return self.server.version

    @cached_property
    def seaweed(self) -> SeaweedFS:
        return self._stack.enter_context(SeaweedFS())

    @cached_property
    def redshift(self) -> RedshiftStandIn:
        return self._stack.enter_context(RedshiftStandIn(self.seaweed))

    @cached_property
    def spawner(self) -> Spawner:
        return self._stack.enter_context(Spawner(self.scratch))

    @cached_property
    def spark(self) -> dict[str, Any]:
        """How to reach the shared JVM, for experiments' plans; those with their own JVM don't use it."""
        own = Jvm(spark_settings("local[2]", {}, "floodmark laboratory"), self.scratch / "spark.log")
        self._stack.callback(own.stop)
        port, secret = own.start()
        # After every task the JVM sends accumulator updates to its driver and blocks until it answers: a stopped or
        # dead driver would hold up all others. So the laboratory answers for them.
        ear = self.scratch / "accumulators"
        threading.Thread(target=_Ear(str(ear), UpdateRequestHandler).serve_forever, daemon=True).start()
        conf = {"spark.local.dir": str(own.folder), "spark.python.unix.domain.socket.dir": str(own.folder)}
        return {"port": port, "secret": secret, "conf": conf, "ear": str(ear)}

    def keep_open(self, thing: AbstractContextManager[Any]) -> None:
        """Enter a context that is left when the laboratory ends."""
        self._stack.enter_context(thing)

    def database(self) -> str:
        """A fresh, empty database on the source."""
        name = f"lab_{secrets.token_hex(4)}"
        self.server.execute(f"CREATE DATABASE {name} DEFAULT CHARSET=utf8mb4")
        return name

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret that the servers were given."""
        found = [PASSWORD, DatabaseServer.password, SeaweedFS.writer[1]]
        if "redshift" in self.__dict__:
            found.append(self.redshift.password)
        return tuple(found)
