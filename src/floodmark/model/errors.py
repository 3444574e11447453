"""Every error that reaches an operator, grouped by what the operator does next.

    FloodmarkError                      code  kind
    ├── ConfigError                     2     config           change the command, the config or the permissions
    │   ├── Mistakes                    2     config           correct the configuration file
    │   └── TlsError                    2     config           the server's TLS does not meet the config
    ├── ConflictError                   3     conflict         wait for the other run
    ├── TransientError                  4     transient        try again: nothing is lost
    │   └── NoAnswer                    4     transient        a request that may or may not have happened
    ├── UnknownOutcome                  5     unknown_outcome  run again: the ledger knows
    ├── DataError                       6     data             decide: it is not safe to continue
    ├── VerificationError               7     verification     look at the findings
    └── Interrupted                     130/143

Adapters translate their drivers' exceptions into these; anything else is a bug (code 1).
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# With several tables, the exit code of the run is the first of these that occurred.
PRECEDENCE = (1, 6, 5, 7, 2, 4, 3)


class FloodmarkError(Exception):
    """An error that says what failed, for which table, and what to do.

    Errors are pickled from Spark's Python workers to the driver, so the message alone must be enough to make one.
    """

    code = 1
    kind = "bug"

    def __init__(self, message: str, *, hint: str | None = None, table: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.table = table

    def of(self, table: str) -> FloodmarkError:
        """The same error with a table attached, unless it already names one; "" is none."""
        if self.table is None and table:
            self.table = table
        return self

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("code", "kind", "table", "message", "hint")}


@contextmanager
def about(table: str) -> Iterator[None]:
    """Attaches the table to errors raised inside, unless they already name one."""
    try:
        yield
    except FloodmarkError as error:
        error.of(table)
        raise


class ConfigError(FloodmarkError):
    """The command, the configuration or the permissions must change."""

    code = 2
    kind = "config"


@dataclass(frozen=True)
class Mistake:
    """One mistake in a configuration file."""

    place: str  # the dotted path of a key, or line and column
    said: str  # what is wrong there, and what to write instead
    variable: str | None = None  # the environment variable that is not set

    def __str__(self) -> str:
        return f"{self.place}: {self.said}"


class Mistakes(ConfigError):
    """All mistakes in a configuration file at once; two or more get a line each."""

    def __init__(self, path: Path, mistakes: Sequence[Mistake]) -> None:
        self.path, self.mistakes = path, tuple(mistakes)
        listed = "".join(f"\n  {each}" for each in mistakes)
        super().__init__(f"{self.summary}:{listed}" if self.listed else f"{path}: {mistakes[0]}")

    @property
    def listed(self) -> bool:
        return len(self.mistakes) > 1

    @property
    def summary(self) -> str:
        return f"{self.path} has {len(self.mistakes)} mistakes"

    def __reduce__(self) -> tuple[object, ...]:
        return (Mistakes, (self.path, self.mistakes))


class TlsError(ConfigError):
    """A server offers no TLS, or its certificate is not trusted."""


class ConflictError(FloodmarkError):
    """Another run holds the table, or has taken it."""

    code = 3
    kind = "conflict"


class TransientError(FloodmarkError):
    """A service failed, was unreachable, timed out or is locked; run the same command again."""

    code = 4
    kind = "transient"


class NoAnswer(TransientError):
    """The response to a write was lost: it may have happened. Check before doing anything else."""


class UnknownOutcome(FloodmarkError):
    """The warehouse's response to COMMIT was lost, and the ledger could not be read."""

    code = 5
    kind = "unknown_outcome"


class DataError(FloodmarkError):
    """Data or state with which it is not safe to continue."""

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
    "raise it: ulimit -v unlimited, or LimitAS= in its unit file (MemoryMax= is the better way to cap memory)"
)
FILES_HINT = "raise it: ulimit -n 4096, or LimitNOFILE= in its unit file"
# How libraries and Java report that memory has run out.
_MEMORY = (
    "failed to map segment", "start new thread", "create native thread", "Cannot allocate memory", "reserve enough space",
    "insufficient memory", "OutOfMemoryError", "compressed class space",
)  # fmt: skip


def short_of(said: str, error: BaseException | None = None) -> FloodmarkError | None:
    """The error if this process, or a child, ran out of files or memory; None if that is not the cause."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in said:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ConfigError(f"this process ran out of open files: its limit is {most:,}", hint=FILES_HINT)
    memory = isinstance(error, MemoryError) or number == errno.ENOMEM or any(word in said for word in _MEMORY)
    if not memory:
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return TransientError(
            "out of memory, or no room for another thread",
            hint="free some memory, or run fewer tasks at once (spark: {master: local[1]}), then run again",
        )
    return ConfigError(
        f"this process ran out of address space: its limit is {most >> 20:,} MB (ulimit -v)",
        hint=ADDRESSES_HINT,
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, each once: chains can be circular."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def bug(error: BaseException) -> FloodmarkError:
    """The error for an unexpected exception; the machine's limits are reported as such, not as a bug."""
    for cause in causes(error):
        if (found := short_of(str(cause), cause)) is not None:
            return found
    said = f"a bug in Floodmark: {type(error).__name__}: {error}"
    hint = "run again with --debug for the traceback, and report it; nothing committed is lost"
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        hint = f"the address-space limit (ulimit -v) may be too low; otherwise, {hint}"
    return FloodmarkError(said, hint=hint)


def exit_code(codes: list[int]) -> int:
    """The exit code of a run over several tables."""
    for code in (130, 143):
        if code in codes:
            return code
    return next((code for code in PRECEDENCE if code in codes), 0)
