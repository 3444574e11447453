"""What happened to a table in a run, as others see it later: from the run's report, or from the table's status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AliasChoices, Field

from floodmark.model.errors import exit_code
from floodmark.model.json import Seconds, load
from floodmark.model.run import Counts, Lag, TableReport
from floodmark.model.secrets import masked

Scrub = Callable[[str], str]
MOST_TEXT = 2000  # characters of a message
MOST_NOTES = 50
NO_LAG = Lag()


@dataclass(frozen=True)
class ErrorText:
    """Why something failed, and what to do."""

    message: str
    code: int = 1
    hint: str | None = None


@dataclass(frozen=True)
class FindingText:
    """A finding of a run, as far as it is shown."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TableOutcome(Counts):
    """One table's part of one run. There are many: a week of runs has them for every table."""

    table: str = ""
    run: str = ""
    at: str = ""  # when the run began; as the last work in a status, when it ended
    exit_code: int | None = 0  # None: it was killed
    seconds: Seconds = 0.0
    # Version 0.1.0 wrote the last work of a table with other names.
    files_written: Annotated[int, Field(validation_alias=AliasChoices("files_written", "files"))] = field(
        default=0, kw_only=True
    )
    bytes_written: Annotated[int, Field(validation_alias=AliasChoices("bytes_written", "bytes"))] = field(
        default=0, kw_only=True
    )
    stage_seconds: Annotated[
        dict[str, Seconds], Field(validation_alias=AliasChoices("stage_seconds", "stages"))
    ] = field(default_factory=dict)
    lag_before: Lag | None = None
    lag_after: Lag | None = None
    strategy: str | None = None
    error: ErrorText | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[FindingText, ...] = ()

    @classmethod
    def of(cls, report: TableReport, run: str, at: str) -> TableOutcome:
        """A run's numbers, without its texts."""
        stages = {stage: round(seconds, 3) for stage, seconds in report.stage_seconds.items()}
        return cls(report.table, run, at, report.exit_code, round(report.seconds, 3), stages).plus(report)

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def lag(self) -> Lag:
        """How far the table was behind when the run ended, or else when it began."""
        return self.lag_after or self.lag_before or NO_LAG

    @property
    def behind(self) -> float | None:
        """The largest lag of the table that the run knows of, in seconds or ids."""
        before = self.lag_before or NO_LAG
        values = (before.seconds, before.ids, self.lag.seconds, self.lag.ids)
        return next((value for value in values if value is not None), None)

    @property
    def idle(self) -> bool:
        return self.ok and not (
            self.rows_extracted or self.rows_reread or self.rows_loaded or self.rows_deleted
        )

    def masked(self, scrub: Scrub) -> TableOutcome:
        """The same without secrets, and with the first notes and findings only."""
        if not (self.error or self.notes or self.findings):
            return self
        return replace(
            self,
            error=masked(self.error, scrub, MOST_TEXT),
            notes=masked(self.notes[:MOST_NOTES], scrub, MOST_TEXT),
            findings=masked(self.findings[:MOST_NOTES], scrub, MOST_TEXT),
        )


@dataclass(frozen=True)
class RunOutcome:
    """One run, from its report; a killed run, from what it left behind."""

    run: str
    ok: bool = False
    seconds: Seconds = 0.0
    tables: tuple[TableOutcome, ...] = ()
    error: ErrorText | None = None  # why the run failed as a whole

    def __post_init__(self) -> None:
        at = self.at
        for one in self.tables:  # a report, from which they were just made, names the run once
            object.__setattr__(one, "run", self.run)
            object.__setattr__(one, "at", at)

    @property
    def at(self) -> str:
        """When it began."""
        return run_at(self.run)

    @property
    def exit_code(self) -> int | None:
        """None: it was killed."""
        if self.error is not None:
            return self.error.code
        codes = [table.exit_code for table in self.tables]
        return None if None in codes else exit_code([code or 0 for code in codes])

    @property
    def why(self) -> str | None:
        """Why it failed: as a whole, or the first table that failed as the run did."""
        if self.error is not None or self.ok:
            return self.error.message if self.error else None
        code = self.exit_code
        return next((t.error.message for t in self.tables if t.error and t.exit_code == code), None)


def parse_run(data: bytes | None, scrub: Scrub) -> RunOutcome | None:
    """The run's report in these bytes, without secrets; None if they hold anything else."""
    try:
        found = load(RunOutcome, data or b"")
    except ValueError:
        return None
    tables = tuple(one.masked(scrub) for one in found.tables)
    return replace(found, tables=tables, error=masked(found.error, scrub, MOST_TEXT))


def run_at(run: str) -> str:
    """When a run began, from its name, `20250819_153000_ab12`; empty when that is not one."""
    try:
        begun = datetime.strptime(run[:15], "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return ""
    return begun.strftime("%Y-%m-%dT%H:%M:%SZ")
