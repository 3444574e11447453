"""`floodmark demo`: the whole promise in about a minute, on private services.

Every sync is the real command in its own process, and the closing comparison shares no code with it.
Nothing outlives the demo: services, processes and files go with it, even on Ctrl-C, SIGTERM and kill -9.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from floodmark.host.process import child_environment
from floodmark.model.errors import FloodmarkError, VerificationError
from floodmark.setup.services import reaper, settlement
from floodmark.setup.services.compare import StandIn, compare, stand_in
from floodmark.setup.services.databases import DatabaseServer, chosen
from floodmark.setup.services.s3 import SeaweedFS

PREFIX = "demo"
_CONFIG = """\
source:
  url: {source}
{store}warehouse:
  {warehouse}
defaults:
  slice_rows: {slice_rows}
"""


class Demo:
    """The services, the workspace and the steps; `run` plays them in order."""

    def __init__(self, rows: int, db: DatabaseServer, s3: SeaweedFS, redshift: StandIn | None = None) -> None:
        self.rows = rows
        self.db = db
        self.s3 = s3
        # In the server's folder, which is removed even if this process is killed.
        self.folder = db.folder / "demo"
        self.warehouse = redshift or self.folder / "warehouse.duckdb"
        self.config = self.folder / "floodmark.yaml"
        self._steps = 0
        self._began = time.monotonic()

    def run(self) -> None:
        """Play the demo; raises VerificationError when source and warehouse differ at the end."""
        rows = self.rows
        self._say(f"A table of {rows:,} rows: {settlement.NAME}")
        settlement.create(self.db, rows)
        [(moments, most)] = self.db.execute(
            f"SELECT COUNT(*), MAX(c) FROM (SELECT COUNT(*) AS c FROM {settlement.NAME} GROUP BY update_at) AS t"
        )
        _tell(f"{moments:,} different timestamps in its cursor, update_at; {most:,} rows share one of them.")
        self._write_config()

        self._say("The first sync: MySQL -> Parquet in S3 -> warehouse")
        self._sync()

        inserts, updates = max(1, rows // 100), max(1, rows // 50)
        self._say(f"{inserts:,} rows inserted, {updates:,} updated; the second sync reads only those")
        settlement.change(self.db, inserts, updates)
        self._sync()

        self._crash(max(1, rows // 20), max(1, rows // 5))

        self._say("The next run finds what was committed and finishes the rest")
        self._sync()

        self._say("How far the table has got: floodmark watermark get")
        self._floodmark("watermark", "get", "-t", settlement.NAME)

        what = "every row, every column, hashed (SHA-256) by the two databases themselves"
        self._say(f"Source against warehouse: {what}")
        self._compare()

    def serve(self, port: int) -> None:
        """Serve a dashboard over the demo's data until interrupted."""
        self._floodmark("serve", "--port", str(port))

    def _write_config(self) -> None:
        self.folder.mkdir()
        to = self.warehouse
        where = f"url: duckdb:///{to}"
        if not isinstance(to, Path):
            where = f"url: {to.url()}\n  iam_role: {to.role}\n  tls: {{mode: disabled}}"
        self.config.touch(mode=0o600)  # it holds passwords
        source, store = self.db.url(settlement.DATABASE), self.s3.store_yaml(PREFIX)
        slice_rows = max(100, self.rows // 20)
        self.config.write_text(
            _CONFIG.format(source=source, store=store, warehouse=where, slice_rows=slice_rows)
        )

    def _crash(self, inserts: int, updates: int) -> None:
        """A sync that is killed after it has committed something and before it ends."""
        for again in ("", *["again, because the last sync ended before it could be killed: "] * 2):
            changed = f"{inserts:,} rows inserted, {updates:,} updated"
            self._say(f"{again}{changed}; this sync is killed half-way (kill -9)")
            settlement.change(self.db, inserts, updates)
            before = len(self._commits())
            with self._started("sync", "-t", settlement.NAME) as process:
                # The first new commit is the run's claim, the second has some of its rows.
                while process.poll() is None and len(self._commits()) < before + 2:
                    time.sleep(0.01)
                process.kill()
                code = process.wait()
            if code == -signal.SIGKILL:
                batches = len(self._commits()) - before - 1
                _tell(
                    f"killed: {batches} of its commits with rows are in the store; the rest is still to do."
                )
                return
            if code:
                raise _failed("the sync to be killed", code)

    def _commits(self) -> list[str]:
        return self.s3.list(f"{PREFIX}/commits/{settlement.NAME}")

    def _compare(self) -> None:
        found = compare(self.db, settlement.NAME, self.warehouse, settlement.TABLE)
        _tell(f"source     {found.source_rows:>12,} rows   checksum {found.source_checksum:x}")
        _tell(f"warehouse  {found.warehouse_rows:>12,} rows   checksum {found.warehouse_checksum:x}")
        if not found.equal:
            raise VerificationError(
                f"source and warehouse differ: {'; '.join(found.differences[:5])}", table=settlement.NAME
            )
        _tell("equal: every row arrived, exactly once.")

    def _sync(self) -> None:
        self._floodmark("sync", "-t", settlement.NAME)

    def _floodmark(self, *args: str) -> None:
        with self._started(*args) as process:
            code = process.wait()
        if code:
            raise _failed(f"floodmark {' '.join(args)}", code)

    @contextmanager
    def _started(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """The real command in its own session, killed with all its children on exit."""
        _tell(f"$ floodmark {' '.join(args)}")
        process = subprocess.Popen(
            [sys.executable, "-m", "floodmark", "--config", str(self.config), *args],
            cwd=self.folder,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=reaper.die_with_parent,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Spark's JVM, if it is still there
            process.wait()

    def _say(self, what: str) -> None:
        self._steps += 1
        print(f"\n[{time.monotonic() - self._began:5.1f} s] {self._steps}. {what}", flush=True)


def _failed(what: str, code: int) -> FloodmarkError:
    """The command has already said why; the demo ends with its exit code."""
    error = FloodmarkError(f"{what} ended with exit code {code}")
    error.code = code if code > 0 else 1
    return error


def _tell(line: str) -> None:
    print(f"  {line}", flush=True)


def run_demo(
    rows: int = 1_000_000,
    keep: bool = False,
    warehouse: str = "duckdb",
    source: str | None = None,
    serve: int | None = None,
) -> int:
    """Run the demo; 0 if source and warehouse end up equal. `serve`: the port of a dashboard that then runs until Ctrl-C."""
    kind = chosen(source)
    made = stand_in() if warehouse == "redshift" else None  # raises before anything is started
    began = time.monotonic()
    with ExitStack() as stack:
        s3 = SeaweedFS()  # raises before anything is started, too
        stack.callback(s3.remove)
        print(f"Starting a private {kind.__name__} and a private S3 server (SeaweedFS) ...", flush=True)
        db = stack.enter_context(kind(buffer_pool="512M"))
        stack.enter_context(s3)
        _tell(f"{db.version} on {db.host}:{db.port}, S3 on {s3.endpoint}, everything in {db.folder.parent}")
        redshift = None
        if made is not None:
            redshift = stack.enter_context(made(s3))
            _tell(f"A stand-in for Redshift on {redshift.host}:{redshift.port}, over a private PostgreSQL")
        demo = Demo(rows, db, s3, redshift)
        if keep:
            stack.callback(_keep, demo.folder)
        demo.run()
        if serve is not None:
            print(
                f"\nDone in {time.monotonic() - began:.0f} s; the services stay up for the dashboard.",
                flush=True,
            )
            demo.serve(serve)
    seconds = time.monotonic() - began
    print(f"\nDone in {seconds:.0f} s; the services are stopped and their files removed.", flush=True)
    if serve is None:
        print(
            "To see all this in a dashboard: make demo ARGS=--serve (or floodmark demo --serve).", flush=True
        )
    return 0


def _keep(folder: Path) -> None:
    """Move the workspace out of the folder that is about to be removed."""
    if folder.exists():
        kept = shutil.move(folder, tempfile.mkdtemp(prefix="floodmark-demo-"))
        print(f"\nKept: {json.dumps(str(kept))} (floodmark.yaml and warehouse.duckdb).", flush=True)
