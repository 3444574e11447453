"""`watermark accept`: the source was replaced on purpose, and what is there now is what to go on from."""

from __future__ import annotations

from typing import Any

from floodmark.config import Config
from floodmark.errors import ConfigError
from floodmark.moves import watermark_reset
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.mysql.edges import table_rows
from floodmark.state import Log
from floodmark.store import Store
from floodmark.units import counted
from floodmark.watermarks import full_name


def watermark_accept(config: Config, name: str, run: str, *, force: bool = False) -> dict[str, Any]:
    """All of the source is read again from the start and merged by key; returns the new document.

    A reset of both stages, so that nothing of the former source loads any more. Refused without a key, because rows
    would be doubled, unless it is forced.
    """
    store = Store(config.store)
    log = Log(store, full_name(config, store, name))
    options = config.options(log.table_name)
    if log.begin(force).table is None:
        raise ConfigError("the table was never synced: there is nothing to accept", table=log.table_name)
    with Session(config.source, purpose="accept") as session:
        table = discover(session, log.table_name, options, config.source.database)
        rows = table_rows(session, table)
    if table.mode == "full":
        raise ConfigError(
            "the table is read whole (mode full): every sync takes the source as it is", table=table.name
        )
    document = watermark_reset(config, log.table_name, run, force=force)
    if options.deletes == "ignore":
        left = f"stay in {table.target}: floodmark verify -t {table.name} --repair removes them"
    else:
        left = f"are {'deleted' if options.deletes == 'hard' else 'marked as deleted'} by the next sync"
    notes = [
        *document["notes"],
        f"about {counted(rows, 'row')} will be read again by the next sync",
        f"rows that only the former source had {left}",
    ]
    return {**document, "rows_read_again": rows, "notes": notes}
