"""Where live probes work: their own schema and store prefix, the connections to them, and the cleanup.

Everything is created under one random name, so that nothing else is touched and one DROP SCHEMA removes it all.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.config.load import StoreSpec, WarehouseSpec
from floodmark.model.errors import FloodmarkError
from floodmark.services.store.store import Store
from floodmark.services.warehouse.redshift.names import literal, path
from floodmark.services.warehouse.redshift.raw import commit_unheard, cut
from floodmark.services.warehouse.redshift.stage import role_clause
from floodmark.services.warehouse.redshift.steps import Failed, Limits, RedshiftSession, Row, Transport
from floodmark.services.warehouse.redshift.warehouse import Redshift
from floodmark.setup.doctor.live.probe import Refusal, Unknown, tried

T = TypeVar("T")
SCHEMA = "floodmark_live_"
PREFIX = "live"


@dataclass(frozen=True)
class Scale:
    """How many rows the probes load, and how long they wait."""

    rows: int = 10_000_000  # of the timed load
    seconds: float = 3600.0  # for all probes together
    wait: float = 3.0  # for a lock known to be held
    lock: float = 120.0  # for a lock that a dead session may keep
    statement: float = 600.0


@dataclass(frozen=True)
class File:
    """An object in the store."""

    uri: str
    bytes: int

    def entry(self, **more: Any) -> dict[str, Any]:
        """The file's entry in a manifest."""
        return {"url": self.uri, "mandatory": True, "meta": {"content_length": self.bytes}, **more}


class Stopped(Exception):
    """The probes were interrupted or ran out of time."""


@dataclass
class Live:
    """One run's schema, files and sessions. Sessions may be opened from several threads."""

    spec: WarehouseSpec
    store: Store  # everything below it is ours
    schema: str
    ways: dict[str, Transport]  # by name: socket, data_api
    missing: dict[str, str]  # why each of the others is unavailable
    second: Transport | None = None
    scale: Scale = field(default_factory=Scale)
    files: int = 0
    sent: int = 0  # bytes of all files

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.scale.seconds
        self._memory: dict[str, Any] = {}
        self._open: weakref.WeakSet[RedshiftSession] = weakref.WeakSet()
        self._dead: set[int] = set()  # pids of sessions that we cut
        self._guard = threading.Lock()
        self._stopped = threading.Event()

    @property
    def limits(self) -> Limits:
        return limits(self.scale)

    # ---------------------------------------------------------------- sessions

    @contextlib.contextmanager
    def session(self, way: str = "socket", label: str = "") -> Iterator[RedshiftSession]:
        """A session over a socket or the Data API; Unknown if that is not configured."""
        with self.opened(self.way(way), label) as session:
            yield session

    def way(self, name: str) -> Transport:
        """A transport whose sessions all end on `stop`, whoever opens them; Unknown if it is not configured."""
        if name not in self.ways:
            raise Unknown(self.missing.get(name, f"{name} is not configured"))
        return _Stoppable(self.ways[name], self)

    @property
    def first(self) -> str:
        """The configured way in; the socket if there are both."""
        return "socket" if "socket" in self.ways else "data_api"

    @contextlib.contextmanager
    def opened(self, transport: Transport, label: str = "") -> Iterator[RedshiftSession]:
        self.check()
        session = transport.open(label or "floodmark doctor --redshift-live")
        self.opens(session)
        try:
            yield session
        finally:
            session.close()

    def opens(self, session: RedshiftSession) -> None:
        """Register a session for `stop` to end; after a stop, end it at once and raise Stopped."""
        with self._guard:
            self._open.add(session)
        if self._stopped.is_set():
            self.cut(session)
            raise Stopped("interrupted")

    def check(self) -> None:
        """Raise Stopped if the probes were interrupted or are out of time."""
        if self._stopped.is_set():
            raise Stopped("interrupted")
        if time.monotonic() > self.until:
            raise Stopped(f"the time limit for all probes ({self.scale.seconds / 60:.0f} minutes) is up")

    def stop(self) -> None:
        """Cut every open session; statements that are waiting for an answer fail."""
        self._stopped.set()
        with self._guard:
            sessions = list(self._open)
        for session in sessions:
            self.cut(session)

    def cut(self, session: RedshiftSession, *, committing: bool = False) -> None:
        """Drop a session's connection at once, or right after COMMIT; `remove` ends its backend if that is still running."""
        if session.pid is not None:
            self._dead.add(session.pid)
        (commit_unheard if committing else cut)(session)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value computed once and shared by all probes; a failure is shared, too."""
        if name not in self._memory:
            try:
                self._memory[name] = make()
            except Exception as error:
                self._memory[name] = error
                raise
        found = self._memory[name]
        if isinstance(found, Exception):
            raise Unknown(f"see the first probe of {name}") from found
        return found  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- tables and files

    def path(self, table: str) -> str:
        return path(self.schema, table)

    def warehouse(self, transport: Transport | None = None, *, large_strings: bool = False) -> Redshift:
        """Our warehouse code, on this schema."""
        return Redshift(
            transport or self.way(self.first),
            self.schema,
            iam_role=self.spec.iam_role,
            limits=self.limits,
            large_strings=large_strings,
        )

    @property
    def large_strings(self) -> bool:
        """Whether the cluster accepts strings of more than 65,535 bytes inside SUPER."""
        with self.session(self.first) as session:
            found = tried(session, "SELECT is_large_string_enabled()")
        return not isinstance(found, Refusal) and str(found[0][0]).lower() in ("true", "t", "1")

    def put(self, content: pa.Table | bytes, suffix: str = "parquet", **options: Any) -> File:
        """Store an object under a fresh name; a table as Parquet."""
        self.check()
        if isinstance(content, pa.Table):
            buffer = io.BytesIO()
            pq.write_table(content, buffer, store_schema=False, **options)
            content = buffer.getvalue()
        name = f"files/{secrets.token_hex(6)}.{suffix}"
        self.store.put(name, content)
        self.files, self.sent = self.files + 1, self.sent + len(content)
        return File(self.store.uri(name), len(content))

    def manifest(self, *entries: dict[str, Any]) -> str:
        return self.put(json.dumps({"entries": list(entries)}).encode(), "manifest").uri

    @property
    def role(self) -> str:
        """The clause for the configured role."""
        return role_clause(self.spec.iam_role)

    def copy(self, table: str, manifest: str, role: str = "", columns: str = "") -> str:
        """A COPY of a manifest's files into a table of ours."""
        into = self.path(table) + columns
        return f"COPY {into} FROM {literal(manifest)} {role or self.role} MANIFEST FORMAT AS PARQUET"

    def count(self, session: RedshiftSession, table: str) -> int:
        return int(session.query(f"SELECT count(*) FROM {self.path(table)}")[0][0])

    # ---------------------------------------------------------------- begin and end

    def create(self) -> None:
        """Create the schema; raises one of our errors if we can't work here."""
        try:
            with self.opened(self.way(self.first)) as session:
                session.execute(f"CREATE SCHEMA {path_of(self.schema)}")
        except Failed as failed:
            raise failed.error from failed

    def users(self) -> list[str]:
        """The database user that each way in connects as."""
        names = []
        for way in self.ways:
            with self.session(way) as session:
                found = tried(session, "SELECT current_user")
            if not isinstance(found, Refusal):
                names += [str(row[0]).strip() for row in found]
        return names

    def remove(self) -> list[str]:
        """Remove schema and files, even after a stop; returns what is left, as a statement to run or an address."""
        left: list[str] = []
        drop = f"DROP SCHEMA IF EXISTS {path_of(self.schema)} CASCADE"
        try:
            _dropped(self.ways[self.first], self.schema, sorted(self._dead))
        except (Failed, FloodmarkError) as error:
            left.append(f"{drop};  -- {error}")
        try:
            self.store.delete([item.path for item in self.store.list("")])
        except FloodmarkError as error:
            left.append(f"{self.store.uri('')}  -- {error.message}")
        return left


