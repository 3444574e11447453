"""AWS's Data API over the stand-in: requests and answers are validated against botocore's own models.

Statements run through the driver, in one transaction per batch; ids, states and values look as AWS documents them, and
its limits apply: 40 statements of 100 kB, rows of 64 kB.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import botocore.session
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.stub import Stubber
from botocore.validate import ParamValidator
from redshift_connector.core import Connection
from redshift_connector.error import Error as DriverError

MOST_STATEMENTS = 40
MOST_BYTES = 100_000
MOST_OF_A_ROW = 64_000


class DataApi:
    """A client of `redshift-data` without AWS. A token used before returns the same id as then.

    `losing` hides the outcome of loads: lost "before" they run, "after" they ran, or "all", where every later submission
    fails as well.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._model = botocore.session.get_session().get_service_model("redshift-data")
        self._numbers = itertools.count(1)
        self._done: dict[str, dict[str, Any]] = {}
        self._results: dict[str, list[list[dict[str, Any]]]] = {}
        self._tokens: dict[str, str] = {}
        self._lost: set[str] = set()
        self.losing: str | None = None
        self.refusing: int | None = None  # refuse after this many committed loads
        self.batches: list[list[str]] = []
        self._kept: list[list[str]] = []

    def execute_statement(self, **request: Any) -> dict[str, Any]:
        self._check("ExecuteStatement", request)
        return self._submit(request["ClientToken"], [request["Sql"]], batch=False)

    def batch_execute_statement(self, **request: Any) -> dict[str, Any]:
        self._check("BatchExecuteStatement", request)
        return self._submit(request["ClientToken"], request["Sqls"], batch=True)

    def describe_statement(self, **request: Any) -> dict[str, Any]:
        self._check("DescribeStatement", request)
        if request["Id"] in self._lost:
            raise EndpointConnectionError(endpoint_url="https://redshift-data")
        return self._done[request["Id"]]

    def get_statement_result(self, **request: Any) -> dict[str, Any]:
        self._check("GetStatementResult", request)
        return {"Records": self._results[request["Id"]]}

    def _check(self, operation: str, request: dict[str, Any]) -> None:
        shape = self._model.operation_model(operation).input_shape
        report = ParamValidator().validate(request, shape)
        assert not report.has_errors(), report.generate_report()
        statements = request.get("Sqls", [request["Sql"]] if "Sql" in request else [])
        if any(len(sql.encode()) > MOST_BYTES for sql in statements):
            raise _invalid(operation, "Cannot process query string larger than 100kB")
        if len(statements) > MOST_STATEMENTS:
            raise _invalid(operation, f"{len(statements)} statements, and {MOST_STATEMENTS} are possible")

    def _submit(self, token: str, statements: Sequence[str], batch: bool) -> dict[str, Any]:
        if self.losing == "all" and self._lost:
            raise EndpointConnectionError(endpoint_url="https://redshift-data")
        if self.refusing == 0 and batch:
            said = {"Error": {"Code": "AccessDeniedException", "Message": "not today"}}
            raise ClientError(said, "BatchExecuteStatement")
        if token in self._tokens:
            return {"Id": self._tokens[token]}
        id_ = f"d9b6c0c9-0747-4bf4-b142-{next(self._numbers):012}"
        self._tokens[token] = id_
        if self.losing and any(sql.startswith("COPY") for sql in statements):
            self._lost.add(id_)
            if self.losing == "before":
                self._kept.append(list(statements))
                return {"Id": id_}
        self._run(id_, statements, batch)
        return {"Id": id_}

    def late(self) -> list[str]:
        """Run what was submitted and lost; returns how it ended."""
        kept, self._kept = self._kept, []
        for number, statements in enumerate(kept):
            self._run(f"late-{number}", statements, batch=True)
        return [self._done[f"late-{number}"]["Status"] for number in range(len(kept))]

    def _run(self, id_: str, statements: Sequence[str], batch: bool) -> None:
        connection = self._connect()
        subs: list[dict[str, Any]] = []
        said: dict[str, Any] = {"Id": id_, "Status": "FINISHED", "HasResultSet": False}
        try:
            cursor = connection.cursor()
            cursor.execute("SELECT pg_backend_pid()")
            said["RedshiftPid"] = cursor.fetchall()[0][0]
            if batch:
                cursor.execute("BEGIN")
            for number, sql in enumerate(statements, 1):
                subs.append({"Id": f"{id_}:{number}", "Status": "STARTED"})
                cursor.execute(sql)
                subs[-1]["Status"] = "FINISHED"
                if cursor.description:
                    records = [[_cell(value) for value in row] for row in cursor.fetchall()]
                    if any(_size(record) > MOST_OF_A_ROW for record in records):
                        raise DriverError("Packet for query is too large")
                    self._results[f"{id_}:{number}" if batch else id_] = records
                    said["HasResultSet"] = True
            if batch:
                self.batches.append(list(statements))
                cursor.execute("COMMIT")
                if self.refusing and any(sql.startswith("COPY") for sql in statements):
                    self.refusing -= 1
        except DriverError as error:
            problem = error.args[0]
            text = (
                f"{problem['M']}\n  Detail: {problem.get('D', '')}"
                if isinstance(problem, dict)
                else str(problem)
            )
            said |= {"Status": "FAILED", "Error": f"ERROR: {text}"}
            if subs:
                subs[-1]["Status"] = "FAILED"
        finally:
            connection.close()
        if batch:
            rest = range(len(subs) + 1, len(statements) + 1)
            said["SubStatements"] = subs + [{"Id": f"{id_}:{n}", "Status": "ABORTED"} for n in rest]
        self._done[id_] = said


def _invalid(operation: str, why: str) -> ClientError:
    return ClientError({"Error": {"Code": "ValidationException", "Message": why}}, operation)


def _size(record: list[dict[str, Any]]) -> int:
    return sum(len(str(value).encode()) for cell in record for value in cell.values())


def _cell(value: Any) -> dict[str, Any]:
    if value is None:
        return {"isNull": True}
    if isinstance(value, bool):
        return {"booleanValue": value}
    if isinstance(value, int):
        return {"longValue": value}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Decimal | date | datetime):
        return {"stringValue": str(value)}
    return {"stringValue": value.decode() if isinstance(value, bytes) else str(value)}


def stubbed(service: str = "redshift-data") -> tuple[Any, Stubber]:
    """A real botocore client with hand-written answers, validated like its requests."""
    session = botocore.session.get_session()
    session.set_credentials("key", "secret")
    client = session.create_client(service, region_name="eu-central-1")
    return client, Stubber(client)
