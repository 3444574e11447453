"""The commands for a table's position: `watermark get`, `list`, `set`, `reset`, `accept`, `retire`, `clear` and `move`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import options
from floodmark.cli import watermark_history as past
from floodmark.cli.layout import UNKNOWN, card, colour, fit, fold, indent, lag, list_names, position
from floodmark.cli.options import Settings
from floodmark.cli.printing import has_colour, printable, scrub_document, width
from floodmark.model.presets import PRESETS
from floodmark.model.text import clock, count, counted, data_time

if TYPE_CHECKING:
    from floodmark.model.results import MoveResult, OlderWatermark, SystemWatermark, Watermark

_COLOURS = {"success": "32", "pending": "33", "failed": "31"}


@click.group(cls=options.Group)
def watermark() -> None:
    """See and set how far each table has got.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark get -t shop.orders
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 00:00:00"
      floodmark watermark reset -t shop.orders
      floodmark watermark retire -t shop.old_orders
    """


@options.command()
@options.maybe_table
@options.flag("--show-files", "List every file, waiting and loaded, not only the newest 1,000.")
def get(settings: Settings, table: str | None, show_files: bool) -> int:
    """Show a table's watermark, both stages; without -t, the system watermark.

    Works while a sync runs and when MySQL or the warehouse is unreachable; what is then unknown is shown as unknown. Rows
    that were read again (overlap, --since, new columns) are counted separately.

    \b
    Examples:
      floodmark watermark get -t shop.orders
      floodmark watermark get -t shop.orders --show-files
      floodmark watermark get -t shop.orders --json > backup.json
      floodmark watermark get
    """
    if show_files and table is None:
        raise click.UsageError("--show-files needs -t")
    pipeline = settings.pipeline()
    if table is None:
        start = pipeline.config.options("").start
        return settings.result(pipeline.watermark_get(), lambda d: system_lines(d, start))
    loads = pipeline.config.warehouse.can.label

    def lines(mark: Watermark) -> list[str]:
        shown = mark.of(scrub_document(mark, settings.scrub))
        return fold(watermark_lines(shown, show_files, has_colour(), loads), width())

    return settings.result(pipeline.watermark_get(table, show_files=show_files), lines)


@options.command("list")
@options.many_tables("Only this table; repeatable.")
def list_(settings: Settings, tables: tuple[str, ...]) -> int:
    """Show every table that has a watermark, both stages.

    Below them: watermarks of the older tool (s3-redshift-backup-tool) that the first sync of their table takes over.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark list -t shop.orders -t shop.customers
    """
    pipeline = settings.pipeline()
    loads = pipeline.config.warehouse.can.label
    return settings.result(
        pipeline.watermark_list(*tables),
        lambda d: list_lines(d.tables, has_colour(), loads, d.older_watermarks, width()),
    )


@options.command("set")
@click.argument("preset", required=False)
@options.maybe_table
@options.timestamp_option(
    "--timestamp",
    "Start after this value of the cursor: YYYY-MM-DD[ HH:MM:SS[.ffffff]], as the column has it.",
    future=False,
)
@click.option(
    "--id", "key", metavar="ID",
    help="Among the rows with that timestamp, start after this key; alone for tables read by id.",
)  # fmt: skip
@options.yes
@options.flag(
    "--force",
    "Don't ask for confirmation (system watermark); move a table without a key back even if rows may be duplicated.",
)
def set_(
    settings: Settings,
    preset: str | None,
    table: str | None,
    timestamp: str | None,
    key: str | None,
    yes: bool,
    force: bool,
) -> int:
    """Set where the next sync of a table starts; without -t, the system watermark.

    The next sync of the table reads rows with cursor > TS; with --id, those after (TS, ID). It holds until a sync
    extracts. `sync --redshift-only` then loads only files created after TS (UTC).

    A table that follows the binary log follows it again from the first transaction committed after TS (UTC). If the
    server has purged that, the exit code is 6.

    Tables without a position begin at the system watermark. PRESET is a month and a day (aug4: the latest one that is
    not in the future), Nhours, Ndays, Nweeks or Nmonths ago, today, or yesterday.

    \b
    Examples:
      floodmark watermark set -t shop.orders --timestamp 2025-08-01
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 12:00:00" --id 1250000
      floodmark watermark set -t shop.events --id 1250000
      floodmark watermark set 1week
      floodmark watermark set --timestamp 2025-08-01 --force
    """
    if table is None:
        if key is not None:
            raise click.UsageError("--id needs -t")
        return _system(settings, preset, timestamp, yes or force)
    if preset is not None:
        raise click.UsageError(
            f"presets such as {preset!r} are for the system watermark; with -t, give --timestamp"
        )
    if timestamp is None and key is None:
        raise click.UsageError("give --timestamp, or --id for a table read by id")
    if key is not None and not key.strip():
        raise click.UsageError("--id is empty")
    document = settings.pipeline().watermark_set(table, timestamp=timestamp, id=key, force=force)
    return settings.result(document, set_lines)


@options.command()
@click.argument("preset", required=False)
@options.maybe_table
@options.flag("--mysql-only", "Only MySQL → S3: read from the start; what was loaded stays.")
@options.flag("--redshift-only", "Only S3 → warehouse: all files load again, once.")
@options.yes
@options.flag(
    "--force",
    "Don't ask for confirmation (system watermark); reset a table without a key even if rows may be duplicated.",
)
def reset(
    settings: Settings,
    preset: str | None,
    table: str | None,
    mysql_only: bool,
    redshift_only: bool,
    yes: bool,
    force: bool,
) -> int:
    """Put a table back to the start; without -t, set the system watermark to a preset.

    The next sync begins at the system watermark if there is one, else at `start`; rows that are read again are merged
    by key. Ordinary syncs no longer load files from before the reset. A reset holds: recovering a lost watermark never
    brings the old position back. To go back, run the command that the reset prints.

    \b
    Examples:
      floodmark watermark reset -t shop.orders
      floodmark watermark reset -t shop.orders --mysql-only
      floodmark watermark reset -t shop.orders --redshift-only
      floodmark watermark reset yesterday
    """
    if table is None:
        if mysql_only or redshift_only:
            raise click.UsageError("--mysql-only and --redshift-only need -t")
        return _system(settings, preset, None, yes or force)
    if preset is not None:
        raise click.UsageError(
            f"presets such as {preset!r} are for the system watermark; leave it out with -t"
        )
    if mysql_only and redshift_only:
        raise click.UsageError(
            "--mysql-only and --redshift-only can't be combined; to reset both stages, give neither"
        )
    pipeline = settings.pipeline()
    document = pipeline.watermark_reset(
        table, mysql_only=mysql_only, redshift_only=redshift_only, force=force
    )
    load = f"S3 → {pipeline.config.warehouse.can.label} is"
    stages = "MySQL → S3 is" if mysql_only else load if redshift_only else "both stages are"
    return settings.result(document, lambda d: reset_lines(d, stages, redshift_only))


@options.command()
@options.one_table
@options.flag("--force", "Accept a table without a key too, even if rows may be duplicated.")
def accept(settings: Settings, table: str, force: bool) -> int:
    """Continue with a source that has changed or was replaced on purpose.

    With `schema_changes: ask`, a sync stops with exit code 6 when columns or options have changed. This accepts that
    change and nothing else, and says what the next sync reads again because of it.

    After a restore, a migration, a failover that lost rows, or a table that was dropped and created again, a sync stops
    with exit code 6, too. This accepts the source as it is now: the next sync reads all of it again, from the table's
    start, and merges it by key. Files from the old source no longer load.

    With `changes: binlog`, the binary log is followed from its present end on, also behind an event that this version
    does not know, and the next sync compares every table that follows it with its target.

    \b
    Examples:
      floodmark watermark accept -t shop.orders
      floodmark watermark accept -t shop.orders --json
    """
    return settings.result(settings.pipeline().watermark_accept(table, force=force), accept_lines)


@options.command()
@options.one_table
def retire(settings: Settings, table: str) -> int:
    """Leave a table out of `sync --all` from now on.

    When a table that was synced before disappears from the source, `sync --all` ends with exit code 2: it may have been
    dropped, or a privilege was lost. Retire it if it was dropped. Its log, files and rows stay; a later `sync -t TABLE`
    brings it back.

    \b
    Examples:
      floodmark watermark retire -t shop.old_orders
    """
    document = settings.pipeline().watermark_retire(table)
    said = f"{document.table_name}: retired; `sync --all` skips it, and its log, files and rows stay"
    return settings.result(document, lambda d: [said, f"To undo: {d.undo}"])


@options.command()
def move(settings: Settings) -> int:
    """Move the store's pipeline to another warehouse: the one in the configuration.

    That warehouse must be reachable. Its ledger says what it already has (it may be a restored or moved copy); the next
    sync loads all other files of the store. The old warehouse is not touched.

    \b
    Examples:
      floodmark watermark move
    """
    return settings.result(settings.pipeline().watermark_move(), move_lines)


@options.command()
@options.yes_or_force
def clear(settings: Settings, yes: bool) -> int:
    """Remove the system watermark.

    Tables without a position then begin at `start`. Tables that have one are not affected.

    \b
    Examples:
      floodmark watermark clear
      floodmark watermark clear --force
    """
    config = settings.load()
    from floodmark.log.pipeline import system_clear

    document = system_clear(
        config, lambda before: options.confirm(f"Remove the system watermark ({before})?", yes)
    )
    return settings.result(document, lambda d: cleared_lines(d, config.options("").start))


def _system(settings: Settings, preset: str | None, timestamp: str | None, yes: bool) -> int:
    if preset is None and timestamp is None:
        raise click.UsageError(f"give -t TABLE, or a preset for the system watermark: {PRESETS}")
    if preset is not None and timestamp is not None:
        raise click.UsageError("give a preset or --timestamp, not both")
    from floodmark.log.pipeline import moment

    chosen = moment(preset, timestamp)
    pipeline = settings.pipeline()
    options.confirm(f"Set the system watermark to {chosen}?", yes)
    said = f"System watermark: tables without a position start after {chosen}"
    return settings.result(pipeline.watermark_set(timestamp=chosen), lambda d: [said, f"To undo: {d.undo}"])


@click.group(cls=options.Group)
def table() -> None:
    """Confirm a change that was made on purpose.

    The same as `watermark accept`, `retire` and `move`.

    \b
    Examples:
      floodmark table accept -t shop.orders
      floodmark table retire -t shop.old_orders
      floodmark table move
    """


status = copy(list_)
status.name = "status"
for command in (get, list_, set_, reset, accept, retire, clear, *past.COMMANDS, move):
    watermark.add_command(command)
for command in (accept, retire, move):
    table.add_command(command)


# ---------------------------------------------------------------- for people


def watermark_lines(
    mark: Watermark, show_files: bool, paint: bool = False, warehouse: str = "Redshift"
) -> list[str]:
    """`watermark get -t T` for people; `warehouse` is the configured one's label."""
    lines = [
        f"Current watermark for {mark.table_name}",
        *(f"  {line}" for line in activity_lines(mark)),
        "  MySQL → S3",
        _entry("Status", _status(mark.mysql_status, paint)),
        _entry("Rows extracted", _rows(mark.mysql_rows_extracted, mark.mysql_rows_reread)),
        _entry("S3 files created", _number(mark.s3_file_count)),
        *_data_entries(mark),
        _entry("Last extraction time", clock(mark.last_mysql_extraction_time) or "never"),
        _entry("Last check", clock(mark.last_check_time) or "never"),
        *([] if mark.whole or mark.no_rows else [_entry("Lag behind the source", lag(mark))]),
        _entry("Strategy", _strategy(mark)),
        *(_entry("Not followed", _clause(kind)) for kind in mark.not_followed),
        *_load_lines(mark, paint, warehouse),
        "  Next sync" if mark.whole else "  Next incremental sync",
        _entry("Will start from", _next(mark)),
        _entry("Manual watermark", "yes, set by hand" if mark.manual else "no"),
    ]
    if mark.last_error:
        when = clock(mark.last_error_time)
        lines += [f"  Last error{f' ({when})' if when else ''}", f"    {printable(mark.last_error)}"]
    if show_files:
        lines += [
            "  Files waiting to be loaded",
            *(f"    {file}" for file in mark.pending_s3_files or ["none"]),
        ]
        lines += ["  Files loaded", *(f"    {file}" for file in mark.processed_s3_files or ["none"])]
    return lines


