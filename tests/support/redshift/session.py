"""One client's session: its messages in, its own backend's answers out, Redshift's behaviour in between.

Each message is answered before the next one is read, so that statements run here and forwarded ones keep their
order. The transaction is the backend's, and ReadyForQuery reports its state.
"""

from __future__ import annotations

import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

from tests.support.redshift import rows, wire
from tests.support.redshift.errors import as_redshift
from tests.support.redshift.faults import Fault
from tests.support.redshift.plans import Context, Plan
from tests.support.redshift.postgres import literal
from tests.support.redshift.statements import understand
from tests.support.redshift.tokens import lex, split, sql_of
from tests.support.redshift.wire import Channel, Gone, SqlError, fields_of, message

_FLUSH = 65_536


class Dropped(Exception):
    """A fault dropped the socket; `linger`: seconds for which the backend lives on."""

    def __init__(self, linger: float = 0.0) -> None:
        super().__init__("dropped")
        self.linger = linger


@dataclass
class Prepared:
    """A statement that a client has prepared."""

    plan: Plan
    parameters: list[int] = field(default_factory=list)
    shape: rows.Shape = field(default_factory=rows.Shape)


@dataclass
class Portal:
    """A statement with its values, ready to run."""

    prepared: Prepared
    formats: list[int]


