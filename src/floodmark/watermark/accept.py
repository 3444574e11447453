"""`watermark accept`: continue with a source that was replaced on purpose."""

from __future__ import annotations

from typing import Any

from floodmark.commit.log import Log
from floodmark.config.load import Config
from floodmark.model.errors import ConfigError
from floodmark.model.text import counted
from floodmark.plan.tables import full_name
from floodmark.services.mysql.describe import discover
from floodmark.services.mysql.ranges import table_rows
from floodmark.services.mysql.session import Session
from floodmark.services.store.store import Store
from floodmark.watermark.set_reset import watermark_reset


def watermark_accept(config: Config, name: str, run: str, *, force: bool = False) -> dict[str, Any]:
    """Has the next sync read the whole source again and merge it by key; returns the new document.

    This is a reset of both stages, so that no file of the old source loads any more. Without a key rows would be
    duplicated, so it is refused unless forced.
    """
    store = Store(config.store)
    log = Log(store, full_name(config, store, name))
    options = config.options(log.table_name)
    if log.begin(force).table is None:
        raise ConfigError("the table was never synced, so there is nothing to accept", table=log.table_name)
    with Session(config.source, purpose="accept") as session:
        table = discover(session, log.table_name, options, config.source.database)
        rows = table_rows(session, table)
    if table.mode == "full":
        raise ConfigError("nothing to accept: every sync reads the whole table (mode full)", table=table.name)
    document = watermark_reset(config, log.table_name, run, force=force)
    if options.deletes == "ignore":
        left = f"rows that only the old source had stay in {table.target}: floodmark verify -t {table.name} --repair removes them"
    else:
        done = "deletes" if options.deletes == "hard" else "marks as deleted"
        left = f"the next sync {done} the rows that only the old source had"
    notes = [
        *document["notes"],
        f"the next sync reads about {counted(rows, 'row')} again",
        left,
    ]
    return {**document, "rows_read_again": rows, "notes": notes}
