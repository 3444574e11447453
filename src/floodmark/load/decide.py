"""What a load does, decided from what it sees inside its transaction. Pure, the same for every warehouse.

The invariant: commits returned as `new` have no ledger row in this log and epoch, they follow what was loaded
before in the log's order, and rows that may already be in the target are never inserted without a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.load.protocol import LoadRequest, Numbered
from floodmark.model.commit import LoadAs
from floodmark.model.errors import ConfigError, ConflictError, DataError
from floodmark.model.ledger import Ledger, TargetFiller
from floodmark.model.names import check_target
from floodmark.model.run import Finding, implausible
from floodmark.model.text import counted


@dataclass(frozen=True)
class Decision:
    """What to do in this transaction."""

    new: tuple[Numbered, ...]  # to be recorded in the ledger
    staged: tuple[Numbered, ...]  # whose files are read: all the new ones, or only the newest snapshot
    already: tuple[int, ...]
    way: LoadAs
    set_holder: bool  # the target's holder and epoch have to be written
    findings: tuple[Finding, ...] = ()


def decide(request: LoadRequest, ledger: Ledger, rows: int | None) -> Decision:
    """What to load, and how; `rows`: how many the target has, None when there is no target."""
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
        way = "merge"  # checking the keys costs next to nothing and rules out duplicates
    if way != "insert":
        _check_order(request, new, loaded)
    elif rows and not request.adopt and not ledger.rows:
        raise DataError(
            f"{request.target} may already have rows of these commits, and without a key there is no way to tell",
            hint="check the target; --force adds the rows, even if that duplicates them",
        )
    current = any(row.epoch == request.epoch for row in ledger.rows if row.identity not in request.retake)
    if rows is None and current and way != "replace":
        raise DataError(
            f"the target {request.target} is gone, but the ledger says that commits were loaded into it",
            hint=f"to load all files again: floodmark watermark reset -t {request.table.name} --redshift-only",
        )
    # Rows that a repair read again go in, even later: the difference stays on record (`count_after`).
    decision = Decision(new, staged, already, way, set_holder, findings)
    if guarded(request, decision):
        _check_untouched(request, ledger, rows)
    return decision


def guarded(request: LoadRequest, decision: Decision) -> bool:
    """Whether the target must have as many rows as the last load left."""
    return _moves(decision.new) and decision.way != "replace" and not request.adopt and not request.repair


def _checked_holder(request: LoadRequest, ledger: Ledger, rows: int | None) -> tuple[Finding, ...]:
    """Refuse a target that others fill; a log that was started over is a finding."""
    table, target, holder = request.table.name, request.target, ledger.holder
    check_elsewhere(ledger, request.epoch, table, target)
    if holder is None or holder.log == request.log:
        # A snapshot would wipe rows that we never loaded. Being the holder proves nothing: a reset sets it
        # too.
        strangers = rows and not ledger.rows and request.commits[-1][0].load_as == "replace"
        if strangers and not request.adopt:
            raise DataError(
                f"{target} has {rows:,} rows that Floodmark did not load, and a full copy of {table} replaces them",
                hint="set another `target`, or discard them with --force",
            )
        return ()
    if request.adopt:
        return ()
    check_holder(holder, request.pipeline, request.log, table, target)
    if request.commits[-1][0].load_as == "insert" and not request.table.key:
        raise DataError(
            f"the log of {table} was started over, and {target} holds rows of the old one; without a key they would "
            "be duplicated",
            hint=f"empty {target} and run again with --force, or set another `target`",
        )
    detail = f"{target} holds rows of an earlier log of {table} ({holder.log}); this log's rows are merged into them"
    return (Finding("new_log", table, detail, {"log": holder.log}),)


def _check_untouched(request: LoadRequest, ledger: Ledger, rows: int | None) -> None:
    """Refuse a target that others have deleted rows from or added rows to since the last load."""
    target, table = request.target, request.table
    if rows == 0 and request.kept:
        raise DataError(
            f"{target} is empty, but rows were loaded into it, and no sync deleted any",
            hint=f"to load all files again: floodmark watermark reset -t {table.name} --redshift-only; "
            "to continue with new rows only: --force",
        )
    if rows is not None and ledger.counted not in (None, rows):
        raise touched(request, ledger.counted, rows)


def touched(request: LoadRequest, counted: int | None, rows: int | None) -> DataError:
    """The error for a target whose row count is not what the last load left; `rows`: the count, if known."""
    target, table = request.target, request.table
    if table.key:
        way_on = f"to bring it in line with the source: floodmark verify -t {table.name} --repair"
    else:
        way_on = (
            f"to load all files again, empty {target} and run floodmark watermark reset -t {table.name} "
            "--redshift-only --force"
        )
    said = f"{target} no longer has the {counted:,} rows that the last load left: rows were added or deleted by hand"
    if rows is not None and counted is not None:
        what = "added" if rows > counted else "deleted"
        said = f"{target} has {rows:,} rows, but the last load left {counted:,}: rows were {what} by hand"
    return DataError(
        said,
        hint=f"{way_on}; to keep the rows as they are: floodmark sync -t {table.name} --force",
    )


def _check_plausible(request: LoadRequest, staged: Sequence[Numbered], rows: int | None) -> None:
    """Refuse to swap many rows for a few: the source was emptied, or is a different one."""
    coming = sum(commit.rows for commit, _ in staged)
    if not request.adopt and implausible(rows or 0, coming + request.rows_to_follow):
        raise DataError(
            f"{request.target} has {rows:,} rows, and {counted(coming, 'row')} would replace them: not loaded",
            hint=f"if that is correct: floodmark sync -t {request.table.name} --redshift-only --force",
        )


def count_after(
    request: LoadRequest, ledger: Ledger, decision: Decision, before: int | None, after: str
) -> str:
    """How many rows the next load expects, in SQL; `before`: the rows before this load, `after`: those it leaves.

    New rows leave a difference as it is, which stays on record. For rows that were read again, and keys that are
    deleted, there is no telling whether others had deleted or added them. They count as if others had, so that a
    settled difference is not reported.
    """
    expected, there = ledger.counted, before
    if expected is None or decision.way == "replace" or request.adopt:
        return after
    if there is None:  # the target was dropped: the old count says nothing of the one made now
        return after
    as_before = f"{after} + ({expected - there})"
    if _moves(decision.new) or there == expected:
        return as_before
    if there < expected:
        gone = sum(commit.rows for commit, _ in decision.staged) if decision.way == "delete" else 0
        least = expected - gone
        return f"CASE WHEN {after} < {least} THEN {least} ELSE {after} END"
    return (
        f"CASE WHEN {after} < {there} AND {after} < {expected} THEN {after} "
        f"WHEN {after} < {there} THEN {expected} ELSE {as_before} END"
    )


def _moves(commits: Sequence[Numbered]) -> bool:
    """Whether any of these commits brings new rows, not only rows read again."""
    return any(not commit.beside for commit, _ in commits)


def check_elsewhere(ledger: Ledger, epoch: int, table: str, target: str) -> None:
    """Refuse a target if rows of this epoch are in another one."""
    elsewhere = {row.target for row in ledger.rows if row.epoch == epoch and row.target != target}
    if elsewhere:
        raise ConfigError(
            f"{table} was loaded into {', '.join(sorted(elsewhere))} so far, but its target is now {target}",
            hint=f"change the target back, or fill the new one: floodmark watermark reset -t {table} --redshift-only",
        )


def check_holder(holder: TargetFiller | None, pipeline: str, log: str, table: str, target: str) -> None:
    """Refuse a target that another pipeline or another table fills."""
    if holder is None or holder.log == log:
        return
    if holder.pipeline != pipeline and holder.table == table and not log:
        raise ConfigError(
            "the target is already filled from this table through another store, and this store knows nothing about it",
            hint="check store.url: a table continues only with the store that it began with. For a second copy, set "
            "another `target`; if the other store is gone, --force starts over with this one",
        )
    if holder.pipeline != pipeline and holder.table == table:
        raise ConfigError(
            f"{target} is filled by another pipeline ({holder.pipeline}), from the same table through another store",
            hint="check store.url, or set another `target`; to take the target over, stop the other pipeline and use --force",
        )
    if holder.pipeline != pipeline:
        raise ConfigError(
            f"{target} is filled by another pipeline ({holder.pipeline}, from {holder.table})",
            hint="set another `target` for this table; or stop that pipeline, then take the target over with --force",
        )
    if holder.table != table:
        raise ConfigError(
            f"{target} is filled from {holder.table}; two tables can't share one target",
            hint=f"set `tables.{table}.target`, or take it over with --force",
        )


def check_new_epoch(ledger: Ledger, holder: TargetFiller, target: str, adopt: bool) -> None:
    """Refuse a new load epoch of a target that others fill, or that has a later one."""
    if not adopt:
        check_holder(ledger.holder, holder.pipeline, holder.log, holder.table, target)
    if ledger.epoch is not None and ledger.epoch > holder.epoch:
        raise ConflictError(f"the load stage of {holder.table} was reset by a later commit ({ledger.epoch})")


def _check_epoch(request: LoadRequest, ledger: Ledger) -> None:
    """Stop a load whose epoch is not the ledger's."""
    if ledger.epoch is not None and ledger.epoch != request.epoch:
        raise ConflictError(
            f"the load stage of {request.table.name} was reset (epoch {ledger.epoch}, this load's is {request.epoch})",
            hint="run again: the files load in the new epoch",
        )


def _check_staged(request: LoadRequest, staged: Sequence[Numbered], way: LoadAs) -> None:
    """Check that commits staged together have one schema, load the same way and are in the log's order."""
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
    """Stop if a later commit was loaded first: its rows are newer, and these would overwrite them."""
    later = sorted(n for n, _ in loaded if n > new[0][0].n)
    if later:
        raise ConflictError(
            f"commit {later[0]} of {request.table.name} was loaded before commit {new[0][0].n}",
            hint="another run has loaded it in the meantime; run again",
        )