class Session:
    """A client connected to its backend."""

    def __init__(self, client: Channel, context: Context, names: dict[str, str]) -> None:
        self.client, self.context, self.names = client, context, names
        self.backend, self.services = context.backend, context.services
        self.statements: dict[str, Prepared] = {}
        self.portals: dict[str, Portal] = {}
        self._out = bytearray()
        self._unsynced = False  # the backend has unsynced messages of this batch
        self._failed = False  # the rest of this batch is to be skipped
        self._dropping: Fault | None = None
        self.backend.notice = self._emit

    def _emit(self, data: bytes) -> None:
        self._out += data
        if len(self._out) > _FLUSH:
            self._flush()

    def _flush(self) -> None:
        if self._out and self._dropping is None:
            self.client.send(bytes(self._out))
        self._out.clear()

    def serve(self) -> None:
        """Serve until one side is gone."""
        try:
            while self._one():
                pass
        except Dropped as dropped:
            self.client.close()
            time.sleep(dropped.linger)

    def _one(self) -> bool:
        ready = wire.either(self.client, self.backend, None)
        if ready is self.backend:  # idle, yet it sends something: it is being terminated
            kind, body = self.backend.receive()
            self.client.send(message(kind, body))
            return True
        kind, body = self.client.receive()
        if kind == b"X":
            return False
        handler = self._HANDLERS.get(kind)
        if kind in (b"S", b"Q"):
            self._failed = False if kind == b"Q" else self._failed
        if handler is None or (self._failed and kind != b"S"):
            return True
        try:
            handler(self, body)
        except (Gone, Dropped):
            raise
        except SqlError as error:
            self._stumble(kind, error)
        except Exception as error:  # a bug in the stand-in: report it where it will be read
            self._stumble(kind, SqlError("XX000", f"the stand-in failed: {error!r}", traceback.format_exc()))
        return True

    def _stumble(self, kind: bytes, error: SqlError) -> None:
        self._fail(error)
        if kind == b"Q":
            self._ready()

    # Messages ---------------------------------------------------------------------------------------------

    def _parse(self, body: bytes) -> None:
        (name, sql), rest = wire.split(body, 2)
        prepared = Prepared(self._plan(sql))
        if prepared.plan.run is None:
            self._ask(b"P", wire.text(name) + wire.text(prepared.plan.sql) + rest, b"1")
        else:
            self._emit(message(b"1"))
        self.statements[name] = prepared

    def _bind(self, body: bytes) -> None:
        (_, name), _ = wire.split(body, 2)
        prepared = self.statements.get(name)
        if prepared is None:
            raise SqlError("26000", f'prepared statement "{name}" does not exist')
        portal, _, rewritten, formats = rows.bind(body, prepared.parameters)
        if prepared.plan.run is None:
            self._lock(prepared.plan)
            self._ask(b"B", rewritten, b"2")
        else:
            self._emit(message(b"2"))
        self.portals[portal] = Portal(prepared, formats)

    def _describe(self, body: bytes) -> None:
        (name,), _ = wire.split(body[1:], 1)
        prepared = self.statements.get(name) if body[:1] == b"S" else self.portals[name].prepared
        if prepared is None:
            raise SqlError("26000", f'prepared statement "{name}" does not exist')
        if prepared.plan.run is None:
            self._ask(b"D", body, b"Tn", prepared)
            return
        if body[:1] == b"S":
            self._emit(message(b"t", b"\0\0"))
        self._emit(message(b"n"))

    def _execute(self, body: bytes) -> None:
        (name,), _ = wire.split(body, 1)
        portal = self.portals.get(name)
        if portal is None:
            raise SqlError("34000", f'portal "{name}" does not exist')
        plan = portal.prepared.plan
        with self._noted(plan):
            if plan.run is None:
                self._ask(b"E", body, b"CIs", portal.prepared, portal.formats)
            else:
                self._run(plan, plan.run)

    def _close(self, body: bytes) -> None:
        (name,), _ = wire.split(body[1:], 1)
        if body[:1] == b"S":
            prepared = self.statements.pop(name, None)
        else:
            closed = self.portals.pop(name, None)
            prepared = closed.prepared if closed else None
        if prepared is not None and prepared.plan.run is None:
            self._ask(b"C", body, b"3")
        else:
            self._emit(message(b"3"))

    def _sync(self, body: bytes) -> None:
        self._failed = False
        self._settle()
        self._ready()

    def _query(self, body: bytes) -> None:
        """The simple protocol: each statement on its own."""
        (sql,), _ = wire.split(body, 1)
        for tokens in split(lex(sql), ";"):
            if not tokens:
                self._emit(message(b"I"))
                continue
            plan = self._plan(sql_of(tokens))
            if plan.run is None:
                self._lock(plan)
            with self._noted(plan):
                if plan.run is not None:
                    self._run(plan, plan.run)
                else:
                    self._simply(plan)
        self._ready()

    def _simply(self, plan: Plan) -> None:
        errors: list[SqlError] = []
        self.backend.send(message(b"Q", wire.text(plan.sql)))
        self.backend.until(b"Z", self._relay(Prepared(plan), [], errors, quiet=b"Z"))
        if errors:
            raise errors[0]

    _HANDLERS: ClassVar[dict[bytes, Callable[[Session, bytes], None]]] = {
        b"P": _parse, b"B": _bind, b"D": _describe, b"E": _execute, b"C": _close, b"S": _sync, b"Q": _query,
    }  # fmt: skip

    # The backend ------------------------------------------------------------------------------------------

    def _ask(
        self,
        kind: bytes,
        body: bytes,
        ends: bytes,
        prepared: Prepared | None = None,
        formats: list[int] | None = None,
    ) -> None:
        """Forward one message and relay the answer."""
        errors: list[SqlError] = []
        self._unsynced = True
        self.backend.send(message(kind, body) + message(b"H"))
        self.backend.until(ends + b"E", self._relay(prepared, formats or [], errors))
        if errors:
            raise errors[0]

    def _relay(
        self, prepared: Prepared | None, formats: list[int], errors: list[SqlError], quiet: bytes = b""
    ) -> Callable[[bytes, bytes], None]:
        def take(kind: bytes, body: bytes) -> None:
            if kind == b"E":
                errors.append(SqlError.of(fields_of(body)))
                return
            if kind == b"T" and prepared is not None:
                body, prepared.shape = rows.description(body, self.names)
            elif kind == b"D" and prepared is not None and prepared.shape:
                self._emit(rows.data_row(body, prepared.shape, formats))
                return
            elif kind == b"t" and prepared is not None:
                types = struct.unpack(f"!{(len(body) - 2) // 4}i", body[2:])
                base = self.services.base_type
                prepared.parameters = [base(self.context.database, kind) for kind in types]
            elif kind == b"G":
                self.backend.send(message(b"f", wire.text("COPY FROM STDIN is not supported")))
                return
            if kind not in quiet:
                self._emit(message(kind, body))

        return take

    def _settle(self) -> None:
        """Let the backend finish its part of this batch."""
        if self._unsynced:
            self.backend.send(message(b"S"))
            self.backend.until(b"Z", lambda kind, body: None)
            self._unsynced = False

    def _ready(self) -> None:
        if self.backend.status == b"I" and self.context.copied:
            self.context.tell_count()  # a rollback would have undone it
            self.context.copied = False
        if self._dropping is not None:
            raise Dropped(self._dropping.seconds)
        self._emit(message(b"Z", self.backend.status))
        self._flush()

    def _lock(self, plan: Plan) -> None:
        """Wait for a table's write lock, of which Redshift has one per table."""
        if plan.history:
            self.services.publish()
        if plan.writes and self.backend.status == b"T":
            # The table first: a writer that holds its LOCK must not wait for a session that waits for the LOCK.
            self.backend.aside(f"LOCK TABLE {plan.writes} IN ROW EXCLUSIVE MODE")
            table = literal(plan.writes)
            self.backend.aside(f"SELECT pg_advisory_xact_lock(to_regclass({table})::oid::bigint)")

    # Statements -------------------------------------------------------------------------------------------

    def _plan(self, sql: str) -> Plan:
        plan = understand(sql, self.context.settings)
        if plan.run is not None and self.backend.status == b"E":
            raise SqlError(
                "25P02", "current transaction is aborted, commands ignored until end of transaction block"
            )
        plan.check(self.context)
        if plan.domains or plan.names:
            self.services.furnish(self.context.database, plan.domains, plan.names)
        return plan

    @contextmanager
    def _noted(self, plan: Plan) -> Iterator[None]:
        """Run a statement with its faults, and record it in the history."""
        label = self.context.settings.get("query_group", "default")
        place = self.context.database, self.context.user, self.backend.pid, label
        entry = self.services.history.begin(*place, plan.text, self.services.faults.utilities)
        self.context.query = entry.query
        ending: str | None = "the session ended"
        try:
            self._faults(plan)
            yield
            ending = None
            if plan.label is not None:
                self.context.settings["query_group"] = plan.label
        except SqlError as error:
            ending = as_redshift(error.fields, entry.query)["M"]
            raise
        finally:
            self.services.history.end(entry, ending)

    def _run(self, plan: Plan, run: Callable[[Context], str]) -> None:
        self._settle()
        plan.check(self.context)
        self._lock(plan)
        self._emit(wire.complete(run(self.context)))

    def _fail(self, error: SqlError) -> None:
        """Report an error, after making sure that the backend's transaction has failed too."""
        self._failed = True
        self._settle()
        if self.backend.status == b"T":
            with suppress(SqlError):
                self.backend.query("this is not SQL")
        for words in error.infos:
            self._emit(wire.info(words))
        self._emit(wire.fields_as(b"E", as_redshift(error.fields, self.context.query)))

    def _faults(self, plan: Plan) -> None:
        while self.services.faults.paused:
            self._linger(0.05)
        for fault in self.services.faults.next(plan.text):
            if fault.action == "delay":
                self._wait(fault.seconds)
            elif fault.action == "stall":
                self._wait(None)
            elif fault.action == "drop":
                raise Dropped(fault.seconds)
            elif fault.action == "drop_after":
                self._dropping = fault
            elif fault.error is not None:
                if fault.load_error is not None:
                    self.services.record(self.context.database, "rs_load_errors", {
                        "user_name": self.context.user, "session": self.backend.pid, "query": self.context.query, **fault.load_error,
                    })  # fmt: skip
                if plan.sql.upper() in ("COMMIT", "END") or plan.sql.upper().startswith(("COMMIT ", "END ")):
                    self._settle()
                    self.backend.query("ROLLBACK")
                raise fault.error

    def _wait(self, seconds: float | None) -> None:
        """Hang for a while, or until the faults are cleared or the backend ends."""
        era = self.services.faults.era
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.services.faults.era == era and (deadline is None or time.monotonic() < deadline):
            self._linger(0.02)

    def _linger(self, seconds: float) -> None:
        if self.backend.waiting(seconds):
            raise Gone("the backend has ended")
