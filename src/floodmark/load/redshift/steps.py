"""How a load is put to Redshift: a list of steps, which are committed, rolled back or, rarely, unknown; and how they fail.

Both transports (socket, Data API) run the same steps. A decision inside the transaction is a `Expect`, which
fails it, or a `Choose`, whose `otherwise` is right in any case: the Data API can't look at an answer
half-way.

Redshift's errors become ours by what the operator does next. SQLSTATE XX000 covers serialization failures as well as
every COPY error, and the Data API returns no SQLSTATE at all. So the rules also match the text, in order, and the
first match decides. They also say whether retrying the whole transaction may help. An error that no rule matches is a
bug: FloodmarkError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from floodmark.load.merge import Do as Do
from floodmark.model.errors import ConfigError, ConflictError, DataError, FloodmarkError, TransientError
from floodmark.model.run import StepKind, Wait
from floodmark.store.s3 import allowing

Row: TypeAlias = tuple[Any, ...]
AtWork: TypeAlias = Callable[[StepKind], None]


@dataclass(frozen=True)
class Expect:
    """A query that must return this one value, or the transaction ends with the error."""

    sql: str
    want: int | str
    error: Callable[[object], FloodmarkError]  # from the value returned; None if it can't be seen
    again: bool = False  # whether retrying the whole transaction may succeed


@dataclass(frozen=True)
class Choose:
    """Steps chosen by a query's answer; `otherwise` is built only when needed, and right for any answer."""

    sql: str
    want: int | str
    then: tuple[Step, ...]
    otherwise: Callable[[], tuple[Step, ...]]


Step: TypeAlias = "Do | Expect | Choose"


def milliseconds(seconds: float) -> int:
    """A time as `statement_timeout` takes it, where 0 would be none."""
    return max(1, round(seconds * 1000))


_DOING: dict[str, StepKind] = {
    "COPY": "copy", "DELETE": "merge", "MERGE": "merge", "UPDATE": "merge", "INSERT": "merge",
    "COMMIT": "commit",
}  # fmt: skip


def doing(sql: str) -> StepKind | None:
    """What a statement of a load does to its rows; None if it does nothing to them."""
    return _DOING.get(sql.split(maxsplit=1)[0])


@dataclass(frozen=True)
class Lock:
    """The table that a transaction locks first, how long it waits for it, and whom it tells."""

    table: str  # quoted
    seconds: float
    waits: Callable[[Wait | None], None] = lambda on: None  # called before and after (socket)
    at_work: AtWork = lambda kind: None  # called with what its statements do, as far as the transport knows


@dataclass(eq=False)
class StatementFailed(Exception):
    """A statement that was refused or not answered, as our error."""

    error: FloodmarkError
    _: KW_ONLY
    again: bool = False  # retrying the whole transaction may succeed
    lost: bool = False  # no answer: the session is unusable
    canceled: bool = False  # it took longer than allowed
    code: str = ""  # SQLSTATE, where there is one
    said: str = ""  # Redshift's own words, if it answered
    # Where in a transaction it failed, which was then rolled back unless it is `unknown`; "": not in one.
    stage: Literal["", "lock", "steps", "commit"] = ""

    @property
    def unknown(self) -> bool:
        """Whether the answer to COMMIT was lost."""
        return self.lost and self.stage == "commit"


class Busy(TransientError):
    """A change to a table waited too long for its users."""

    def __init__(self, sql: str, seconds: float, who: str = "others") -> None:
        self.sql, self.seconds = sql, seconds
        super().__init__(
            f"{sql} waited {seconds:g} s for {who}",
            hint="run again when no long query is reading the target; svv_transactions shows who is",
        )


class RedshiftSession(Protocol):
    """One session, not to be shared between threads. Its methods raise StatementFailed."""

    pid: int | None  # of the backend, once it is known

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        """The rows of a query; run while holding the lock, if one is given.

        `seconds`: time limit for it and those after it, else `Limits.question`; `waits`: time limit for this
        one.
        """

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        """Run one statement outside any transaction; `seconds`: its time limit, else as in a load."""

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> None:
        """Run the steps in one transaction that begins with the lock, and commit it."""

    def close(self) -> None: ...