def _data_entries(mark: Watermark) -> list[str]:
    """How far the data goes: the cursor's time, the key, or what the table has instead."""
    if mark.whole and mark.log_place is not None:
        return [
            _entry("Mode", "full: a sync reads the whole table after a change"),
            _entry("Binary log", f"followed up to {position(mark)}"),
        ]
    if mark.whole:
        return [_entry("Mode", "full: every sync reads the whole table")]
    if mark.log_place is not None:
        return [_entry("Binary log", f"followed up to {position(mark)}")]
    at, ids = data_time(mark.last_mysql_data_timestamp), ", ".join(map(str, mark.last_mysql_data_id))
    nothing = "none: the table had no rows" if mark.no_rows else "none yet"
    lines = [_entry("Last data timestamp", at or nothing)] if at or not ids else []
    return [*lines, _entry("Last data id", ids)] if ids else lines


def _clause(kind: Any) -> str:
    """Which changes at the source never reach the target."""
    from floodmark.model.notes import Note, clause  # imports too much for `--help`

    return clause(Note(kind))


def _load_lines(mark: Watermark, paint: bool, warehouse: str) -> list[str]:
    as_of = clock(mark.redshift_status_as_of)
    known = mark.warehouse_answered or as_of is not None
    loaded = mark.redshift_rows_loaded if known else None
    status = (
        "nothing to load"
        if known and _nothing_to_load(mark)
        else _status(mark.redshift_status if known else None, paint)
    )
    if not mark.warehouse_answered:
        status += f" (the warehouse did not answer{f'; as of {as_of}' if as_of else ''})"
    never = UNKNOWN if loaded is None else "never"
    return [
        f"  S3 → {warehouse}",
        _entry("Status", status),
        _entry("Rows loaded", _rows(loaded, mark.redshift_rows_reloaded)),
        _entry("Last load time", clock(mark.last_redshift_load_time) or never),
        _entry("Files waiting", _waiting(mark) if known else UNKNOWN),
    ]


