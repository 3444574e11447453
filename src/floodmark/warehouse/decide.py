"""What a load does, decided from what it sees inside its transaction. Pure, the same for every warehouse.

The invariant: what leaves here as `new` is in no ledger row of this log and epoch, its order against what was
loaded before is the log's, and rows that could be in the target already are never inserted without looking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.errors import ConfigError, ConflictError, DataError
from floodmark.model import Finding, LoadAs
from floodmark.names import check_target
from floodmark.plausible import implausible
from floodmark.units import counted
from floodmark.warehouse import Holder, Ledger, LoadRequest, Numbered


@dataclass(frozen=True)
class Decision:
    """What to do in this transaction."""

    new: tuple[Numbered, ...]  # get ledger rows
    staged: tuple[Numbered, ...]  # whose files are read: all the new ones, or only the newest snapshot
    already: tuple[int, ...]
    way: LoadAs
    set_holder: bool  # the target's holder and epoch have to be written
    findings: tuple[Finding, ...] = ()


def decide(request: LoadRequest, ledger: Ledger, rows: int | None) -> Decision:
    """What to load, and how; `rows` is what the target has, None when there is no target."""
    check_target(request.target, request.table.name)
    findings = _checked_holder(request, ledger, rows)
    _check_epoch(request, ledger)
    loaded = ledger.loaded(request.epoch) - request.retake
    new = tuple((commit, digest) for commit, digest in request.commits if (commit.n, digest) not in loaded)
    already = tuple(commit.n for commit, digest in request.commits if (commit.n, digest) in loaded)
    set_holder = ledger.holder is None or ledger.holder.log != request.log
    if not new:
        return Decision((), (), already, "insert", set_holder, findings)
    way = new[-1][0].load_as
    staged = new[-1:] if way == "replace" else new
    _check_staged(request, staged, way)
    if way == "replace":
        _check_plausible(request, staged, rows)
    if way == "insert" and request.table.key:
        way = "merge"  # looking for the keys costs next to nothing, and then no row can be there twice
    if way != "insert":
        _check_order(request, new, loaded)
    elif rows and not request.adopt and not ledger.rows:
        raise DataError(
            f"rows of these commits may be in {request.target} already, and without a key they can't be told apart",
            hint="look at the target; --force adds the rows, even if that doubles them",
        )
    current = any(row.epoch == request.epoch for row in ledger.rows if row.identity not in request.retake)
    if rows is None and current and way != "replace":
        raise DataError(
            f"the target {request.target} is gone, but the ledger says that commits were loaded into it",
            hint=f"to load all files again: floodmark watermark reset -t {request.table.name} --redshift-only",
        )
    # What a repair has read again goes in, also by a later load: the difference stays on record (`count_after`).
    if _moves(new) and way != "replace" and not request.adopt and not request.repair:
        _check_untouched(request, ledger, rows)
    return Decision(new, staged, already, way, set_holder, findings)


def _checked_holder(request: LoadRequest, ledger: Ledger, rows: int | None) -> tuple[Finding, ...]:
    """Refuse a target that others fill; a log that was begun anew is a finding."""
    table, target, holder = request.table.name, request.target, ledger.holder
    check_elsewhere(ledger, request.epoch, table, target)
    if holder is None or holder.log == request.log:
        # A snapshot would wipe rows that no load of ours put there; a reset alone makes us the holder, too.
        strangers = rows and not ledger.rows and request.commits[-1][0].load_as == "replace"
        if strangers and not request.adopt:
            raise DataError(
                f"{target} has {rows:,} rows that Floodmark did not load, and a full copy of {table} replaces them",
                hint="set another `target`, or let them go with --force",
            )
        return ()
    if request.adopt:
        return ()
    check_holder(holder, request.pipeline, request.log, table, target)
    if request.commits[-1][0].load_as == "insert" and not request.table.key:
        raise DataError(
            f"the log of {table} was begun anew, and {target} holds rows of the old one; without a key they would "
            "be doubled",
            hint=f"empty {target} and run again with --force, or set another `target`",
        )
    detail = f"{target} holds rows of an earlier log of {table} ({holder.log}); this log's rows are merged into them"
    return (Finding("new_log", table, detail, {"log": holder.log}),)


def _check_untouched(request: LoadRequest, ledger: Ledger, rows: int | None) -> None:
    """Refuse a target whose rows others have deleted or added to since the last load."""
    target, table = request.target, request.table
    if rows == 0 and request.kept:
        raise DataError(
            f"{target} is empty, but rows were loaded into it and none of them deleted",
            hint=f"to load all files again: floodmark watermark reset -t {table.name} --redshift-only; "
            "to go on with what is new only: --force",
        )
    if rows is None or ledger.counted is None or rows == ledger.counted:
        return
    if table.key:
        way_on = f"to bring it in line with the source: floodmark verify -t {table.name} --repair"
    else:
        way_on = (
            f"to load all files again, empty {target} and run floodmark watermark reset -t {table.name} "
            "--redshift-only --force"
        )
    raise DataError(
        f"{target} has {rows:,} rows, but the last load left {ledger.counted:,}: "
        f"rows were {'added' if rows > ledger.counted else 'deleted'} by hand",
        hint=f"{way_on}; to keep the rows as they are: floodmark sync -t {table.name} --force",
    )


def _check_plausible(request: LoadRequest, staged: Sequence[Numbered], rows: int | None) -> None:
    """Refuse to swap many rows for a few: the source was emptied, or is another one."""
    coming = sum(commit.rows for commit, _ in staged)
    if not request.adopt and implausible(rows or 0, coming + request.rows_to_follow):
        raise DataError(
            f"{request.target} has {rows:,} rows, and {counted(coming, 'row')} would take their place: not swapped in",
            hint=f"if that is right: floodmark sync -t {request.table.name} --redshift-only --force",
        )


def count_after(
    request: LoadRequest, ledger: Ledger, decision: Decision, before: int | None, after: int
) -> int:
    """How many rows the next load expects: a difference that was there before stays on record, as far as it is left.

    New rows leave it as it is. Of rows that were read again, or keys that are to go, it can't be told whether others
    had deleted or added them: they count as such, so that nobody is told of a difference that is gone.
    """
    if ledger.counted is None or decision.way == "replace" or request.adopt:
        return after
    expected, there = ledger.counted, before or 0
    if _moves(decision.new) or there == expected:
        return expected + after - there
    if there < expected:
        gone = sum(commit.rows for commit, _ in decision.staged) if decision.way == "delete" else 0
        return max(after, expected - gone)
    return min(after, expected) if after < there else expected + after - there


def _moves(commits: Sequence[Numbered]) -> bool:
    """Whether there are new rows among these, not only rows that are read again."""
    return any(commit.window_id is not None for commit, _ in commits)


def check_elsewhere(ledger: Ledger, epoch: int, table: str, target: str) -> None:
    """Refuse a target when rows of the epoch are in another one."""
    elsewhere = {row.target for row in ledger.rows if row.epoch == epoch and row.target != target}
    if elsewhere:
        raise ConfigError(
            f"{table} was loaded into {', '.join(sorted(elsewhere))} until now, and its target is {target}",
            hint=f"set the target back, or fill the new one: floodmark watermark reset -t {table} --redshift-only",
        )


def check_holder(holder: Holder | None, pipeline: str, log: str, table: str, target: str) -> None:
    """Refuse a target that another pipeline or another table fills."""
    if holder is None or holder.log == log:
        return
    if holder.pipeline != pipeline and holder.table == table:
        raise ConfigError(
            f"{target} is filled by another pipeline ({holder.pipeline}), from the same table and with another store",
            hint="check store.url: a table goes on only with the store that it began with. Where two pipelines are meant, "
            "set another `target`; or stop that one and take its target over with --force",
        )
    if holder.pipeline != pipeline:
        raise ConfigError(
            f"{target} is filled by another pipeline ({holder.pipeline}, from {holder.table})",
            hint="set another `target` for this table; or stop that pipeline and take its target over with --force",
        )
    if holder.table != table:
        raise ConfigError(
            f"{target} is filled from {holder.table}; two tables can't share one target",
            hint=f"set `tables.{table}.target`, or take it over with --force",
        )


def _check_epoch(request: LoadRequest, ledger: Ledger) -> None:
    """A load of another epoch than the ledger's stops."""
    if ledger.epoch is not None and ledger.epoch != request.epoch:
        raise ConflictError(
            f"the load stage of {request.table.name} was reset (epoch {ledger.epoch}, this load's is {request.epoch})",
            hint="run again: the files load in the new epoch",
        )


def _check_staged(request: LoadRequest, staged: Sequence[Numbered], way: LoadAs) -> None:
    """What is staged together looks alike and goes in alike, in the log's order."""
    numbers = [commit.n for commit, _ in request.commits]
    alike = all(commit.load_as == way and commit.schema == request.table.fingerprint for commit, _ in staged)
    keyless = way in ("merge", "delete", "mark") and not request.table.key
    if (
        not alike
        or keyless
        or numbers != sorted(set(numbers))
        or any(c.log != request.log for c, _ in request.commits)
    ):
        raise ValueError(f"commits {numbers} can't be loaded together")


def _check_order(request: LoadRequest, new: Sequence[Numbered], loaded: frozenset[tuple[int, str]]) -> None:
    """The later read wins only while nothing later was loaded before."""
    later = sorted(n for n, _ in loaded if n > new[0][0].n)
    if later:
        raise ConflictError(
            f"commit {later[0]} of {request.table.name} was loaded before commit {new[0][0].n}",
            hint="another run has loaded it meanwhile; run again",
        )
