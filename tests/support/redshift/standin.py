"""The stand-in: listens like a Redshift cluster, with a private PostgreSQL behind it.

Sessions are threads of this process; PostgreSQL is a separate process that ends with it. `execute` queries
PostgreSQL directly, bypassing everything that clients go through.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import redshift_connector
from redshift_connector.core import Connection

from floodmark.config.load import StoreSpec, Tls, WarehouseSpec
from floodmark.load.redshift.steps import Limits
from floodmark.setup.services.databases import Row
from floodmark.setup.services.process import HOST, free_ports
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.data_api import DataApi
from tests.support.redshift import door
from tests.support.redshift.backend import OWNER, Backend, python
from tests.support.redshift.columntypes import Domain
from tests.support.redshift.faults import Faults
from tests.support.redshift.history import History
from tests.support.redshift.postgres import DATABASE, MASTER, PASSWORD, Postgres, literal
from tests.support.redshift.session import Session
from tests.support.redshift.tokens import short
from tests.support.redshift.wire import Gone, SqlError

LEVELS = {"snapshot": "repeatable read", "serializable": "serializable"}


class RedshiftStandIn(Postgres):
    """Redshift for tests. `user` may do everything, in the database `dev`; `s3` is where s3:// leads to."""

    user, password, database = MASTER, PASSWORD, DATABASE
    role = "arn:aws:iam::123456789012:role/floodmark-stand-in"
    standin = True  # and not a real cluster: tests/live/cluster.py
    rows = 2000  # of the timed load
    limits = Limits(connect=5, lock=5, statement=60, idle=1, attempts=3, pause=0.05)

    def __init__(self, s3: SeaweedFS | StoreSpec, *, isolation: str = "snapshot", tls: bool = False) -> None:
        super().__init__(isolation=LEVELS[isolation])
        self.s3 = StoreSpec(**s3.store("")) if isinstance(s3, SeaweedFS) else s3
        self.faults = Faults()
        self.host, self.port = HOST, free_ports(1)[0]
        self.ca = None
        self._tls: ssl.SSLContext | None = None
        if tls:
            self.ca, self._tls = door.certificates(self.folder)
        self._listener: socket.socket | None = None
        self._sessions: set[Session] = set()
        self._buckets: dict[str, Store] = {}
        self._known: set[tuple[str, str]] = set()
        self._bases: dict[tuple[str, int], int] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.RLock()
        self.history = History()

    def start(self) -> None:
        """Start PostgreSQL, then listen."""
        super().start()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(200)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="redshift", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(link,), name="redshift session", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        session = None
        try:
            session = door.enter(link, self.folder, self._tls, self, self._names)
            if session is not None:
                with self._lock:
                    self._sessions.add(session)
                session.serve()
        except (Gone, OSError):
            pass
        finally:
            if session is not None:
                session.client.close()
                session.backend.close()
                with self._lock:
                    self._sessions.discard(session)
            else:
                link.close()

    def _shut(self) -> None:
        """Stop listening, and end every session."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.faults.clear()
        with self._lock:
            for session in self._sessions:
                session.client.close()
                session.backend.close()

    def stop(self) -> None:
        """Shut down cleanly; every session ends."""
        self._shut()
        super().stop()

    def kill(self) -> None:
        """Stop at once, like a failing cluster."""
        self._shut()
        super().kill()

    def pause(self) -> None:
        """Stall: sessions stay open, but their next statements get no answer."""
        self.faults.pause()

    def resume(self) -> None:
        """End a `pause`."""
        self.faults.resume()

    # For tests --------------------------------------------------------------------------------------------

    def url(self, user: str | None = None, password: str | None = None, database: str | None = None) -> str:
        """The value for `warehouse.url`."""
        who = f"{quote(user or self.user, '')}:{quote(password or self.password, '')}"
        return f"redshift://{who}@{self.host}:{self.port}/{quote(database or self.database, '')}"

    def options(self, **others: Any) -> dict[str, Any]:
        """The arguments for `redshift_connector.connect`."""
        about = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        return {**about, "database": self.database, "ssl": self._tls is not None, **others}

    def new_schema(self) -> str:
        """A name for a schema that nothing else has."""
        return f"t_{secrets.token_hex(4)}"

    def warehouse_spec(self, schema: str, **more: Any) -> WarehouseSpec:
        """The settings of a warehouse in one of the schemas."""
        about = {"iam_role": self.role, "tls": Tls("disabled"), **self.options()}
        about.pop("ssl")
        return WarehouseSpec("redshift", schema, **{**about, **more})

    def connection(self, **others: Any) -> Connection:
        """A connection of the driver, with every statement a transaction."""
        connection = redshift_connector.connect(**self.options(**others))
        connection.autocommit = True
        return connection

    def data_api(self, connect: Callable[[], Connection]) -> Any:
        """A client of the Data API; the connections are its sessions."""
        return DataApi(connect)

    def second_user(self, schema: str) -> dict[str, str]:
        """The log-in of a user who may use the schema, and has no right on any table."""
        name = f"second_{secrets.token_hex(4)}"
        self.create_user(name, "Second-1", f"USAGE ON SCHEMA {schema}")
        return {"user": name, "password": "Second-1"}

    def execute(self, *statements: str, database: str | None = None) -> list[Row]:
        """Run PostgreSQL statements as the owner in one committed transaction; returns the last one's rows."""
        backend = Backend.own(self.folder, database or self.database)
        try:
            backend.query("BEGIN ISOLATION LEVEL READ COMMITTED")
            rows: list[list[bytes | None]] = []
            types: list[int] = []
            for statement in statements:
                rows, types, _ = backend.run(statement)
            backend.query("COMMIT")
        finally:
            backend.close()
        return [tuple(python(cell, kind) for cell, kind in zip(row, types, strict=True)) for row in rows]

    def create_user(self, user: str, password: str, *grants: str, database: str | None = None) -> None:
        """Create an ordinary user with the given grants ("CREATE ON DATABASE dev", "SELECT ON TABLE t")."""
        self.execute(
            f"CREATE ROLE {user} LOGIN PASSWORD {literal(password)}",
            *(f"GRANT {grant} TO {user}" for grant in grants),
            database=database,
        )

    def create_database(self, name: str) -> None:
        """Create a database owned by the master user."""
        self.run("template1", f"CREATE DATABASE {name} OWNER {self.user}")

    @property
    def sessions(self) -> int:
        """How many clients are connected."""
        with self._lock:
            return len(self._sessions)

    def locks(self) -> list[Row]:
        """Who holds or awaits what: (pid, table, mode, granted)."""
        return self.execute(
            "SELECT l.pid, c.relname::text, l.mode, l.granted FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
            f"JOIN pg_stat_activity a ON a.pid = l.pid WHERE c.oid >= 16384 AND a.usename <> '{OWNER}' ORDER BY 1, 2"
        )

    # For sessions -----------------------------------------------------------------------------------------

    def bucket(self, name: str) -> Store:
        with self._lock:
            if name not in self._buckets:
                spec = self.s3
                self._buckets[name] = Store(
                    StoreSpec(
                        f"s3://{name}", spec.endpoint, spec.region, spec.access_key_id, spec.secret_access_key
                    )
                )
            return self._buckets[name]

    def furnish(self, database: str, domains: Iterable[Domain], names: Iterable[str]) -> None:
        with self._lock:
            for domain in domains:
                if (database, domain.name) not in self._known:
                    with suppress(SqlError):  # it exists: another stand-in object created it
                        self.run(database, domain.create)
                    self._known.add((database, domain.name))
            for name in names:
                self._names[short(name)] = name
                file = self.folder / "data" / "rs_names" / short(name)[-16:]
                file.parent.mkdir(mode=0o755, exist_ok=True)
                file.write_text(name)
                file.chmod(0o644)

    def record(self, database: str, table: str, *rows: dict[str, object]) -> None:
        if not rows:
            return
        insert = ";".join(_insert(table, row) for row in rows)
        if self.faults.lag_seconds:
            late = threading.Timer(self.faults.lag_seconds, self._record_late, (database, insert))
            late.daemon = True
            late.start()
        else:
            self.run(database, insert)

    def _record_late(self, database: str, insert: str) -> None:
        with suppress(OSError, Gone, SqlError):  # it may have ended since
            self.run(database, insert)

    def publish(self) -> None:
        self.history.write(self.folder / "data" / "rs_history.json", self.faults.lag_seconds)

    def base_type(self, database: str, kind: int) -> int:
        with self._lock:
            if kind >= 16_384 and (database, kind) not in self._bases:
                found = self.execute(f"SELECT typbasetype FROM pg_type WHERE oid = {kind}", database=database)
                self._bases[database, kind] = int(found[0][0]) if found else kind
            return self._bases.get((database, kind), kind)


def _insert(table: str, row: dict[str, object]) -> str:
    values = ", ".join(_value(value) for value in row.values())
    columns = ", ".join(f'"{name}"' for name in row)
    return f"INSERT INTO pg_catalog.{table} ({columns}) VALUES ({values})"


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else literal(str(value))
