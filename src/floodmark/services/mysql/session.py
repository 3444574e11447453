"""Connections to the source: read-only sessions with fixed settings, enforced TLS, and bounded waits.

Small results come through the driver, as bytes of MySQL's text protocol; large ones bypass it and arrive as
columns. Every failure becomes a Floodmark error here, so no caller sees the driver. `log_in` handles the
log-in.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.config.load import SourceSpec
from floodmark.model import events
from floodmark.model.errors import TransientError
from floodmark.services import ssh as tunnel
from floodmark.services.mysql.errors import translated
from floodmark.services.mysql.rows.stream import Answer
from floodmark.services.mysql.rows.text import Array, MySQLError
from floodmark.services.mysql.settings import settings

if TYPE_CHECKING:
    from floodmark.services.mysql.log_in import Link

Row = tuple[bytes | None, ...]

CONNECT_SECONDS = 5
# Prefix of our statements: identifies them to anyone reading the process list, and to ourselves.
LABEL = "/* floodmark: "


class Session:
    """One connection. Text arrives as UTF-8, TIMESTAMPs in `zone`; the server refuses writes."""

    def __init__(
        self,
        spec: SourceSpec,
        *,
        read_timeout: int = 60,
        connect_timeout: int = CONNECT_SECONDS,
        zone: str = "+00:00",
        purpose: str = "query",
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed` is called at the end, possibly twice."""
        self.spec = spec
        self._closed = closed
        self._label = f"{LABEL}{purpose.replace('*/', '* /')} */ "
        self._read_timeout = read_timeout
        self._answer: Answer | None = None  # to the last statement, if it bypassed the driver
        self._link: Link = _connect(spec, read_timeout, connect_timeout)
        # Another thread can't end TLS while this one is reading, but it can shut down the socket underneath.
        self._wire = socket.socket(fileno=os.dup(self._link.socket.fileno()))
        try:
            for statement in settings(zone):
                self._ask(statement)
        except BaseException:
            self.close()
            raise

    @property
    def connection_id(self) -> int:
        """The server's id of this connection."""
        return self._link.number

    def rows(self, sql: str) -> list[Row]:
        """All rows of a small result; empty for statements without one."""
        return self._stored(sql)[1]

    def named(self, sql: str) -> list[dict[str, str | None]]:
        """All rows of a small result, as text by column name."""
        names, rows = self._stored(sql)
        return [
            {
                n: None if cell is None else cell.decode(errors="replace")
                for n, cell in zip(names, row, strict=True)
            }
            for row in rows
        ]

    def records(self, sql: str) -> list[dict[str, bytes | None]]:
        """The same by lower-case column name, as bytes: for results whose columns differ between servers."""
        names, rows = self._stored(sql)
        return [dict(zip([name.lower() for name in names], row, strict=True)) for row in rows]

    def _stored(self, sql: str) -> tuple[list[str], list[Row]]:
        """The column names and all rows of a small result."""
        with events.statement("mysql", self._label + sql):
            return self._ask(sql)

    def _ask(self, sql: str) -> tuple[list[str], list[Row]]:
        self._answer = None
        try:
            return self._link.ask((self._label + sql).encode())
        except MySQLError as error:
            raise translated(error, self.spec) from error

    def columns(self, sql: str, size: int, wanted: Sequence[pa.DataType]) -> Stream:
        """The columns of a large result, `size` rows at a time. The session is busy until it has ended.

        `wanted` holds the types that the columns will become; numbers and times may arrive in theirs already.
        """
        self._answer = Answer(self._link.socket, wanted, self._read_timeout)
        try:
            self._answer.ask((self._label + sql).encode())
        except MySQLError as error:
            if not self._answer.refused:
                self.close()
            raise translated(error, self.spec) from error
        return Stream(self, size, self._answer)

    def warnings(self) -> int:
        """How many warnings the last statement left; for a stream, only after its end."""
        return self._answer.warnings if self._answer is not None else self._link.warnings()

    def abort(self) -> None:
        """Aborts, from any thread, whatever the connection is waiting for; its caller gets an error."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._link.close()
        self._wire.close()
        self._closed()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Stream:
    """The blocks of a result as they arrive. The result was complete only if the iteration ends normally.

    Leaving early closes the connection: dropping a half-read result would mean reading it to its end.
    """

    def __init__(self, session: Session, size: int, answer: Answer) -> None:
        self._size = size
        self._session = session
        self._answer: Answer | None = answer

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> list[Array]:
        if self._answer is None:
            raise StopIteration
        try:
            columns = self._answer.fetch_row(self._size)
        except MySQLError as error:
            self._session.close()
            raise translated(error, self._session.spec) from error
        if not columns:
            self._answer = None
            raise StopIteration
        return columns

    def close(self) -> None:
        if self._answer is not None:
            self._session.close()
        self._answer = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------- connecting


def _connect(spec: SourceSpec, read_timeout: int, connect_timeout: int) -> Link:
    from floodmark.services.mysql.log_in import opened  # imports the driver, so only when connecting

    def at(address: tuple[str, int] | str) -> Link:
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
