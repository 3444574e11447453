"""The binary log: what it costs to learn which rows have changed, beside the package mysql-replication, on the same files.

python bench/binlog.py. ROWS (default 1,000,000) rows of the settlement table (18 columns) inserted, then updated, then 100,000
transactions of one row each, each kind in a file of its own. CPU-seconds of the reader, without its start, and of the server, per million
rows and per GB of log; RUNS (default 3), medians. The peer is stopped after PEER_ROWS (default 50,000) rows. SOURCE=mysql or mariadb;
by default every server that is there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import report
from measure import cpu_seconds
from run import PEERS, PLACE, install_peers
from scenes import WIDTH, Scene

from floodmark.setup.services import settlement
from floodmark.setup.services.databases import SERVERS, DatabaseServer, missing

ROWS = int(os.environ.get("ROWS", "1000000").replace("_", ""))
RUNS = int(os.environ.get("RUNS", "3"))
PEER_ROWS = int(os.environ.get("PEER_ROWS", "50000").replace("_", ""))
SMALL = int(os.environ.get("SMALL", "100000").replace("_", ""))  # transactions of one row
# The log as it should be on both servers; checksums are on by default. The peer needs the names of columns.
LOGGED = (
    "--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--sync-binlog=0",
    "--max-binlog-size=1G",
)  # fmt: skip
OURS, PEER = "ours", "mysql-replication"


@dataclass(frozen=True)
class LogFile:
    """One file of the log, all of one kind of change."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class LogScene(Scene):
    """One reading of a file: `cpu` is the reader's."""

    server: float  # CPU-seconds
    bytes: int
    part: float  # of the file's rows


def filled(db: DatabaseServer) -> dict[str, LogFile]:
    """The table, and the files that its changes are in."""
    files = {}

    def logged(what: str, rows: int, change: Callable[[], object]) -> None:
        db.execute("FLUSH BINARY LOGS")
        name = db.execute("SHOW BINARY LOGS")[-1][0]
        change()
        size = next(row[1] for row in db.execute("SHOW BINARY LOGS") if row[0] == name)
        files[what] = LogFile(name, int(size), rows)

    def updated() -> None:
        db.execute(f"UPDATE {settlement.NAME} SET settlement_status = settlement_status + 1")

    def one_by_one() -> None:
        loop = f"UPDATE {settlement.NAME} SET settlement_status = settlement_status + 1 WHERE id = n; SET n = n - 1;"
        body = f"BEGIN DECLARE n INT DEFAULT {SMALL}; WHILE n > 0 DO {loop} END WHILE; END"
        db.execute(f"CREATE PROCEDURE {settlement.DATABASE}.one_by_one() {body}")
        with db.connect(settlement.DATABASE, autocommit=True) as link:
            link.cursor().execute("CALL one_by_one()")

    logged("inserts", ROWS, lambda: settlement.create(db, ROWS))
    logged("updates", ROWS, updated)
    logged("one-row transactions", SMALL, one_by_one)
    db.execute("FLUSH BINARY LOGS")
    return files


class Readers:
    """Runs one reader after the other, or several at once, on a server."""

    def __init__(self, db: DatabaseServer) -> None:
        self._db = db

    def read(self, who: str, files: Sequence[LogFile], followed: bool) -> list[dict[str, Any]]:
        """What each of the readers says, one for each file, all at once; and the server's CPU-seconds in the first."""
        before = cpu_seconds(self._db.pid)
        running = [self._begun(who, file, followed) for file in files]
        answers = []
        for process in running:
            output, complaint = process.communicate()
            if process.returncode:
                sys.exit(f"{who}: exit code {process.returncode}\n{complaint[-2000:]}")
            answers.append(json.loads(output.strip().splitlines()[-1]))
        answers[0]["server"] = cpu_seconds(self._db.pid) - before
        return answers

    def _begun(self, who: str, file: LogFile, followed: bool) -> subprocess.Popen[str]:
        task = {
            "url": self._db.url(), "file": file.name, "rows": file.rows, "limit": PEER_ROWS,
            "table": settlement.NAME if followed else None,
        }  # fmt: skip
        python, script = (sys.executable, "binlog_ours.py") if who == OURS else (str(PEERS), "binlog_peer.py")
        command = [python, str(PLACE / script), json.dumps(task)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def scene(name: str, files: Sequence[LogFile], runs: Sequence[list[dict[str, Any]]]) -> LogScene:
    """The medians of several runs over the same files."""

    def median(measure: Callable[[list[dict[str, Any]]], float]) -> float:
        return statistics.median(measure(run) for run in runs)

    part = runs[0][0]["part"]
    cpu = median(lambda run: sum(answer["cpu"] for answer in run))
    server = median(lambda run: float(run[0]["server"]))
    seconds = median(lambda run: max(answer["seconds"] for answer in run))
    rows = round(sum(file.rows for file in files) * part)
    size = round(sum(file.bytes for file in files) * part)
    million, giga = rows / 1e6, size / 1e9

    def spent(by: float) -> str:
        # What the server sends ahead to a reader that stops early would be counted, too.
        return f"{cpu / by:7.2f}, server {f'{server / by:6.2f}' if part == 1 else '     -'}"

    text = f"CPU-s per million rows {spent(million)}; per GB {spent(giga)}; {seconds:6.2f} s, {size / 1e6:6.1f} MB"
    return LogScene(name, seconds, rows, cpu, text, server, size, part)


def measured(db: DatabaseServer) -> list[LogScene]:
    """Every scene, with its runs taking turns."""
    files, readers = filled(db), Readers(db)
    every: list[tuple[str, str, list[LogFile], bool]] = [
        (f"{what}, {who}", who, [file], True) for what, file in files.items() for who in (OURS, PEER)
    ]
    every += [(f"inserts of other tables, {who}", who, [files["inserts"]], False) for who in (OURS, PEER)]
    both = [files["inserts"], files["updates"]]
    every.append((f"inserts and updates side by side, {OURS}", OURS, both, True))
    runs: dict[str, list[list[dict[str, Any]]]] = {name: [] for name, *_ in every}
    for _ in range(RUNS):
        for name, who, read, followed in every:
            runs[name].append(readers.read(who, read, followed))
            check(name, who, read, followed, runs[name][-1])
    seen = [scene(name, read, runs[name]) for name, _, read, _ in every]
    for one in seen:
        print(f"  {one.name:<{WIDTH - 20}}{one.text}", flush=True)
    return seen


def check(
    name: str, who: str, files: Sequence[LogFile], followed: bool, answers: Sequence[dict[str, Any]]
) -> None:
    """Ends the run if a reader has not seen every row."""
    for file, answer in zip(files, answers, strict=True):
        wanted = file.rows if followed else 0
        if answer["rows"] != wanted and (who == OURS or answer["rows"] < min(wanted, PEER_ROWS)):
            sys.exit(f"{name}: {answer['rows']:,} rows instead of {wanted:,}")


def main() -> None:
    install_peers()
    named = os.environ.get("SOURCE")
    there = [name for name in SERVERS if name == "mariadb" or not missing(name)]
    for kind in [named] if named else there:
        with SERVERS[kind](args=LOGGED, buffer_pool="2G") as db:
            source = f"the binary log of {db.version} (load average {os.getloadavg()[0]:.0f})"
            print(f"{ROWS:,} rows from {source}, {report.machine()}", flush=True)
            print(f"stored as {report.store(ROWS, source, [], measured(db))}")


if __name__ == "__main__":
    main()