def activity_lines(mark: Watermark) -> list[str]:
    """What is happening to the table, if anything is."""
    lines = ["Retired: `sync --all` skips it; `sync -t` brings it back"] if mark.retired else []
    if (at_work := mark.activity) is None:
        return lines
    who = f"run {at_work.run} on host {at_work.host} (pid {at_work.pid})"
    since = clock(at_work.since)
    if at_work.state == "running":
        rows = f", {counted(at_work.rows, 'row')} committed" if at_work.rows else ""
        lines.append(f"Running: {who}{f' since {since}' if since else ''}, {at_work.stage}{rows}")
    elif at_work.state == "interrupted":
        began = f" at {since}" if since else ""
        lines.append(f"Interrupted: {who} did not finish what it began{began}; run sync again")
    return lines


def next_start(mark: Watermark) -> str:
    """Where a table without a position begins, and which setting decides that."""
    at, by = data_time(mark.next_start), mark.next_start_by
    return f"{at} ({by})" if at and by else at or "the first row"


def _next(mark: Watermark) -> str:
    if mark.whole:
        when = "every sync reads the whole table" if mark.log_place is None else "after a change"
        return f"the first row: {when}"
    return mark.log_place or (position(mark) or next_start(mark)) + (" (set by hand)" if mark.manual else "")


