"""Redshift through the Data API, for users without a network path to the database: AWS requests, no socket.

A transaction is one batch, so its decisions are statements that fail. Submitting is idempotent by token, and
AWS says whether the batch was committed; if even that query fails, the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from floodmark.config.load import WarehouseSpec
from floodmark.host.retry import Retries
from floodmark.load.redshift.catalog import literal
from floodmark.load.redshift.steps import (
    LOGGING_IN,
    AtWork,
    Busy,
    Choose,
    Do,
    Expect,
    Limits,
    Lock,
    Problem,
    Row,
    StatementFailed,
    Step,
    TooLong,
    detailed,
    doing,
    failure_of,
    lost,
    milliseconds,
)
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.statements import statement

MOST_STATEMENTS = 40
MOST_BYTES = 100_000
_ADDRESS = "the Redshift Data API"
_OVER = ("FINISHED", "FAILED", "ABORTED")
_UNANSWERED = 5  # failed requests in a row, each with its own retries


class DataApiTransport:
    """Sessions with one database through AWS; tests may pass in a client."""

    longest = MOST_BYTES

    def __init__(self, spec: WarehouseSpec, limits: Limits, client: Any = None, poll: float = 0.2) -> None:
        self._spec = spec
        self.limits = limits
        self._client = client
        self._poll = poll

    def open(self, label: str = "") -> DataApiSession:
        """A session, which only sends requests; nothing stays open at AWS."""
        if self._client is None:
            self._client = self._connected()
        return DataApiSession(self._client, _database(self._spec), self.limits, label, self._poll)

    def _connected(self) -> Any:
        iam = self._spec.iam
        config = Config(
            connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5}
        )
        try:
            session = boto3.Session(profile_name=iam.profile if iam else None)
            return session.client("redshift-data", region_name=iam.region if iam else None, config=config)
        except (BotoCoreError, ValueError) as error:
            raise StatementFailed(_unusable(error)) from error


class DataApiSession:
    """Runs statements, one request after another."""

    def __init__(
        self, client: Any, database: dict[str, str], limits: Limits, label: str, poll: float
    ) -> None:
        self.pid: int | None = None
        self._client = client
        self._database = database
        self._limits = limits
        self._label = label
        self._poll = poll

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        """The rows of a query; with a lock, in a transaction that changes nothing."""
        seconds = waits or seconds or self._limits.question
        if lock is None:
            said = self._run(sql, seconds)
            return list(self._rows(said["Id"])) if said.get("HasResultSet") else []
        first = self._opening(lock)
        said = self._run(sql, lock.seconds + seconds, first)
        return list(self._rows(f"{said['Id']}:{len(first) + 1}"))

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        """Run one statement by itself."""
        self._run(sql, self._limits.statement if seconds is None else seconds)

    def _run(self, sql: str, seconds: float, before: Sequence[str] = ()) -> dict[str, Any]:
        """Run a statement, after some others; returns what AWS says of it once it is over."""
        with statement("redshift", sql):
            said = self._wait(self._submit([*before, sql]), seconds)
        if said["Status"] != "FINISHED":
            raise failure_of(Problem(str(said.get("Error") or "the statement was aborted")))
        return said

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> None:
        """Run the steps as one batch; if an answer calls for other steps, as another batch."""
        refused = 0
        while True:
            try:
                return self._batch(lock, list(_timed(_flat(steps, refused), self._limits.statement)))
            except _Otherwise:
                refused += 1

    def _batch(self, lock: Lock, flat: Sequence[Do | Expect]) -> None:
        opening = self._opening(lock)
        statements = [*opening, *(_said(step) for step in flat)]
        try:
            batch = self._submit(statements)
            with statement("redshift", "; ".join(statements)):
                said = self._wait(batch, lock.seconds + self._limits.statement, statements, lock.at_work)
        except StatementFailed as failed:
            failed.stage = "commit"
            raise
        if said["Status"] == "FINISHED":
            return
        number = _failed_statement(said) - len(opening)
        step = flat[number] if 0 <= number < len(flat) else None
        problem = str(said.get("Error") or "")
        if isinstance(step, Expect) and "divi" in problem.lower():
            raise StatementFailed(step.error(None), again=step.again)
        why = detailed(failure_of(Problem(problem or "the batch was aborted")), self.query, self.pid)
        if why.canceled and isinstance(step, Do) and step.seconds is not None:
            raise StatementFailed(Busy(step.sql, step.seconds))
        why.stage = "lock" if number < 0 else "steps"
        raise why

    def close(self) -> None:
        """Nothing to close."""

    def _opening(self, lock: Lock) -> list[str]:
        """Settings and the lock; settings take no snapshot, so the lock still precedes everything seen."""
        return [
            *([f"SET query_group TO {literal(self._label[:320])}"] if self._label else []),
            "SET TIMEZONE TO 'UTC'",
            _limit(lock.seconds),
            f"LOCK TABLE {lock.table}",
            _limit(self._limits.statement),
        ]

    def _submit(self, statements: Sequence[str]) -> str:
        """Submit the statements once, however often the request has to be repeated; returns the id."""
        if problem := _too_long(statements):
            raise StatementFailed(problem)
        shared = {**self._database, "ClientToken": uuid4().hex, "StatementName": "floodmark"}
        for _ in Retries(_UNANSWERED, self._poll, factor=1):
            try:
                if len(statements) == 1:
                    answer = self._client.execute_statement(Sql=statements[0], **shared)
                else:
                    answer = self._client.batch_execute_statement(Sqls=list(statements), **shared)
                return str(answer["Id"])
            except ClientError as error:
                raise _refused(error) from error
            except (ParamValidationError, NoCredentialsError, PartialCredentialsError) as error:
                raise StatementFailed(_unusable(error)) from error  # nothing was sent
            except BotoCoreError as error:
                unanswered = error
        raise lost(unanswered, _ADDRESS) from unanswered

    def _wait(
        self, batch: str, seconds: float, statements: Sequence[str] = (), at_work: AtWork = lambda kind: None
    ) -> dict[str, Any]:
        """The result once it is over; StatementFailed if that can't be determined, or if it took too long.

        `at_work` is called with what the batch's statements are doing.
        """
        unanswered = 0
        for _ in Retries(pause=self._poll, factor=1.5, longest=2.0, seconds=seconds):
            try:
                said: dict[str, Any] = self._client.describe_statement(Id=batch)
                unanswered = 0
            except (ClientError, BotoCoreError) as error:
                unanswered += 1
                if unanswered >= _UNANSWERED:
                    raise lost(error, _ADDRESS) from error
                continue
            self.pid = int(said.get("RedshiftPid") or 0) or self.pid
            if said["Status"] in _OVER:
                return said
            done = sum(part.get("Status") == "FINISHED" for part in said.get("SubStatements", ()))
            if done < len(statements) and (kind := doing(statements[done])) is not None:
                try:
                    at_work(kind)
                except BaseException:
                    self._cancel(batch)
                    raise
        self._cancel(batch)
        late = TransientError(f"{_ADDRESS} did not finish in time", hint="run again")
        raise StatementFailed(late, lost=True, canceled=True)

    def _cancel(self, batch: str) -> None:
        try:
            self._client.cancel_statement(Id=batch)
        except (ClientError, BotoCoreError):
            return  # the ledger will show whether it was committed

    def _rows(self, statement: str) -> Iterator[Row]:
        more: dict[str, str] = {}
        while True:
            try:
                page = self._client.get_statement_result(Id=statement, **more)
            except ClientError as error:
                raise _refused(error) from error
            except BotoCoreError as error:
                raise lost(error, _ADDRESS) from error
            for record in page["Records"]:
                yield tuple(_value(cell) for cell in record)
            if not page.get("NextToken"):
                return
            more = {"NextToken": page["NextToken"]}


def _database(spec: WarehouseSpec) -> dict[str, str]:
    """Which database, and as which user."""
    iam = spec.iam
    found: dict[str, str | None] = {"Database": spec.database}
    if iam is not None and iam.workgroup:
        found |= {"WorkgroupName": iam.workgroup, "SecretArn": iam.secret_arn}
    elif iam is not None:
        user = None if iam.secret_arn else spec.user
        found |= {"ClusterIdentifier": iam.cluster, "SecretArn": iam.secret_arn, "DbUser": user}
    return {name: value for name, value in found.items() if value}


class _Otherwise(Exception):
    """The batch was rolled back because a `Choose` got another answer than expected."""


def _otherwise(found: object) -> FloodmarkError:
    raise _Otherwise


def _flat(steps: Sequence[Step], refused: int) -> Iterator[Do | Expect]:
    """The steps with choices resolved: the first `refused` take `otherwise`, the rest a check and `then`."""
    for step in steps:
        if not isinstance(step, Choose):
            yield step
        elif refused:
            yield from _flat(step.otherwise(), refused - 1)
        else:
            yield Expect(step.sql, step.want, _otherwise)
            yield from _flat(step.then, refused)


def _timed(steps: Iterable[Do | Expect], usual: float) -> Iterator[Do | Expect]:
    """The steps, with the statements that limit how long some of them may wait."""
    now = usual
    for step in steps:
        bound = step.seconds if isinstance(step, Do) else None
        if (wanted := usual if bound is None else bound) != now:
            now = wanted
            yield Do(_limit(now))
        yield step


def _limit(seconds: float) -> str:
    return f"SET statement_timeout TO {milliseconds(seconds)}"


def _said(step: Do | Expect) -> str:
    """A step as a statement; a check divides by zero if it does not hold."""
    if isinstance(step, Do):
        return step.sql
    return f"SELECT 1 / CASE WHEN ({step.sql}) = {literal(step.want)} THEN 1 ELSE 0 END"


def _too_long(statements: Sequence[str]) -> TooLong | None:
    longest = max(len(sql.encode()) for sql in statements)
    if len(statements) <= MOST_STATEMENTS and longest <= MOST_BYTES:
        return None
    return TooLong(
        f"this takes {len(statements)} statements of up to {longest:,} bytes, but the Data API allows "
        f"{MOST_STATEMENTS} of {MOST_BYTES:,}",
        hint="run it once with transport: socket",
    )


def _failed_statement(said: dict[str, Any]) -> int:
    """The index of the statement in the batch that failed."""
    states = [part.get("Status") for part in said.get("SubStatements", ())]
    return next((i for i, state in enumerate(states) if state in ("FAILED", "ABORTED")), len(states))


def _unusable(error: Exception) -> ConfigError:
    said = " ".join(str(error).split())
    return ConfigError(
        f"{_ADDRESS} can't be used: {said}", hint="check warehouse.iam and the AWS credentials"
    )


def _refused(error: ClientError) -> StatementFailed:
    said = error.response.get("Error", {})
    problem = Problem(f"{said.get('Code', '')}: {said.get('Message', '')}")
    return failure_of(problem, "calling the Data API", denied=LOGGING_IN)


def _value(cell: dict[str, Any]) -> Any:
    return None if cell.get("isNull") else next(iter(cell.values()), None)
