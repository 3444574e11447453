"""Stores for the dashboard's tests: tables in every state, with an attacker's choice of names, and many."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.document import StageFailure, primary_path
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.log.status import status_path
from floodmark.model.commit import Batch
from floodmark.model.json import digest
from floodmark.model.table import Table
from floodmark.model.times import compact, stamp
from floodmark.store.store import Store, encode
from floodmark.web.snapshot import Looks, Snapshot
from tests.support.described import described
from tests.support.samples import AT, ID, at, files, window
from tests.support.watermark_copies import ledger

HOSTILE = (
    "shop.<img src=x onerror=alert(1)>",
    "shop.\"quotes\" & 'more'",
    "shop.\N{PILE OF POO}\N{WAVING WHITE FLAG}",
    "shop.طلبات",
    "shop.\u202eevil\u202c",
    "shop.{{ 7*7 }}",
    "shop.a/b?c#d%41",
)
NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


def config_of(folder: Path, store: StoreSpec | None = None, tables: Sequence[str] = ()) -> Config:
    """A configuration for a store in this folder, with a source and a warehouse that must not be queried."""
    return Config(
        path=folder / "floodmark.yaml",
        source=SourceSpec("nowhere.invalid", 3306, "reader", "hunter2secret", "shop"),
        store=store or StoreSpec(str(folder / "lake")),
        warehouse=WarehouseSpec("duckdb", "main", path=folder / "warehouse.duckdb"),
        tables=tuple(tables),
    )


def _table(name: str) -> Table:
    schema, _, table = name.partition(".")
    return described(
        schema, table, (ID, AT), ("id",), "update_at", "upsert", table, key_index="PRIMARY", cursor_index="at"
    )


@dataclass
class Filled:
    """A store to fill with tables and runs."""

    store: Store
    now: datetime = NOW

    def run_id(self, minutes: float = 0.0) -> str:
        return f"{compact(self.now - timedelta(minutes=minutes))}_ab12"

    def table(
        self,
        name: str,
        *,
        rows: int = 1000,
        loaded: bool = True,
        failed: str | None = None,
        window_left_open: bool = False,
        looked: float | None = 1.0,
        lag: float | None = 0.0,
        published: bool = True,
    ) -> State:
        """Add a table of which a sync has read some rows; `looked`: minutes since its last check."""
        log, run = Log(self.store, name), self.run_id(2)
        edges = (at(20, 5),) if window_left_open else ()
        taken = claim(
            log, log.read(), run=run, table=_table(name), purpose="sync", window=window("w", None, edges, at(42, 7)), strategy="sequential"
        )  # fmt: skip
        with taken.lease:
            named = files(rows - 1, 1)
            if not published:  # the log itself is read, which takes no other table's files
                own = f"data/{encode(name)}/"
                named = tuple(replace(f, path=f.path.replace("data/shop.orders/", own)) for f in named)
            batch = draft(taken.state, Batch, run, window_id="w", slices=(0,), files=named, seconds=1.5)
            state = log.append(taken.state, batch)
            failure = StageFailure("extract", failed, stamp(self.now)) if failed else None
            loads = ledger(state) if loaded else []
            if published:
                Publisher(self.store, name, run).publish(state, loads, failure=failure)
        if looked is not None:
            self.check(name, looked, lag)
        return state

    def dies(self, name: str) -> None:
        """Let the table's run have been killed five minutes ago."""
        path = f"leases/{encode(name)}.json"
        note = json.loads(self.store.get(path) or b"")
        dead = {**note, "expires_at": stamp(self.now - timedelta(minutes=5)), "released": False}
        self.store.put(path, json.dumps(dead).encode())

    def check(
        self, name: str, minutes: float, lag: float | None = 0.0, ids: int | None = None, **more: Any
    ) -> None:
        """Add the record of a sync that checked the table this many minutes ago."""
        looked = stamp(self.now - timedelta(minutes=minutes))
        body = {"table_name": name, "run": self.run_id(minutes), "last_check_time": looked, **more}
        if lag is not None or ids is not None:
            body["lag"] = {"seconds": lag, "ids": ids}
        self._status(name, body)

    def run(self, minutes: float, parts: dict[str, dict[str, Any]]) -> str:
        """Add a run's report; fields missing from `parts` get the usual values."""
        usual = {"ok": True, "exit_code": 0, "strategy": "sequential", "rows_extracted": 1000, "rows_loaded": 1000, "bytes_written": 50_000,
                 "files_written": 2, "seconds": 12.5, "lag_after": {"seconds": 0.0, "ids": None}, "notes": [], "findings": [], "error": None}  # fmt: skip
        run = self.run_id(minutes)
        tables = [{"table": name, **usual, **part} for name, part in parts.items()]
        body = {"run": run, "ok": all(t["ok"] for t in tables), "seconds": 14.0, "tables": tables}
        self.store.put(f"runs/{run}.json", json.dumps(body).encode())
        return run

    def many(self, count: int, schema: str = "shop") -> list[str]:
        """Add `count` tables cheaply: one published watermark under many names, and their checks."""
        self.table(f"{schema}.t0000")
        model = self.store.get(primary_path(f"{schema}.t0000")) or b""
        status = self.store.get(status_path(f"{schema}.t0000")) or b""
        whole = json.loads(model)["checkpoint"]
        names = [f"{schema}.t{i:04}" for i in range(count)]
        for name in names[1:]:
            short = name.partition(".")[2].encode()
            inner = json.dumps(whole["body"], ensure_ascii=False, separators=(",", ":")).encode()
            total = digest(inner.replace(b"t0000", short)).encode()
            copy = model.replace(b"t0000", short).replace(whole["sum"].encode(), total)
            self._put(primary_path(name), copy)
            self._put(status_path(name), status.replace(b"t0000", short))
        return names

    def _put(self, path: str, data: bytes) -> None:
        """Write straight into the folder, without waiting for the disk."""
        place = self.store.local(path)
        if place is None:
            self.store.put(path, data)
        else:
            place.write_bytes(data)

    @contextmanager
    def held(self, name: str, run: str = "20261117_115800_cd34") -> Iterator[State]:
        """Add a table held by a run, in the middle of its first window."""
        log = Log(self.store, name)
        taken = claim(
            log, log.read(), run=run, table=_table(name), purpose="sync",
            window=window("w", None, (at(20, 5),), at(42, 7)), strategy="sequential",
        )  # fmt: skip
        with taken.lease:
            Publisher(self.store, name, run).publish(taken.state, [])
            yield taken.state

    def progress(
        self,
        name: str,
        rows: int,
        expected: int = 1_000_000,
        run: str = "20261117_115800_cd34",
        lag: float | None = None,
    ) -> None:
        """Add the progress report of the run that holds a table."""
        stage = {
            "stage": "extract",
            "since": stamp(self.now - timedelta(seconds=100)),
            "rows": rows,
            "expected": expected,
        }
        body = {"table_name": name, "run": run, "host": "etl-1", "pid": 77, "since": stage["since"], "updated_at": stamp(self.now),
                "stage": "extract", "rows": rows, "expected": expected, "files": 4, "bytes": 12_000_000, "stages": [stage],
                "lag_seconds": lag}  # fmt: skip
        self.store.put(f"status/live/{encode(name)}.json", json.dumps(body).encode())

    def verified(self, name: str, hours: float, missing: int = 0) -> None:
        """Add the record of a verify that ran this many hours ago."""
        found = [{"kind": "missing_row", "table": name, "detail": "key 7"}] * missing
        body = {"table_name": name, "run": self.run_id(60 * hours), "at": stamp(self.now - timedelta(hours=hours)), "seconds": 3.0,
                "ok": not missing, "rows_source": 1000, "rows_warehouse": 1000 - missing, "missing": missing, "findings": found}  # fmt: skip
        self._status(name, {"verify": body})

    def _status(self, name: str, more: dict[str, Any]) -> None:
        """Add to a table's status; a new check replaces the last one, but not the last verify."""
        before = json.loads(self.store.get(status_path(name)) or b"{}")
        kept = before if "verify" in more else {key: before[key] for key in before if key == "verify"}
        self.store.put(status_path(name), json.dumps({"table_name": name, **kept, **more}).encode())


