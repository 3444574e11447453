"""What all experiments of a laboratory run share: the servers, one JVM with Spark, the process that forks commands.

Each is started when it is first needed and ends with the laboratory. The source's clock is five hours behind UTC,
so that a bound in the wrong zone is never right by chance.
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

from floodmark import jvm
from floodmark.jvm import Jvm
from floodmark.scratch import scratch
from floodmark.spark import settings as spark_settings
from floodmark.testing.databases import DatabaseServer, chosen
from floodmark.testing.process import Server
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.services import SeaweedFS

from .spawn import INJECT, Spawner

ROOT = Path(__file__).parents[3]
ZONE = "-05:00"
# What must never appear in anything that a run printed or wrote down for people.
PASSWORD = "s3cr3t-Of-The-Source"


FOLDER = "floodmark-lab-"


def _give_back() -> None:
    """A laboratory that was killed may have left small disks mounted; its folder goes with the next `scratch`."""
    for line in Path("/proc/mounts").read_text().splitlines():
        where = line.split()[1]
        owner = where.partition(FOLDER)[2].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["umount", where], capture_output=True)


class _Ear(socketserver.ThreadingMixIn, AccumulatorUnixServer):
    """Listens to accumulators, those of many drivers at once."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A driver that is gone is what the laboratory is for."""


class Services:
    """The servers of one laboratory run; a context manager."""

    def __init__(self, source: str | None = None) -> None:
        """`source`: the kind of server that rows come from, `mysql` or `mariadb`."""
        _give_back()
        # The laboratory may be the least of what a machine does.
        Server.patience, jvm.START_SECONDS = 20.0, 1200
        self.scratch = scratch(FOLDER)
        self._kind = chosen(source)
        self.kept: dict[tuple[str, str], Any] = {}  # what was made once, for whoever comes next
        self._stack = ExitStack()

    def __enter__(self) -> Services:
        paths = [str(ROOT / "src"), str(INJECT), os.environ.get("PYTHONPATH", "")]
        self._before = os.environ.get("PYTHONPATH")
        # For the JVM's Python workers, which find the laboratory's part of every task there.
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
            if folder.name.split("-")[2] in Spawner.pids:  # of a killed command, for the next one to remove
                shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def server(self) -> DatabaseServer:
        """Where the rows come from. `lab` sees everything; `narrow` does not see who has locked what."""
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
        """Where the JVM is that experiments share, for their plans; those with a JVM of their own don't ask."""
        own = Jvm(spark_settings("local[2]", {}, "floodmark laboratory"), self.scratch / "spark.log")
        self._stack.callback(own.stop)
        where = own.start()
        # After every task the JVM tells its driver what was added up, and nothing goes on in it until that has
        # answered: a driver that is stopped, or dead, would hold up all others. So the laboratory answers for them.
        ear = self.scratch / "accumulators"
        threading.Thread(target=_Ear(str(ear), UpdateRequestHandler).serve_forever, daemon=True).start()
        conf = {"spark.local.dir": str(own.folder), "spark.python.unix.domain.socket.dir": str(own.folder)}
        return {"port": where.port, "secret": where.secret, "conf": conf, "ear": str(ear)}

    def keep_open(self, thing: AbstractContextManager[Any]) -> None:
        """Begin something that ends with the laboratory."""
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
