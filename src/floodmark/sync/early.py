"""Spark that begins to start before a sync has begun, if a table was never synced: then there are rows to read.

A command asks for it before it imports the rest of a sync, which takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from floodmark.config.load import Config
from floodmark.log.document import primary_path
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncOptions
from floodmark.spark.context import WarmSpark
from floodmark.store.store import Store, encode


def early_spark(
    config: Config, names: Sequence[str], all_tables: bool, options: SyncOptions, run: str
) -> WarmSpark:
    """Spark for one sync, which stops it; it may be starting already."""
    spark = WarmSpark(config, f"floodmark {run}", one_run=True)
    if options.reads_source and not options.load_only:
        spark.warm_up_if(partial(never_synced, config, names, all_tables))
    return spark


def never_synced(config: Config, names: Sequence[str], all_tables: bool) -> bool:
    """Whether one of the tables has neither watermark nor log; of all tables, whether none has a log."""
    try:
        store, database = Store(config.store), config.source.database
        if all_tables:
            return not store.folders("commits/")
        full = [f"{database}.{name}" if database and "." not in name else name for name in names]
        new = [name for name in full if "." in name and store.end(primary_path(name), 1) is None]
        # The source may spell a name in another case.
        known = {folder.lower() for folder in store.folders("commits/")} if new else set()
        return any(encode(name).lower() not in known for name in new)
    except FloodmarkError:  # the sync will say what is wrong
        return False