def every_health(filled: Filled) -> None:
    """Add a table for each health, and the runs that led to it."""
    filled.table("shop.orders", rows=125_000)
    filled.table("shop.lines", rows=900, failed="MySQL 10.0.0.5:3306 can't be reached: timed out")
    filled.table("shop.invoices", rows=7_000, lag=200_000.0)
    filled.table("shop.stock", rows=500, loaded=False)
    filled.table("shop.stale", rows=40, looked=3_000.0)
    filled.store.put(primary_path("shop.broken"), b"{")
    filled.verified("shop.orders", 5)
    for hours in range(30, 0, -1):
        part: dict[str, Any] = {
            "rows_extracted": 900 + 613 * hours % 977,
            "lag_after": {"seconds": float(hours * 7 % 40), "ids": None},
        }
        parts = {"shop.orders": part, "shop.lines": {}}
        if hours in (1, 9):
            error = {"code": 4, "kind": "transient", "table": "shop.lines", "message": "MySQL 10.0.0.5:3306 can't be reached: timed out", "hint": "try again"}  # fmt: skip
            parts["shop.lines"] = {
                "ok": False,
                "exit_code": 4,
                "error": error,
                "rows_extracted": 0,
                "rows_loaded": 0,
                "lag_after": None,
            }
        filled.run(60.0 * hours, parts)


