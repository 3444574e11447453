"""What probes of a live database need below our own steps: a socket that ends without a word, requests as they are."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from floodmark.errors import TransientError
from floodmark.warehouse.redshift_data_api import DataApiSession
from floodmark.warehouse.redshift_errors import Problem, judged, lost
from floodmark.warehouse.redshift_socket import SocketSession
from floodmark.warehouse.redshift_steps import Failed, Session, Transport


def cut(session: Session) -> None:
    """End the session's socket as the death of this host would; the server is left to notice by itself.

    What waits for the Data API stops waiting, and asks for the statement to be canceled.
    """
    if isinstance(session, SocketSession):
        with suppress(OSError, AttributeError):
            session._connection._usock.shutdown(socket.SHUT_RDWR)
    elif isinstance(session, DataApiSession):
        session.given_up.set()


class Requests:
    """The Data API's own requests, with the token in the caller's hands. Raises Failed."""

    def __init__(self, transport: Transport) -> None:
        session = transport.open()
        assert isinstance(session, DataApiSession)
        self._session = session
        self._client: Any = session._client
        self._database = session._database

    def submit(self, statements: Sequence[str], token: str | None = None) -> str:
        """The id of a statement, or of several in one transaction."""
        shared = {**self._database, "ClientToken": token or uuid4().hex, "StatementName": "floodmark-live"}
        try:
            if len(statements) == 1:
                return str(self._client.execute_statement(Sql=statements[0], **shared)["Id"])
            return str(self._client.batch_execute_statement(Sqls=list(statements), **shared)["Id"])
        except ClientError as error:
            said = error.response.get("Error", {})
            raise judged(Problem(f"{said.get('Code', '')}: {said.get('Message', '')}")) from error
        except BotoCoreError as error:
            raise judged(Problem(str(error))) from error

    def ended(self, id_: str, seconds: float) -> dict[str, Any]:
        """What AWS says of it once it is over."""
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