def set_lines(mark: Watermark) -> list[str]:
    """What a table's `set` did, for people."""
    by_hand = f"the next sync starts after {position(mark)}, set by hand"
    return [f"{mark.table_name}: {'; '.join(mark.notes) or by_hand}", f"To undo: {mark.undo}"]


def reset_lines(mark: Watermark, stages: str, load_only: bool = False) -> list[str]:
    """What a reset did, for people."""
    then = f"the next sync starts from {position(mark) or next_start(mark)}"
    if load_only:
        then = f"the next sync loads {counted(mark.files_to_load or 0, 'file')} again"
        if mark.files_to_load_by_hand is not None:
            by_hand = counted(mark.files_to_load_by_hand, "file")
            then += f"; `sync --redshift-only` loads {by_hand}, because of the manual watermark"
    lines = [f"{mark.table_name}: {stages} reset; {then}"]
    lines += [f"  {note}" for note in mark.notes]
    return [*lines, f"To undo: {mark.undo}"]


def accept_lines(mark: Watermark) -> list[str]:
    """What `accept` did, for people."""
    if not mark.accepted:
        return reset_lines(mark, "the source is accepted; both stages are")
    said = f"{mark.table_name}: accepted, and followed by the next sync: {'; '.join(mark.accepted)}"
    return [said, *(f"  {note}" for note in mark.notes)]