KILLED = "20261117_093000_dead"


@contextmanager
def every_state(filled: Filled) -> Iterator[None]:
    """The same with more of each: a table that a run holds, one that differs, failures of every kind, days, a killed run."""
    every_health(filled)
    ago = [stamp(filled.now - timedelta(minutes=n)) for n in range(60)]
    error = "Redshift did not answer"
    filled.table("shop.passing", rows=80, looked=None)
    filled.check(
        "shop.passing", 5.0, at=ago[5], exit_code=4, error=error, caught_up_at=ago[20], failing_since=ago[5]
    )
    filled.table("shop.refused", rows=80, failed="its source was replaced", looked=None)
    filled.check(
        "shop.refused", 5.0, at=ago[5], exit_code=6, error="its source was replaced", failing_since=ago[5]
    )
    filled.table("shop.taken", rows=80, looked=None)
    filled.check(
        "shop.taken", 5.0, at=ago[5], exit_code=3, error="another run holds the table", caught_up_at=ago[9]
    )
    filled.table("shop.differs", rows=60)
    filled.verified("shop.differs", 2, missing=3)
    filled.table("shop.left", rows=70, window_left_open=True)
    filled.table("shop.ids", rows=70, looked=None)
    left = {
        "run": KILLED,
        "since": None,
        "until": "2026-11-17T09:45:00.000000Z",
        "rows": 7,
        "host": "etl-1",
        "stage": "load",
    }
    filled.check(
        "shop.ids", 3.0, None, 12, exit_code=0, at=ago[3], success_at=ago[3], killed=[left],
        work={"run": filled.run_id(200), "at": ago[50], "exit_code": 0, "rows_extracted": 5, "seconds": 2.5, "stages": {"extract": 1.0}},
        today={"day": "2026-11-17", "runs": 2, "idle": 2, "exit_codes": {"0": 2}},
    )  # fmt: skip
    days = [
        {"day": f"2026-11-{n:02}", "runs": 3, "failures": n % 3 == 0, "rows_extracted": 10 * n, "seconds": 1.5 * n, "worst_lag_seconds": n}
        for n in range(1, 18)
    ]  # fmt: skip
    body = {"table_name": "shop.invoices", "days": days}
    filled.store.put("status/days/202611/shop.invoices.json", json.dumps(body).encode())
    with filled.held("shop.busy"):
        filled.progress("shop.busy", 250_000, lag=90.0)
        yield


def seen(config: Config, now: datetime = NOW) -> Snapshot:
    """A snapshot of a store."""
    return Looks(config, lambda text: text).look(now)
