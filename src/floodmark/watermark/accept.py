"""`watermark accept`: continue with changes that `schema_changes: ask` asks about, or with a source that was replaced."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from floodmark.config.load import Config, TableOptions
from floodmark.log.claim import Changed, claim, decide_and_claim
from floodmark.log.fold import State, restarted_by
from floodmark.log.log import Log
from floodmark.model.errors import ConfigError
from floodmark.model.results import Watermark
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.window import Window
from floodmark.plan.reread import Followed, asked_about, begins_whole, carrier, follow, question
from floodmark.source.describe import discover
from floodmark.source.errors import as_discovered
from floodmark.source.ranges import table_rows
from floodmark.source.session import Session
from floodmark.watermark.set_reset import watermark_reset
from floodmark.watermark.show import named_log, published


def watermark_accept(config: Config, name: str, run: str, *, force: bool = False) -> Watermark:
    """Accepts the open question of `schema_changes: ask`; without one, a source that was replaced.

    The first is a claim that resets nothing. The second is a reset of both stages, so that no file of the old source
    loads any more, and the next sync reads the whole source again and merges it by key. Without a key rows would be
    duplicated, so it is refused unless forced. Returns the new document.
    """
    log = named_log(config, name)
    options = config.options(log.table_name)
    state = log.begin(force)
    if state.table is None:
        raise ConfigError("the table was never synced, so there is nothing to accept", table=log.table_name)
    with Session(config.source, purpose="accept") as session:
        table = discover(session, log.table_name, options, config.source.database)
        rows = table_rows(session, table)
        answered = decide_and_claim(
            log, state, lambda newest: _answered(session, table, newest, options, log, run)
        )
    if answered is not None:
        after, found = answered
        return published(config, log.store, after, run).but(**found)
    if table.mode == "full":
        raise ConfigError("nothing to accept: every sync reads the whole table (mode full)", table=table.name)
    mark = watermark_reset(config, log.table_name, run, force=force)
    if options.deletes == "ignore":
        left = f"rows that only the old source had stay in {table.target}: floodmark verify -t {table.name} --repair removes them"
    else:
        done = "deletes" if options.deletes == "hard" else "marks as deleted"
        left = f"the next sync {done} the rows that only the old source had"
    notes = (*mark.notes, f"the next sync reads about {counted(rows, 'row')} again", left)
    return mark.but(rows_read_again=rows, notes=notes)


@as_discovered()
def _answered(
    session: Session, table: Table, state: State, options: TableOptions, log: Log, run: str
) -> tuple[State, dict[str, Any]] | Changed | None:
    """Claims the table as it is now, with the rows that are to be read again; None if there is no question.

    The claim is all that a sync would need to ask no more: it reads the rows that the claim says it owes.
    """
    now = restarted_by(state, table)
    if now.table is None or question(table, now, options) is None:
        return None
    found = follow(session, table, now, options, SyncOptions(dry_run=True), log)
    if found.asks is None:
        return None
    reread = None if found.window is not None else _carried(session, found, now)
    taken = claim(log, state, run=run, purpose="accept", table=found.table, reread=reread)
    if isinstance(taken, Changed):
        return taken
    taken.lease.release()
    rows, notes = sum(piece.rows for piece in found.slices), list(found.notes)
    if begins_whole(now, table, SyncOptions()):
        rows = table_rows(session, table)
        notes.append(
            f"The next sync reads about {counted(rows, 'row')}, which replace all rows of {table.target}."
        )
    elif reread is not None:
        rows = reread.rows
    elif not found.table.key and found.table.mode != "full":
        notes.append(f"Without a key, no row is read again: {table.target} changes when new rows come.")
    accepted = asked_about(now.table, found.table, found.recipe)
    return taken.state, {"accepted": tuple(accepted), "rows_read_again": rows, "notes": tuple(notes)}


def _carried(session: Session, found: Followed, state: State) -> Window | None:
    """The last rows read, as a window to read again: they bring the change to the target without new rows."""
    if found.table.mode == "full":
        return None
    for piece in carrier(session, found.table, state.position):
        return Window(token_hex(8), piece.after, piece.upto, "cursor", (), None, piece.rows)
    return None