def move_lines(document: MoveResult) -> list[str]:
    """Where the pipeline continues, and what the next sync loads there."""
    if document.from_ == document.to:
        return [f"The pipeline already loads into {document.to}."]
    files, rows = sum(t.files for t in document.tables), sum(t.rows for t in document.tables)
    lines = [f"The pipeline now loads into {document.to} (previously {document.from_})."]
    lines.append(f"The next sync loads {counted(files, 'file')}, {counted(rows, 'row')}")
    for found in document.tables:
        if found.files_gone:
            gone = f"{counted(found.files_gone, 'file')} of {found.table} can't be loaded: removed by a clean"
            lines.append(f"  {gone}; to read the table again: floodmark watermark reset -t {found.table}")
    return [*lines, f"To undo: {document.undo}"]


def system_lines(mark: SystemWatermark, start: str | None) -> list[str]:
    """The system watermark for people."""
    at = mark.timestamp
    if at:
        return [f"System watermark: {at}", "  Tables without a position start after it."]
    return ["There is no system watermark.", f"  Tables without a position start {_begin(start)}."]


def cleared_lines(mark: SystemWatermark, start: str | None) -> list[str]:
    """What clearing the system watermark did."""
    if not mark.undo:
        return system_lines(mark, start)
    return [
        f"System watermark: removed; tables without a position start {_begin(start)}",
        f"To undo: {mark.undo}",
    ]


def _begin(start: str | None) -> str:
    return f"after {start} (`start` in the configuration)" if start else "at their first row"


def list_lines(
    marks: Sequence[Watermark],
    paint: bool = False,
    warehouse: str = "Redshift",
    older: Sequence[OlderWatermark] = (),
    width: int | None = None,
) -> list[str]:
    """`watermark list` for people: one table for all, then watermarks that wait to be taken over.

    On a narrow terminal positions lose their ids, then columns go, and at last each table has lines of its own.
    """
    waiting = _older_lines(older, width)
    if not marks:
        none = "No table has a watermark yet; `floodmark sync -t schema.table` creates the first."
        return [none, *waiting]
    loads = warehouse.upper()
    head = ("TABLE", "MYSQL", "ROWS", "DATA UP TO", "STRATEGY", loads, "ROWS", "WAITING", "LAG", "NOW")
    columns = slice(-1 if all(_now(mark) == "idle" for mark in marks) else None)
    whole, brief = (
        [head[columns], *(_list_row(mark, ids, paint)[columns] for mark in marks)] for ids in (True, False)
    )
    numbers = (2, 6, 7, 8)
    lines = (
        fit(whole, width, numbers, drop=(4,))
        or fit(brief, width, numbers, drop=(4, 6, 2, 7))
        or [line for mark in marks for line in _list_card(mark, warehouse, width or 80)]
    )
    lines += _health_lines(marks, width)
    if any(mark.activity and mark.activity.state == "interrupted" for mark in marks):
        lines += indent("", "interrupted: a run did not finish what it began; run sync again", width)
    if any(mark.manual for mark in marks):
        lines += indent("", "* set by hand: the next sync starts there", width)
    if not all(mark.warehouse_answered for mark in marks):
        lines += indent("", "? the warehouse did not answer; shown as last known", width)
    return [*lines, *waiting]


