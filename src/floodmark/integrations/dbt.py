"""dbt: a `sources.yml` of the tables that were synced, with their columns, and freshness by `floodmark_freshness`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from floodmark.config.load import AlertSpec, Config
from floodmark.load.protocol import FRESHNESS, quote
from floodmark.log.log import Log
from floodmark.log.log import tables as tables_of
from floodmark.model.errors import ConfigError
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.plan.tables import full_name
from floodmark.store.store import Store

_OURS = "# Written by `floodmark dbt sources`"  # earlier versions continued it in other words
HEAD = f"{_OURS}, which overwrites it: change the configuration instead."
ERROR_AFTER = 4  # times the time after which dbt warns


@dataclass(frozen=True)
class SourcesOptions:
    """What the sources should look like; seconds, None: as in the configuration."""

    name: str = "floodmark"
    warn_after: float | None = None
    error_after: float | None = None


def sources(config: Config, names: Sequence[str], wanted: SourcesOptions) -> dict[str, Any]:
    """The content of a `sources.yml`: the given tables, or all that were synced and are not retired."""
    store = Store(config.store)
    chosen = [full_name(config, store, name) for name in names] if names else tables_of(store)
    found: list[Table] = []
    for name in chosen:
        state = Log(store, name).read()
        if state.table is not None and (names or not state.retired):
            found.append(state.table)
        elif names:
            raise ConfigError(f"{name} has not been synced yet", hint=f"floodmark sync -t {name}", table=name)
    if not found:
        raise ConfigError("no table has been synced yet", hint="floodmark sync --all")
    return document(config, found, wanted)


def document(config: Config, tables: Sequence[Table], wanted: SourcesOptions) -> dict[str, Any]:
    """The sources of these tables."""
    source = {
        "name": wanted.name,
        "schema": config.warehouse.schema,
        "description": f"Copied from MySQL at {config.source.host} by Floodmark.",
        "tables": [_table(config, table, wanted) for table in sorted(tables, key=lambda t: t.target)],
    }
    return {"version": 2, "sources": [source]}


def _table(config: Config, table: Table, wanted: SourcesOptions) -> dict[str, Any]:
    key = f", by key ({', '.join(table.key)})" if table.key else ""
    made: dict[str, Any] = {
        "name": table.target,
        "description": f"{table.name} of the source, mode {table.mode}{key}.",
    }
    if config.warehouse.freshness:
        place = quote(config.warehouse.schema, FRESHNESS)
        target = table.target.replace("'", "''")
        behind = config.options(table.name).behind or (config.alerts or AlertSpec()).behind
        warn = wanted.warn_after or behind
        made["config"] = {
            "loaded_at_query": f"select max(as_of) from {place} where target = '{target}'",
            "freshness": {
                "warn_after": _after(warn),
                "error_after": _after(wanted.error_after or max(warn * ERROR_AFTER, warn)),
            },
        }
    made["columns"] = [
        {"name": f.target, "data_type": config.warehouse.can.type_of(f)}
        for f in fields(table)
        if not f.file_only
    ]
    return made


def _after(seconds: float) -> dict[str, Any]:
    """A duration as dbt writes it: whole minutes, hours or days, rounded up."""
    minutes = max(1, math.ceil(seconds / 60))
    for period, length in (("day", 1440), ("hour", 60)):
        if minutes % length == 0:
            return {"count": minutes // length, "period": period}
    return {"count": minutes, "period": "minute"}


def text(content: dict[str, Any]) -> str:
    """The file's text."""
    return f"{HEAD}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)}"


def write(path: Path, content: dict[str, Any], force: bool) -> None:
    """Writes the file; one that somebody else has written only with force."""
    try:
        if path.exists() and not force and not path.read_text(errors="replace").startswith(_OURS):
            raise ConfigError(
                f"{path} exists, and was not written by this command", hint="--force replaces it"
            )
        path.write_text(text(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} can't be written: {error.strerror}", hint="name a file in a folder that exists"
        ) from None
