"""What Redshift says, as our errors, by what the operator does next.

SQLSTATE XX000 is a serialization failure as well as every error of COPY, and the Data API gives no SQLSTATE at all:
so the rules look at the text too, in order, and the first that fits decides. Where a new try of the whole
transaction may help, they say so. Anything that no rule knows is a bug: FloodmarkError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from floodmark.errors import ConfigError, ConflictError, DataError, FloodmarkError, TransientError
from floodmark.warehouse.redshift_names import literal
from floodmark.warehouse.redshift_steps import Failed, Row

_RIGHTS = "grant what is missing to the user of warehouse.url"
_RUN_AGAIN = "run again: nothing is lost"
_FILES = "floodmark watermark validate compares the files with the log"
_ROLE = "check warehouse.iam_role: Redshift must be allowed to assume it, and it to read the bucket"


class NoRights(ConfigError):
    """The user of the warehouse lacks a right."""


@dataclass(frozen=True)
class Problem:
    """A server's error: its text, and SQLSTATE where it is given."""

    message: str
    detail: str = ""
    code: str = ""

    @property
    def text(self) -> str:
        """All of it in one line; COPY's detail comes in a table of dashes and empty lines."""
        parts = [re.sub(r"[-\s]{3,}|\s+", " ", part).strip() for part in (self.message, self.detail)]
        return ": ".join(part for part in parts if part)


def answered(error: BaseException) -> Problem | None:
    """What the server said, as the driver raises it; None when it was not the server that said it."""
    said = error.args[0] if error.args else None
    if not isinstance(said, dict):
        return None
    return Problem(str(said.get("M", "")), str(said.get("D", "")), str(said.get("C", "")))


@dataclass(frozen=True)
class Rule:
    """Problems of one kind. Without a SQLSTATE only the text counts."""

    kind: type[FloodmarkError]
    codes: str  # a pattern for SQLSTATE
    words: str  # a pattern for the text
    hint: str | None = None
    again: bool = False
    canceled: bool = False


RULES = (
    # conflicts of transactions
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
        "run again: it was dropped or replaced meanwhile",
        again=True,
    ),
    # time, place, room
    Rule(
        TransientError,
        "57014",
        r"canceled on user'?s request|canceling statement due to|exceeded .*timeout|query aborted",
        "run again; if it happens again, look for what keeps Redshift busy",
        canceled=True,
    ),
    Rule(
        TransientError,
        "53100",
        r"disk full|no space left",
        "make room in the warehouse, then run again: nothing is lost",
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
        "check the user and the password of warehouse.url",
    ),
    Rule(ConfigError, "3D000|3F000", r"(database|schema) \S+ does not exist", "check warehouse.url and warehouse.schema"),
    Rule(NoRights, "", r"does not have assumerole", _ROLE),
    Rule(
        ConfigError,
        "",
        r"not authorized to (assume|get)|unauthorizedexception|access ?denied|status 403|expiredtoken|invalidaccesskey"
        r"|no default iam role|iam role .* not",
        _ROLE,
    ),
    Rule(NoRights, "42501", r"permission denied|must be owner|insufficient privilege", _RIGHTS),
    Rule(
        ConfigError,
        "",
        r"permanentredirect|authorizationheadermalformed|301 moved|must be addressed using the specified endpoint",
        "the bucket must be in the warehouse's own Region: COPY of Parquet can't name another",
    ),
    # what is in the files, or does not fit
    Rule(
        DataError,
        "",
        r"nosuchkey|status 404|mandatory url is not present|invalidrange|status 416|content_length|'meta' key",
        "put the file back, or read the table again with floodmark watermark reset",
    ),
    Rule(
        DataError,
        "",
        r"spectrum scan error|stl_load_errors|sys_load_error|load into table .* failed|incompatible parquet"
        r"|unmatched number of columns|longer than the length|invalid type length|parquet|manifest",
        _FILES,
    ),
    Rule(
        DataError,
        "22.*|23.*",
        r"value too long|numeric (data )?overflow|out of range|null value in column|cannot insert a null|overflow"
        r"|invalid (input|digit)|json pars|invalid json|varbyte|exceeds",
        "the warehouse can't hold a value; `overflow` says what becomes of such",
    ),
    Rule(
        DataError,
        "0A000|2BP01",
        r"cannot run inside a transaction block|cannot alter|cannot drop|depends? on|not supported",
        "the target has to be changed by hand",
    ),
)  # fmt: skip


def judged(problem: Problem, doing: str = "") -> Failed:
    """The problem in our words, and whether a new try may help."""
    text = problem.text.lower()
    for rule in RULES:
        by_code = bool(problem.code and rule.codes and re.fullmatch(rule.codes, problem.code))
        if by_code or re.search(rule.words, text):
            message = f"Redshift {_verb(rule)}{f' while {doing}' if doing else ''}: {problem.text}"
            error = rule.kind(message, hint=rule.hint)
            return Failed(error, again=rule.again, canceled=rule.canceled, code=problem.code)
    where = f" (SQLSTATE {problem.code})" if problem.code else ""
    return Failed(FloodmarkError(f"unexpected answer of Redshift{where}: {problem.text}"), code=problem.code)


def lost(error: BaseException, address: str) -> Failed:
    """A session that ended without an answer."""
    said = str(error).split("\n")[0] or type(error).__name__
    return Failed(
        TransientError(f"the connection to Redshift at {address} was lost: {said}", hint=_RUN_AGAIN),
        again=True,
        lost=True,
    )


def _verb(rule: Rule) -> str:
    if rule.canceled:
        return "took too long"
    return "refused" if issubclass(rule.kind, ConfigError | DataError) else "failed"


# ---------------------------------------------------------------- what COPY has noted of a bad file


def load_error_queries(pid: int) -> tuple[str, str]:
    """Where a session's newest load error is: everywhere, and on provisioned clusters."""
    return (
        "SELECT trim(file_name), line_number, trim(column_name), trim(column_type), error_code, trim(error_message) "
        f"FROM sys_load_error_detail WHERE session_id = {literal(pid)} ORDER BY start_time DESC LIMIT 1",
        "SELECT trim(filename), line_number, trim(colname), trim(type), err_code, trim(err_reason) "
        f"FROM stl_load_errors WHERE session = {literal(pid)} ORDER BY starttime DESC LIMIT 1",
    )


def detailed(failed: Failed, ask: Callable[[str], list[Row]], pid: int | None) -> Failed:
    """The same failure with file, row and column, where Redshift has noted them; `ask` asks the same session."""
    if pid is None or type(failed.error) is not DataError:
        return failed
    for query in load_error_queries(pid):
        try:
            found = ask(query)
        except Failed as unanswered:
            if unanswered.lost:
                return failed
            continue  # STL_LOAD_ERRORS does not exist on serverless
        if found:
            file, line, column, type_, code, reason = found[0]
            where = f"{str(file).strip()}, row {line}, column {str(column).strip()}"
            if str(type_ or "").strip():
                where += f" ({str(type_).strip()})"
            failed.error.message += f" [{where}: {str(reason).strip()} (error {code})]"
            failed.error.args = (failed.error.message,)
            return failed
    return failed
