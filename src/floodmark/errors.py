"""Every error that reaches an operator, grouped by what the operator does next.

    FloodmarkError                      code  kind
    ├── ConfigError                     2     config           change the command, the config or the rights
    ├── ConflictError                   3     conflict         wait for the other run
    ├── TransientError                  4     transient        try again: nothing is lost
    │   └── NoAnswer                    4     transient        a request that may or may not have happened
    ├── UnknownOutcome                  5     unknown_outcome  run again: the ledger will tell
    ├── DataError                       6     data             decide: the data can't be carried on safely
    ├── VerificationError               7     verification     look at the findings
    └── Interrupted                     130/143

Adapters translate the exceptions of their drivers into these; anything else is a bug (code 1).
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator

# With several tables, the exit code of the run is the first of these that occurred.
PRECEDENCE = (1, 6, 5, 7, 2, 4, 3)


class FloodmarkError(Exception):
    """An error that says what failed, for which table, and what to do."""

    code = 1
    kind = "bug"

    def __init__(self, message: str, *, hint: str | None = None, table: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.table = table

    def of(self, table: str) -> FloodmarkError:
        """The same error, said of a table (kept when a table is known already)."""
        if self.table is None:
            self.table = table
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from Spark's Python workers to the driver.
        return (_rebuild, (type(self), self.message, self.hint, self.table))

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "kind": self.kind,
            "table": self.table,
            "message": self.message,
            "hint": self.hint,
        }


def _rebuild(kind: type[FloodmarkError], message: str, hint: str | None, table: str | None) -> FloodmarkError:
    return kind(message, hint=hint, table=table)


class ConfigError(FloodmarkError):
    """The command, the configuration or the rights have to change."""

    code = 2
    kind = "config"


class ConflictError(FloodmarkError):
    """Another run holds the table, or has taken it."""

    code = 3
    kind = "conflict"


class TransientError(FloodmarkError):
    """A service failed, was unreachable, timed out or is locked; the same command can be run again."""

    code = 4
    kind = "transient"


class NoAnswer(TransientError):
    """A write whose answer was lost: it may have happened. Ask again before anything else."""


class UnknownOutcome(FloodmarkError):
    """The warehouse's answer to COMMIT was lost and the ledger could not be read."""

    code = 5
    kind = "unknown_outcome"


class DataError(FloodmarkError):
    """Data or state that can't be carried on safely."""

    code = 6
    kind = "data"


class VerificationError(FloodmarkError):
    """Source, store and warehouse don't agree."""

    code = 7
    kind = "verification"


class Interrupted(FloodmarkError):
    """Stopped by SIGINT (130) or SIGTERM (143)."""

    kind = "interrupted"

    def __init__(
        self, message: str, *, code: int = 130, hint: str | None = None, table: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, table=table)
        self.code = code


ADDRESSES_HINT = (
    "allow more: ulimit -v unlimited, or LimitAS= of its service; MemoryMax= bounds memory better"
)
FILES_HINT = "allow more: ulimit -n 4096, or LimitNOFILE= of its service"
# What libraries and Java say of it.
_MEMORY = (
    "failed to map segment", "start new thread", "create native thread", "Cannot allocate memory", "reserve enough space",
    "insufficient memory", "OutOfMemoryError",
)  # fmt: skip


def short_of(said: str, error: BaseException | None = None) -> FloodmarkError | None:
    """What is said where this process, or one that it started, got no more files or memory; None: that is not why."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in said:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ConfigError(f"a process may open only {most:,} files here, and needs more", hint=FILES_HINT)
    memory = isinstance(error, MemoryError) or number == errno.ENOMEM or any(word in said for word in _MEMORY)
    if not memory:
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return TransientError(
            "there is no memory left for this process, or no room for another thread",
            hint="free some, or run fewer tasks at once, as spark: {master: local[1]}; then run again",
        )
    return ConfigError(
        f"a process may have only {most >> 20:,} MB of addresses here (ulimit -v), and needs more",
        hint=ADDRESSES_HINT,
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what led to it, each once: chains can be circles."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def bug(error: BaseException) -> FloodmarkError:
    """What is said of an exception that nobody foresaw; limits of the machine are none of our bugs."""
    for cause in causes(error):
        if (found := short_of(str(cause), cause)) is not None:
            return found
    said = f"a bug in Floodmark: {type(error).__name__}: {error}"
    hint = "run with --debug for the traceback, and report it; nothing committed is lost"
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        hint = f"perhaps the limit on addresses (ulimit -v) is too low; else {hint}"
    return FloodmarkError(said, hint=hint)


def exit_code(codes: list[int]) -> int:
    """The exit code of a run over several tables."""
    for code in (130, 143):
        if code in codes:
            return code
    return next((code for code in PRECEDENCE if code in codes), 0)