def _health_lines(marks: Sequence[Watermark], width: int | None) -> list[str]:
    """The tables whose health is not ok by its word, the worst first."""
    from floodmark.status.health import WORDS  # imports too much for `--help`

    by_word = {word: [mark.table_name for mark in marks if mark.health == word] for word in WORDS[:-1]}
    return [
        line
        for word, names in by_word.items()
        if names
        for line in indent(f"{word}: ", list_names(names, 10), width)
    ]


def _older_lines(older: Sequence[OlderWatermark], width: int | None) -> list[str]:
    """Watermarks of the older tool whose tables have none of ours."""
    if not older:
        return []
    head = ("TABLE", "DATA UP TO", "WATERMARK")
    rows = [head, *((o.table_name, data_time(o.timestamp) or "none", o.uri) for o in older)]
    title = "Watermarks of the older tool; the first sync of each table takes over:"
    lines = fit(rows, None if width is None else width - 2)
    if lines is None:
        lines = [line for row in rows[1:] for line in card(row[0], row[1:], (width or 80) - 2)]
    return [*indent("", title, width), *(f"  {line}" for line in lines)]


def _list_card(mark: Watermark, warehouse: str, width: int) -> list[str]:
    """A table on a narrow terminal."""
    _, mysql, rows, upto, _, load, loaded, waiting, behind, now = _list_row(mark)
    late = "" if waiting == "0" else f", {waiting} waiting"
    timed = position(mark) is not None and not mark.whole
    said = [
        f"MySQL: {mysql}, {rows} rows",
        f"{warehouse}: nothing to load" if load == "-" else f"{warehouse}: {load}, {loaded} rows{late}",
        f"up to {upto}" if timed else upto,
        *([] if behind == "-" else [f"lag {behind}"]),
    ]
    return card(mark.table_name, [*said, *([now] if now != "idle" else [])], width)


def _list_row(mark: Watermark, ids: bool = True, paint: bool = False) -> tuple[str, ...]:
    mysql, load = _status(mark.mysql_status, paint), mark.redshift_status
    loading = colour(
        (load or UNKNOWN) + "?" * (not mark.warehouse_answered), _COLOURS.get(load or "") if paint else None
    )
    return (
        mark.table_name, mysql,
        _number(mark.mysql_rows_extracted), _up_to(mark, ids) + "*" * mark.manual, _strategy(mark, "-"),
        "-" if _nothing_to_load(mark) else loading, _number(mark.redshift_rows_loaded), _waiting(mark),
        "-" if mark.whole or mark.no_rows else lag(mark), _now(mark),
    )  # fmt: skip


def _up_to(mark: Watermark, ids: bool = True) -> str:
    """How far the data goes; without `ids`, only the time where there is one."""
    if mark.whole:
        read = clock(mark.last_mysql_extraction_time)
        return f"snapshot of {read}" if read and ids else read or "no snapshot yet"
    at = data_time(mark.last_mysql_data_timestamp)
    if at and not ids:
        return at.partition(".")[0]
    return position(mark) or ("no rows" if mark.no_rows else "none yet")


def _nothing_to_load(mark: Watermark) -> bool:
    """Whether the load only waits for the first row: people don't call that pending."""
    return (
        mark.redshift_status == "pending" and mark.no_rows and not mark.pending_s3_files and not mark.manual
    )


def _strategy(mark: Watermark, none: str = "none yet") -> str:
    return str(mark.backup_strategy or none)


def _now(mark: Watermark) -> str:
    state = mark.activity.state if mark.activity else "idle"
    return "retired" if mark.retired and state == "idle" else state


def _entry(label: str, value: str) -> str:
    return f"    {label:<24}{value}"


def _waiting(mark: Watermark) -> str:
    return count(len(mark.pending_s3_files)) + " or more" * bool(mark.pending_s3_files_truncated)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else count(value)


def _rows(rows: int | None, again: int | None) -> str:
    """`1,003`, or `1,003 rows, and 70 read again`."""
    if rows is None or not again:
        return _number(rows)
    return f"{counted(rows, 'row')}, and {count(again)} read again"


def _status(status: str | None, paint: bool) -> str:
    return colour(status or UNKNOWN, _COLOURS.get(status or "") if paint else None)