class TooLong(DataError):
    """More than this transport takes in one transaction; fewer commits at once may fit."""


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds, and how often a transaction is tried."""

    connect: float = 30.0
    question: float = 300.0  # a query of the catalog or the ledger, or a count
    lock: float = 60.0  # waiting for another load, or for users of a table that has to change
    statement: float = 43_200.0  # one statement of a load; a first load may have a billion rows
    idle: float = 30.0  # a session of ours that holds the lock and is idle for this long is dead
    grace: float = 60.0  # how late an answer may be after the server should have given up
    attempts: int = 6
    pause: float = 0.5  # after the first attempt; doubled each time


class Transport(Protocol):
    """A way into one database."""

    longest: int  # the longest statement allowed, in bytes
    limits: Limits

    def open(self, label: str = "") -> RedshiftSession:
        """A session whose statements carry the label in Redshift's query history. Raises StatementFailed."""


_RIGHTS = "grant what is missing to the user of warehouse.url"
_RUN_AGAIN = "run again: nothing is lost"
_FILES = "floodmark watermark validate compares the files with the log"
_NOT_JSON = (
    "a text for a SUPER column is not JSON, or `overflow: truncate` cut it: make the column a VARCHAR (docs/redshift.md has the "
    "statements); or correct it at the source, or set `overflow: null`, and read the table again with floodmark watermark reset"
)
_ROLE = "check warehouse.iam_role: Redshift must be allowed to assume it, and it to read the bucket"
LOGGING_IN = "check warehouse.iam and the AWS profile; docs/redshift-rights.md has the policies for every way to log in"


class NoRights(ConfigError):
    """The warehouse's user lacks a right."""

    refusal = ""  # Redshift's own words


@dataclass(frozen=True)
class Problem:
    """An error from the server: its text, and SQLSTATE if given."""

    message: str
    detail: str = ""
    code: str = ""

    @property
    def text(self) -> str:
        """All of it on one line; COPY's detail comes with dashes and blank lines."""
        parts = [re.sub(r"[-\s]{3,}|\s+", " ", part).strip() for part in (self.message, self.detail)]
        return ": ".join(part for part in parts if part)


def answered(error: BaseException) -> Problem | None:
    """The server's error inside the driver's exception; None if it did not come from the server."""
    said = error.args[0] if error.args else None
    if not isinstance(said, dict):
        return None
    return Problem(str(said.get("M", "")), str(said.get("D", "")), str(said.get("C", "")))


@dataclass(frozen=True)
class Rule:
    """One kind of problem. Without a SQLSTATE only the text counts."""

    kind: type[FloodmarkError]
    codes: str  # a pattern for SQLSTATE
    words: str  # a pattern for the text
    hint: str | None = None
    again: bool = False
    canceled: bool = False
    denied: bool = False  # by AWS, whose text may name the missing action


RULES = (
    # transaction conflicts
    Rule(
        TransientError,
        "40.*",
        r"^1023\b|serializable isolation violation|could not serialize|deadlock detected",
        _RUN_AGAIN,
        again=True,
    ),
    Rule(ConflictError, "42P07|42710|23505", r"already exists|duplicate key", "run again", again=True),
    Rule(
        ConflictError,
        "42P01",
        r"^1018\b|relation \S+ (does not exist|not found)|relation with oid",
        "run again: it was dropped or replaced in the meantime",
        again=True,
    ),
    # timeouts, disk space, connections
    Rule(
        TransientError,
        "57014",
        r"canceled on user'?s request|canceling statement due to|exceeded .*timeout|query aborted",
        "run again; if it happens again, find out what keeps Redshift busy",
        canceled=True,
    ),
    Rule(
        TransientError,
        "53100",
        r"disk full|no space left",
        "free some space in the warehouse, then run again: nothing is lost",
    ),
    Rule(
        TransientError,
        "53.*|57P0.|08.*",
        r"too many (connections|clients)|connection limit|throttl|slow ?down|rate exceeded|resuming|being (paused|resized)"
        r"|internalerror|service ?unavailable|requesttimeout|request timed? ?out|status 50[023]|please try again"
        r"|connection (reset|refused|timed out)|activestatementsexceeded|activesessionsexceeded",
        _RUN_AGAIN,
        again=True,
    ),
    # rights and names
    Rule(
        ConfigError,
        "28.*",
        r"password authentication failed|authentication failed|user .* does not exist",
        "check the user and the password in warehouse.url",
    ),
    Rule(ConfigError, "3D000|3F000", r"(database|schema) \S+ does not exist", "check warehouse.url and warehouse.schema"),
    Rule(NoRights, "", r"does not have assumerole", _ROLE),
    Rule(
        ConfigError,
        "",
        r"not authorized to (assume|get|perform)|unauthorizedexception|access ?denied|status 403|expiredtoken|invalidaccesskey"
        r"|no default iam role|iam role .* not",
        _ROLE,
        denied=True,
    ),
    Rule(NoRights, "42501", r"permission denied|must be owner|insufficient privilege", _RIGHTS),
    Rule(
        ConfigError,
        "",
        r"permanentredirect|authorizationheadermalformed|301 moved|must be addressed using the specified endpoint",
        "the bucket must be in the warehouse's own Region: COPY can't read Parquet from another",
    ),
    # bad files, and values that don't fit
    Rule(
        DataError,
        "",
        r"nosuchkey|status 404|mandatory url is not present|invalidrange|status 416|content_length|'meta' key",
        "restore the file, or read the table again with floodmark watermark reset",
    ),
    Rule(
        DataError,
        "",
        r"spectrum scan error|stl_load_errors|sys_load_error|load into table .* failed|incompatible parquet"
        r"|unmatched number of columns|longer than the length|invalid type length|parquet|manifest",
        _FILES,
    ),
    # No `overflow` helps: the files that hold the text are committed, and have to load.
    Rule(DataError, "", r"json pars|invalid json", _NOT_JSON),
    Rule(
        DataError,
        "22.*|23.*",
        r"value too long|numeric (data )?overflow|out of range|null value in column|cannot insert a null|overflow"
        r"|invalid (input|digit)|varbyte|exceeds",
        "the warehouse can't hold a value; set `overflow` to say what to do with such values",
    ),
    Rule(
        DataError,
        "0A000|2BP01",
        r"cannot run inside a transaction block|cannot alter|cannot drop|depends? on|not supported",
        "the target must be changed by hand",
    ),
)  # fmt: skip


