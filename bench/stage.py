"""Where the contenders run: private servers, a filled table, and one folder and one store prefix for each run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import ROLES, Usage, Watch, cpu_seconds

from floodmark.setup.services import settlement
from floodmark.setup.services.compare import StandIn, stand_in
from floodmark.setup.services.databases import DatabaseServer
from floodmark.setup.services.s3 import SeaweedFS

HERE = Path(__file__).parent
CONNECTIONS = os.cpu_count() or 2


@dataclass(frozen=True)
class Figure:
    """What one run of one contender took. Seconds are without the process's start where it can tell them."""

    name: str
    rows: int
    seconds: float
    wall: float
    bytes: int
    cpu: float
    servers: float
    peak: int
    peaks: dict[str, int] = field(default_factory=dict)
    steady_cpu: float | None = None  # without the process's start, where it can tell
    cpus: dict[str, float] = field(default_factory=dict)  # CPU seconds by process

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cold_rate(self) -> float:
        return self.rows / self.wall


@dataclass
class Stage:
    """The servers, and what is run against them."""

    db: DatabaseServer
    s3: SeaweedFS
    folder: Path
    rows: int
    standin: StandIn | None = None
    count: int = 0
    synced: Path | None = None  # a configuration whose warehouse has all rows
    scattered: Path | None = None  # one whose warehouse lacks 1 % of them

    def place(self, warehouse: dict[str, Any] | None = None, **defaults: Any) -> tuple[Path, str]:
        """A folder with a configuration of its own, and the store prefix that it names."""
        self.count += 1
        prefix = f"run{self.count}"
        folder = self.folder / prefix
        folder.mkdir()
        config = {
            # As ConnectorX and Connector/J read; MySQL offers TLS by default, MariaDB 10.11 does not.
            "source": {"url": self.db.url(settlement.DATABASE), "tls": {"mode": "disabled"}},
            "store": self.s3.store(prefix),
            "defaults": {"start": None, "settle_seconds": 0, **defaults},
            **({"warehouse": warehouse} if warehouse else {}),
        }
        (folder / "floodmark.yaml").write_text(json.dumps(config))  # JSON is YAML
        return folder / "floodmark.yaml", prefix

    def redshift(self) -> dict[str, Any]:
        """The stand-in as a warehouse; it is started when it is first asked for."""
        if self.standin is None:
            self.standin = stand_in()(self.s3)
            self.standin.start()
        return {"url": self.standin.url(), "iam_role": self.standin.role, "tls": {"mode": "disabled"}}

    def task(self, config: Path, prefix: str) -> Path:
        """What a contender that is not Floodmark is told."""
        key, secret = self.s3.writer
        file = config.with_name("task.json")
        file.write_text(json.dumps({
            "source": self.db.url(settlement.DATABASE), "table": settlement.NAME, "rows": self.rows,
            "bucket": f"s3://{self.s3.bucket}/{prefix}", "endpoint": self.s3.endpoint, "key": key, "secret": secret,
            "connections": CONNECTIONS, "config": str(config), "folder": str(config.parent / "parquet"),
            "jar": str(next(iter((HERE / ".venv" / "java").glob("**/mariadb-java-client*.jar")), "")),
        }))  # fmt: skip
        return file

    def floodmark(self, config: Path, *args: str) -> list[str]:
        return [sys.executable, "-m", "floodmark", "--config", str(config), "--json", *args]

    def steady(self, config: Path, what: str) -> list[str]:
        """The command for extract, both or verify on a Spark that is warm already."""
        return [sys.executable, str(HERE / "steady.py"), str(config), settlement.NAME, what]

    def filled(self) -> Path:
        """A new place whose warehouse has all rows."""
        config, _ = self.place()
        self.run("", self.floodmark(config, "sync", "-t", settlement.NAME))
        return config

    def run(
        self, name: str, command: list[str], prefix: str = "", rows: int | None = None, more: bool = False
    ) -> Figure:
        """One contender: how long it took, and what it and the servers used. `more`: it may read more rows."""
        servers = self._servers()
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
        )
        with Watch(process) as usage:
            output, complaint = process.communicate()
        wall = time.monotonic() - began
        if process.returncode:
            sys.exit(f"{name}: exit code {process.returncode}\n{output[-2000:]}{complaint[-2000:]}")
        said = _last_document(output)
        moved = said.get("rows", 0)
        if "tables" in said:
            moved = sum(
                t.get("rows_extracted") or t.get("rows_loaded") or t.get("rows_source") or 0
                for t in said["tables"]
            )
        wanted = self.rows if rows is None else rows
        if moved != wanted and not (more and moved > wanted):
            sys.exit(f"{name}: {moved:,} rows instead of {wanted:,}")
        size = self.stored(prefix) if prefix else 0
        spent = {role: now - servers[role] for role, now in self._servers().items()}
        return Figure(
            name, wanted, said["seconds"] if "tables" not in said and "seconds" in said else wall, wall,
            size or said.get("bytes", 0), usage.cpu, sum(spent.values()), _total_peak(usage),
            {role: usage.peak(role) for role in ROLES}, said.get("cpu"),
            {**spent, **(said.get("cpus") or {role: usage.cpu_of(role) for role in ROLES})},
        )  # fmt: skip

    def stored(self, prefix: str) -> int:
        """The bytes of the Parquet files below a prefix."""
        from floodmark.config.load import StoreSpec
        from floodmark.store.store import Store

        return sum(
            o.bytes for o in Store(StoreSpec(**self.s3.store(prefix))).list("") if o.path.endswith(".parquet")
        )

    def _servers(self) -> dict[str, float]:
        return {"database": cpu_seconds(self.db.pid), "S3 server": cpu_seconds(self.s3.pid)}


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "RUNTIME__LOG_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
    }


def _last_document(output: str) -> dict[str, Any]:
    """The JSON that a command ended with; peers print other things before it."""
    try:
        return dict(json.loads(output))
    except ValueError:
        return dict(json.loads(output.strip().splitlines()[-1]))


def _total_peak(usage: Usage) -> int:
    return sum(s.peak for s in usage.seen.values())
