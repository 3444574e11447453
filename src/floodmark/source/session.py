"""Connections to the source: read-only sessions with fixed settings, enforced TLS, and bounded waits.

The driver only logs in (`log_in`). Small results arrive whole, as bytes of MySQL's text protocol; large ones
arrive as columns. Every failure becomes a Floodmark error here, so no caller sees the driver.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.config.load import SourceSpec
from floodmark.host import ssh as tunnel
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.statements import statement
from floodmark.source.errors import translated
from floodmark.source.rows.decoder import Array
from floodmark.source.rows.packets import MySQLError, SmallResult, StatementRefused, ask, send
from floodmark.source.rows.stream import RowStream

# The server waits this long for a reader that is busy writing to the store.
WRITE_SECONDS = 3600

# Each statement stands alone, with no limit on its rows or its time. The conditional comments hold settings
# that only MySQL or only MariaDB knows.
_UNLIMITED = (
    "autocommit = 1, completion_type = 0, sql_quote_show_create = 1, sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    " /*!50708 , max_execution_time = 0 */ /*M!100101 , max_statement_time = 0 */"
)
# Metadata is current rather than cached, and complete: keys that MySQL generated itself are shown. Plans come
# from the optimizer that can print them.
_CURRENT = (
    "/*!80003 , information_schema_stats_expiry = 0 */"
    " /*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
    " /*!90700 , optimizer_switch = 'hypergraph_optimizer=off' */"
)

# The initial statements of a session, which reads in UTC.
SETTINGS = (
    f"SET NAMES utf8mb4, {_UNLIMITED}, time_zone = '+00:00', sql_mode = '', net_write_timeout = {WRITE_SECONDS} {_CURRENT}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
)


if TYPE_CHECKING:
    from floodmark.source.log_in import Connection

Row = tuple[bytes | None, ...]

CONNECT_SECONDS = 5
# Prefix of our statements: identifies them to anyone reading the process list, and to ourselves.
LABEL = "/* floodmark: "


def as_text(cell: bytes | None) -> str:
    """A cell as text; empty for NULL."""
    return (cell or b"").decode(errors="replace")


class Session:
    """One connection. Text arrives as UTF-8, TIMESTAMPs in UTC; the server refuses writes."""

    def __init__(
        self,
        spec: SourceSpec,
        *,
        read_timeout: int = 60,
        connect_timeout: int = CONNECT_SECONDS,
        purpose: str = "query",
    ) -> None:
        self.spec = spec
        # Offsets of the server's time zones at moments in the past and future, by the zone's name.
        self.zone_offsets: dict[bytes | None, dict[int, int]] = {}
        self._once: dict[str, list[Row]] = {}
        self.use_for(purpose)
        self.read_timeout = read_timeout
        self.opened = time.monotonic()
        self._answer: RowStream | None = None  # to the last statement, if it bypassed the driver
        self._warnings = 0  # of the last statement that did not
        self._closed = False
        self._connection = _connect(spec, read_timeout, connect_timeout)
        self._link: socket.socket = self._connection.link
        # Another thread can't end TLS while this one is reading, but it can shut down the socket underneath.
        self._wire = socket.socket(fileno=os.dup(self._link.fileno()))
        try:
            for statement in SETTINGS:
                self._ask(statement)
        except BaseException:
            self.close()
            raise

    def use_for(self, purpose: str) -> Session:
        """The session, for another block of queries."""
        self._label = f"{LABEL}{purpose.replace('*/', '* /')} */ "
        return self

    @property
    def at_rest(self) -> bool:
        """Whether the connection waits for a statement: neither side has closed it, and all that was sent is read."""
        if self._answer is not None and not self._answer.ended:
            return False
        try:
            return not self._closed and not select.select([self._wire], [], [], 0)[0]
        except (OSError, ValueError):  # closed by us
            return False

    @property
    def connection_id(self) -> int:
        """The server's id of this connection."""
        return self._connection.number

    def rows(self, sql: str) -> list[Row]:
        """All rows of a small result; empty for statements without one."""
        return self._stored(sql).rows

    def rows_within(self, sql: str, seconds: float) -> list[Row] | None:
        """The same; None if the server keeps silent for that long. Then the connection is closed: the server may never end."""
        self._link.settimeout(seconds)
        try:
            return self.rows(sql)
        except TransientError:
            if not self._closed:
                raise
            return None
        finally:
            if not self._closed:
                self._link.settimeout(self.read_timeout or None)

    def once(self, sql: str) -> list[Row]:
        """The same for a question whose answer can't change while the connection lives: it is asked only once."""
        if sql not in self._once:
            self._once[sql] = self.rows(sql)
        return self._once[sql]

    def records(self, sql: str) -> list[dict[str, str | None]]:
        """All rows of a small result, as text by lower-case column name: for results whose columns differ between servers."""
        found = self._stored(sql)
        try:
            names = [name.lower() for name in found.names()]
        except MySQLError as error:
            raise self._translated(error) from error
        texts = ([None if cell is None else as_text(cell) for cell in row] for row in found.rows)
        return [dict(zip(names, row, strict=True)) for row in texts]

    def variables(self, sql: str) -> dict[str, str]:
        """The answer to a SHOW of variables or of status: the values, by their names in lower case."""
        return {as_text(name).lower(): as_text(value) for name, value in self.rows(sql)}

    def _stored(self, sql: str) -> SmallResult:
        """A small result as a whole."""
        with statement("mysql", self._label + sql):
            return self._ask(sql)

    def _ask(self, sql: str) -> SmallResult:
        self._answer = None
        try:
            result = ask(self._link, (self._label + sql).encode())
        except MySQLError as error:
            raise self._translated(error) from error
        self._warnings = result.warnings
        return result

    def _translated(self, error: MySQLError) -> FloodmarkError:
        """The error as one of ours; unless the server has only refused a statement, the connection can't be used any more."""
        if not isinstance(error, StatementRefused):
            self.close()
        return translated(error, self.spec)

    def columns(
        self, sql: str, size: int, wanted: Sequence[pa.DataType]
    ) -> Generator[list[Array], None, None]:
        """The columns of a large result, `size` rows at a time; it was complete only if the iteration ends normally.

        `wanted` holds the types that the columns will become; numbers and times may arrive in theirs already. The session
        is busy until the end. Closing the generator earlier closes the connection: dropping a half-read result would mean
        reading it to its end.
        """
        answer = self._answer = RowStream(self._link, wanted, self.read_timeout)
        try:
            answer.ask((self._label + sql).encode())
            yield from iter(partial(answer.fetch_row, size), [])  # holds no block while the next one arrives
        except MySQLError as error:
            raise self._translated(error) from error
        except BaseException:
            self.close()
            raise

    def send(self, command: bytes) -> socket.socket:
        """Sends a command of which the caller reads the answer, off the socket; the session can't be asked anything after it."""
        try:
            send(self._link, command)
        except MySQLError as error:
            raise self._translated(error) from error
        return self._link

    def warnings(self) -> int:
        """How many warnings the last statement left; for a stream, only after its end."""
        return self._answer.warnings if self._answer is not None else self._warnings

    def abort(self) -> None:
        """Aborts, from any thread, whatever the connection is waiting for; its caller gets an error."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._closed = True
        self._connection.close()
        self._wire.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------- connecting


def _connect(spec: SourceSpec, read_timeout: int, connect_timeout: int) -> Connection:
    from floodmark.source.log_in import opened  # imports the driver, so only when connecting

    def at(address: tuple[str, int] | str) -> Connection:
        try:
            return opened(spec, address, read_timeout, connect_timeout)
        except MySQLError as error:
            raise translated(error, spec) from error

    if spec.ssh is None:
        return at(spec.socket or (spec.host, spec.port))
    port = tunnel.local_port(spec.ssh, spec.host, spec.port)
    try:
        return at(("127.0.0.1", port))
    except TransientError as error:
        # The tunnel's local end always answers; only ssh knows what happened on the rest of the way.
        if (why := tunnel.complaint(spec.ssh, spec.host, spec.port)) is not None:
            raise why from error
        raise


@dataclass(frozen=True)
class Version:
    """The vendor, and the first two numbers; empty if the text has none."""

    mariadb: bool
    numbers: tuple[int, ...]

    @property
    def windows(self) -> bool:
        """Whether it has window functions."""
        return self.numbers >= ((10, 2) if self.mariadb else (8, 0))

    @property
    def generates(self) -> bool:
        """Whether it has generated columns and shows their expressions."""
        return self.numbers >= ((10, 2) if self.mariadb else (5, 7))

    @property
    def shows_locks(self) -> bool:
        """Whether it lists all metadata locks. Before 8.0, foreign keys wrote to other tables without one."""
        return not self.mariadb and self.numbers >= (8, 0)


def parse_version(text: str) -> Version:
    """Parses a server's version; MariaDB may prefix it with "5.5.5-" for the sake of old replicas."""
    parts = text.removeprefix("5.5.5-").split("-")[0].split(".")[:2]
    return Version("mariadb" in text.lower(), tuple(int(part) for part in parts if part.isdigit()))


def version(session: Session) -> Version:
    return parse_version((session.once("SELECT VERSION()")[0][0] or b"").decode(errors="replace"))