def failure_of(problem: Problem, doing: str = "", *, denied: str = _ROLE) -> StatementFailed:
    """The problem as our error, and whether to retry.

    `denied`: what to check if AWS denies access without saying why.
    """
    text = problem.text.lower()
    for rule in RULES:
        by_code = bool(problem.code and rule.codes and re.fullmatch(rule.codes, problem.code))
        if by_code or re.search(rule.words, text):
            message = f"Redshift {_verb(rule)}{f' while {doing}' if doing else ''}: {problem.text}"
            error = rule.kind(message, hint=(allowing(problem.text) or denied) if rule.denied else rule.hint)
            if isinstance(error, NoRights):
                error.refusal = problem.text
            return StatementFailed(
                error, again=rule.again, canceled=rule.canceled, code=problem.code, said=problem.text
            )
    where = f" (SQLSTATE {problem.code})" if problem.code else ""
    error = FloodmarkError(f"unexpected error from Redshift{where}: {problem.text}")
    return StatementFailed(error, code=problem.code, said=problem.text)


def lost(error: BaseException, address: str) -> StatementFailed:
    """A session that ended without an answer."""
    said = str(error).split("\n")[0] or type(error).__name__
    return StatementFailed(
        TransientError(f"the connection to Redshift at {address} was lost: {said}", hint=_RUN_AGAIN),
        again=True,
        lost=True,
    )


def _verb(rule: Rule) -> str:
    if rule.canceled:
        return "took too long"
    return "refused" if issubclass(rule.kind, ConfigError | DataError) else "failed"


# ---------------------------------------------------------------- COPY's record of a bad file


# A session's newest load error: a query that works everywhere, and one for provisioned clusters.
_LOAD_ERRORS = (
    "SELECT trim(file_name), line_number, trim(column_name), trim(column_type), error_code, trim(error_message) "
    "FROM sys_load_error_detail WHERE session_id = {} ORDER BY start_time DESC LIMIT 1",
    "SELECT trim(filename), line_number, trim(colname), trim(type), err_code, trim(err_reason) "
    "FROM stl_load_errors WHERE session = {} ORDER BY starttime DESC LIMIT 1",
)


def detailed(failed: StatementFailed, ask: Callable[[str], list[Row]], pid: int | None) -> StatementFailed:
    """The same failure with file, row and column if Redshift recorded them; `ask` uses the same session."""
    if pid is None or type(failed.error) is not DataError:
        return failed
    for query in _LOAD_ERRORS:
        try:
            found = ask(query.format(int(pid)))
        except StatementFailed as unanswered:
            if unanswered.lost:
                return failed
            continue  # STL_LOAD_ERRORS does not exist on serverless
        if found:
            file, line, column, type_, code, reason = found[0]
            where = f"{str(file).strip()}, row {line}, column {str(column).strip()}"
            if str(type_ or "").strip():
                where += f" ({str(type_).strip()})"
            noted = f" [{where}: {str(reason).strip()} (error {code})]"
            failed.said += noted
            failed.error.message += noted
            failed.error.args = (failed.error.message,)
            return failed
    return failed
