"""`watermark history`, and `watermark restore` to a position in it.

A restore is a new commit that moves the extraction's position and nothing else: no commit is rewritten, no file is
forgotten, and it can be undone the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floodmark.config.load import Config
from floodmark.load.preview import Ledgers
from floodmark.log.document import data_position
from floodmark.log.fold import Damaged, State, duplicates, fold, would_duplicate
from floodmark.log.log import Log
from floodmark.model.changes import FollowedTo
from floodmark.model.commit import Claim, Clean, Commit, Deletes, Reset, Restore, files_of
from floodmark.model.errors import ConfigError, DataError, TransientError
from floodmark.model.lineage import current
from floodmark.model.position import Position
from floodmark.model.results import CommitRow, History, Watermark
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import cursor_value, temporal
from floodmark.model.typed import NULL, Moment
from floodmark.plan.recipe import same_kind
from floodmark.plan.tables import must_exist
from floodmark.store.store import MOST_COPY
from floodmark.watermark.set_reset import Move, back, known_table, set_position
from floodmark.watermark.show import named_log, next_start, published

# Fields that every document of `watermark get --json` has.
FIELDS = (
    "table_name",
    "commit",
    "last_mysql_data_timestamp",
    "last_mysql_data_id",
    "mysql_status",
    "metadata",
)


def watermark_history(config: Config, name: str) -> History:
    """The table's commits, newest first, each with the extraction's position after it."""
    log = named_log(config, name)
    state = log.read()
    if state.n < 0 and log.table_name not in config.tables:
        must_exist(config, log.table_name)
    entries = tuple(_entry(commit, after) for commit, after in past(log, state))
    table = state.table
    cursor = table.cursor if table is not None and table.cursor not in table.key else None
    return History(table_name=log.table_name, cursor=cursor, commits=entries[::-1])


def past(log: Log, state: State) -> Iterator[tuple[Commit, State | None]]:
    """The commits that still exist, oldest first, with the state after each where it is known."""
    after: State | None = State(log.table_name)
    for commit, found in log.commits(n for n in log.numbers() if n <= state.n):
        try:
            after = fold(after, commit, found) if after is not None else None
        except Damaged:  # an earlier commit is lost, so no position from here to the present one is known
            after = None
        yield commit, state if commit.n == state.n else after


def _entry(commit: Commit, after: State | None) -> CommitRow:
    files = files_of(commit)
    entry = CommitRow(
        n=commit.n,
        kind=commit.kind,
        at=Moment(commit.at),
        run=commit.run,
        rows=sum(f.rows for f in files),
        files=len(files),
        position=tuple(after.position) if after and after.position else NULL,
    )
    if after is not None and after.followed_to is not None:
        entry = entry.but(binlog=str(after.followed_to.place))
    if isinstance(commit, Claim) or (isinstance(commit, Deletes) and commit.purpose):
        return entry.but(purpose=commit.purpose)
    if isinstance(commit, Clean) and commit.clean is not None:
        return entry.but(removed=commit.clean.files)
    return entry.but(stages=tuple(commit.stages)) if isinstance(commit, Reset) else entry


def watermark_restore(
    config: Config,
    name: str,
    run: str,
    *,
    commit: int | None = None,
    file: Path | None = None,
    force: bool = False,
) -> Watermark:
    """Restores the position after an earlier commit, or of a printed document; returns the new document."""
    if (commit is None) == (file is None):
        raise ConfigError("give a commit, or a file that `watermark get --json` printed")
    log = named_log(config, name)
    document = _printed(file, log.table_name) if file is not None else None

    def decide(state: State) -> Move:
        table = state.table
        if document is not None:
            table = table or known_table(config, log.table_name, state, None)
            (position, stands), upto = _position(log, state, table, document)
            origin = f"{file}"
        else:
            assert commit is not None
            (position, stands), upto, origin = _position_at(log, state, commit), commit, f"commit {commit}"
        if table is not None and table.mode == "full":
            raise ConfigError("the table has no position: every sync reads all of it (mode full)")
        if table is not None and would_duplicate(table, state) and _goes_back(state, position) and not force:
            raise duplicates(table)
        forward = position not in (None, state.position) and (
            state.position is None or not _goes_back(state, position)
        )
        if forward or (stands is not None and (state.followed_to is None or state.followed_to.n < stands.n)):
            _refuse_unloaded(config, log, state, upto)
        described = table if state.table is None else None
        place = {"position": position, "followed_to": stands}
        return described, Restore, {**place, "note": f"restored from {origin}"}

    before, after = set_position(log, run, "restore", decide)
    shown = published(config, log.store, after, run)
    if after.position is None:
        shown = shown.but(**next_start(config, log.store, after))
    return shown.but(undo=f"floodmark watermark restore -t {log.table_name} --commit {before.n}")


def _goes_back(state: State, position: Position | None) -> bool:
    if position is None:
        return state.position is not None
    return back(state.position, position)


def _refuse_unloaded(config: Config, log: Log, state: State, upto: int) -> None:
    """Raises unless the warehouse has all those commits up to a number that an ordinary sync no longer loads.

    A reset of both stages, or a clean of pending files, leaves such commits behind. A position beyond them would skip
    their rows: nothing reads them again, and nothing loads their files.
    """
    data = [d for d in log.data(state, (), superseded=True) if d.superseded and d.n <= upto]
    if not data:
        return
    with Ledgers(config) as ledgers:
        ledger = ledgers.of(state)
    if ledger is None:
        raise TransientError(
            f"the warehouse does not answer, and commit {data[0].n} and later ones, which no longer load, may not be in it",
            hint="run the command again when the warehouse answers",
        )
    loaded = {row.identity for row in ledger.rows}
    lost = [d for d in data if (d.n, d.digest) not in loaded]
    if lost:
        files, rows = sum(d.files for d in lost), sum(d.rows for d in lost)
        raise DataError(
            f"{counted(rows, 'row')} up to there never reached the warehouse: {counted(files, 'file')} of commit"
            f" {lost[0].n} and later no longer load, because of a reset or a clean",
            hint=f"floodmark watermark restore -t {log.table_name} --commit {lost[0].n - 1} goes back to before them",
        )


# A position, or how far the binary log was followed.
_Place = tuple[Position | None, FollowedTo | None]


def _position_at(log: Log, state: State, n: int) -> _Place:
    """Where the table stood after a commit."""
    if not 0 <= n <= state.n:
        what = f"the log has commits 0 to {state.n}" if state.n >= 0 else "the table has no log"
        raise ConfigError(
            f"there is no commit {n}: {what}",
            hint=f"floodmark watermark history -t {log.table_name} lists its commits",
        )
    if n == state.n:
        return state.position, state.followed_to
    for commit, after in past(log, state):
        if commit.n == n and after is not None:
            if after.position is not None and not _one_order(after.table, state.table):
                raise ConfigError(
                    f"at commit {n} the table was read in another order, so its position can't be used now",
                    hint=f"floodmark watermark set -t {log.table_name} sets one by hand",
                )
            return after.position, after.followed_to
    raise DataError(
        f"the position after commit {n} is unknown: earlier commits are lost",
        hint=f"floodmark watermark set -t {log.table_name} --timestamp TS continues from a time",
    )


def _one_order(then: Table | None, now: Table | None) -> bool:
    """Whether a table is still read by the columns that its position consists of, renamed or not."""
    if then is None or now is None:
        return True
    since = now.lineage.renamed[len(then.lineage.renamed) :]
    if [current(name, since) for name in then.order] != list(now.order):
        return False
    return all(same_kind(then.column(a), now.column(b)) for a, b in zip(then.order, now.order, strict=True))


def _printed(file: Path, table_name: str) -> dict[str, Any]:
    """The document in a file; refused unless `watermark get --json` printed it for this table."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_COPY + 1)
        large = len(data) > MOST_COPY
        body = None if large else json.loads(data.decode("utf-8-sig"))
        why = "it is too large" if large else _unlike(body, table_name)
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror or error}", table=table_name) from None
    except (ValueError, RecursionError):
        why = "it is not JSON"
    if why is not None:
        raise ConfigError(
            f"{file} is not what `floodmark watermark get -t {table_name} --json` printed: {why}",
            hint=f"floodmark watermark history -t {table_name} shows what --commit can restore",
            table=table_name,
        )
    return dict(body or {})


