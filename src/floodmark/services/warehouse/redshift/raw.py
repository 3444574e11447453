"""What probes of a live database need below our own steps: a socket cut without warning, raw requests."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from floodmark.model.errors import TransientError
from floodmark.services.warehouse.redshift.data_api import DataApiSession
from floodmark.services.warehouse.redshift.errors import Problem, failure_of, lost
from floodmark.services.warehouse.redshift.socket import SocketSession
from floodmark.services.warehouse.redshift.steps import Failed, RedshiftSession, Transport


def cut(session: RedshiftSession) -> None:
    """Cut the session's socket as the death of this process would, whatever it is doing.

    On the Data API, the session stops waiting and cancels its statement.
    """
    if isinstance(session, SocketSession):
        with suppress(OSError, AttributeError):
            session._connection._usock.shutdown(socket.SHUT_RDWR)
    elif isinstance(session, DataApiSession):
        session.given_up.set()


def commit_unheard(session: RedshiftSession) -> None:
    """Send COMMIT and cut the socket before the answer, like a client that dies in between.

    It bypasses the driver, which would wait for answers on the way.
    """
    assert isinstance(session, SocketSession)
    words = b"COMMIT\0"
    session._connection._usock.sendall(b"Q" + struct.pack("!i", len(words) + 4) + words)
    cut(session)


class Requests:
    """Raw Data API requests, with the token chosen by the caller. Raises Failed."""

    def __init__(self, transport: Transport) -> None:
        session = transport.open()
        assert isinstance(session, DataApiSession)
        self._session = session
        self._client: Any = session._client
        self._database = session._database

    def submit(self, statements: Sequence[str], token: str | None = None) -> str:
        """Submit a statement, or several as one transaction; returns the id."""
        shared = {**self._database, "ClientToken": token or uuid4().hex, "StatementName": "floodmark-live"}
        try:
            if len(statements) == 1:
                return str(self._client.execute_statement(Sql=statements[0], **shared)["Id"])
            return str(self._client.batch_execute_statement(Sqls=list(statements), **shared)["Id"])
        except ClientError as error:
            said = error.response.get("Error", {})
            raise failure_of(Problem(f"{said.get('Code', '')}: {said.get('Message', '')}")) from error
        except BotoCoreError as error:
            raise failure_of(Problem(str(error))) from error

    def ended(self, id_: str, seconds: float) -> dict[str, Any]:
        """What AWS reports once it has ended."""
        until = time.monotonic() + seconds
        while True:
            try:
                said: dict[str, Any] = self._client.describe_statement(Id=id_)
            except (ClientError, BotoCoreError) as error:
                raise lost(error, "the Redshift Data API") from error
            if said["Status"] in ("FINISHED", "FAILED", "ABORTED"):
                return said
            if time.monotonic() > until or self._session.given_up.is_set():
                with suppress(ClientError, BotoCoreError):
                    self._client.cancel_statement(Id=id_)
                raise Failed(TransientError(f"the Data API did not finish within {seconds:g} s"), lost=True)
            time.sleep(0.3)

    def run(
        self, statements: Sequence[str], token: str | None = None, seconds: float = 120.0
    ) -> dict[str, Any]:
        return self.ended(self.submit(statements, token), seconds)