class _Stoppable:
    """A transport that registers the sessions it opens."""

    def __init__(self, transport: Transport, live: Live) -> None:
        self._transport = transport
        self._live = live
        self.longest = transport.longest

    def open(self, label: str = "") -> RedshiftSession:
        session = self._transport.open(label)
        self._live.opens(session)
        return session


def _dropped(transport: Transport, schema: str, dead: Sequence[int]) -> None:
    """Drop the schema, after ending our dead sessions: they may hold locks in it."""
    for left in (2, 1, 0):
        session = transport.open("floodmark doctor --redshift-live")
        try:
            _end(session, dead, schema)
            session.execute(f"DROP SCHEMA IF EXISTS {path_of(schema)} CASCADE")
            return
        except Failed:
            if not left:
                raise
            time.sleep(1.0)
        finally:
            session.close()


def _end(session: RedshiftSession, dead: Sequence[int], schema: str) -> None:
    """End the sessions that still hold a lock in the schema; the other pids may have been reused since."""
    if not dead:
        return
    found = tried(
        session,
        f"SELECT DISTINCT t.pid FROM svv_transactions AS t WHERE t.pid IN ({', '.join(map(str, dead))}) "
        "AND t.relation IN (SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = {literal(schema)})",
    )
    for row in found if not isinstance(found, Refusal) else ():
        tried(session, f"SELECT pg_terminate_backend({int(row[0])})")


def path_of(schema: str) -> str:
    return '"' + schema + '"'


def own_store(spec: StoreSpec, name: str) -> Store:
    """The store below our own prefix."""
    return Store(replace(spec, url=f"{spec.url.rstrip('/')}/{PREFIX}/{name}"))


def limits(scale: Scale) -> Limits:
    return Limits(
        question=scale.statement,
        lock=scale.lock,
        statement=scale.statement,
        grace=15.0,
        attempts=3,
        pause=0.2,
    )


class Aside:
    """A call in its own thread, for statements that wait for another session."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(call,), name="live probe", daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            self._value = call()
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - began

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def waits(self, seconds: float) -> bool:
        """Whether it is still running after this long."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self, seconds: float) -> Any:
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Unknown(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value


__all__ = ["PREFIX", "SCHEMA", "Aside", "File", "Live", "Row", "Scale", "Stopped", "limits", "own_store"]