def _unlike(body: Any, table_name: str) -> str | None:
    """Why this is not a table's document, as `watermark get` prints it; None: it is."""
    if not isinstance(body, dict):
        return "it is not a JSON object"
    if "tables" in body:
        return "it is a list of watermarks"
    if "checkpoint" in body:
        return "it is a stored copy; Floodmark recovers from those automatically"
    missing = [field for field in FIELDS if field not in body]
    if missing:
        return f"it has no {missing[0]}"
    if body["table_name"] != table_name:
        return f"it is the watermark of {body['table_name']}"
    stamp, key, n = body["last_mysql_data_timestamp"], body["last_mysql_data_id"], body["commit"]
    values = key is None or (isinstance(key, list) and all(isinstance(v, int | str) for v in key))
    sound = isinstance(stamp, str | None) and values and isinstance(n, int | None)
    return None if sound else "its position is not valid"


def _position(log: Log, state: State, table: Table, document: dict[str, Any]) -> tuple[_Place, int]:
    """The position of a printed document, and the number of the last commit that it may lie beyond.

    If it was printed from this log, both are the log's own; else the position comes from its fields, and its
    number says nothing about this log.
    """
    shown = (document["last_mysql_data_timestamp"], document["last_mysql_data_id"])
    n = document["commit"]
    if isinstance(n, int) and 0 <= n <= state.n:
        for commit, after in past(log, state):
            same = (
                after is not None and data_position(after) == shown and _one_order(after.table, state.table)
            )
            if commit.n == n and after is not None and same:
                return (after.position, after.followed_to), n
    return (_by_fields(table, *shown), None), state.n


def _by_fields(table: Table, timestamp: str | None, key: list[int | str] | None) -> Position | None:
    """The position that a document's fields show."""
    if timestamp is None and key is None:
        return None
    unclear = ConfigError(
        "the file comes from another log of this table and does not have the whole position",
        hint=f"floodmark watermark set -t {table.name} sets one by hand",
        table=table.name,
    )
    if table.cursor is None or (timestamp is None) == temporal(table):
        raise unclear
    if key is not None and len(key) != len(table.key):
        raise unclear
    values = dict(zip(table.key, key or (), strict=False))
    if timestamp is not None:
        try:
            values[table.cursor] = cursor_value(table, timestamp)
        except ValueError:
            raise unclear from None
    if key is None:
        return (values[table.cursor],)
    if any(column not in values for column in table.order):
        raise unclear
    return tuple(values[column] for column in table.order)
