"""`watermark get`, `list`, `set`, `reset` and `clear` for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from floodmark.cli.output.document import UNKNOWN, card, fitted, indented, lag, named, position
from floodmark.cli.output.emit import printable
from floodmark.model.text import clock, count, counted, data_time
from floodmark.model.warehouse import WAREHOUSES

if TYPE_CHECKING:
    from floodmark.model.results import OlderWatermark, SystemWatermark, Watermark

_COLOURS = {"success": "32", "pending": "33", "failed": "31"}


def watermark_lines(
    mark: Watermark, show_files: bool, paint: bool = False, warehouse: str = "redshift"
) -> list[str]:
    """`watermark get -t T` for people; `warehouse` is the configured kind."""
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
    if mark.whole:
        return [_entry("Mode", "full: every sync reads the whole table")]
    at, ids = data_time(mark.last_mysql_data_timestamp), ", ".join(map(str, mark.last_mysql_data_id))
    nothing = "none: the table had no rows" if mark.no_rows else "none yet"
    lines = [_entry("Last data timestamp", at or nothing)] if at or not ids else []
    return [*lines, _entry("Last data id", ids)] if ids else lines


def _clause(kind: Any) -> str:
    """Which changes at the source never reach the target."""
    from floodmark.model.note_words import clause  # imports too much for `--help`
    from floodmark.model.notes import Note

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
        f"  S3 → {WAREHOUSES[warehouse].can.label}",
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
        return "the first row: every sync reads the whole table"
    return (position(mark) or next_start(mark)) + (" (set by hand)" if mark.manual else "")


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
    warehouse: str = "redshift",
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
    loads = WAREHOUSES[warehouse].can.label.upper()
    head = ("TABLE", "MYSQL", "ROWS", "DATA UP TO", "STRATEGY", loads, "ROWS", "WAITING", "LAG", "NOW")
    idle = all(_now(mark) == "idle" for mark in marks)
    whole, brief = (
        [row[:-1] if idle else row for row in (head, *(_list_row(mark, ids) for mark in marks))]
        for ids in (True, False)
    )

    def colour(row: int, column: int, cell: str) -> str:
        if not paint or not row or column not in (1, 5) or cell.startswith("-"):
            return cell
        mark = marks[row - 1]
        return _painted(cell, mark.mysql_status if column == 1 else mark.redshift_status)

    numbers = (2, 6, 7, 8)
    lines = (
        fitted(whole, width, numbers, drop=(4,), paint=colour)
        or fitted(brief, width, numbers, drop=(4, 6, 2, 7), paint=colour)
        or [line for mark in marks for line in _list_card(mark, warehouse, width or 80)]
    )
    lines += _health_lines(marks, width)
    if any(mark.activity and mark.activity.state == "interrupted" for mark in marks):
        lines += indented("", "interrupted: a run did not finish what it began; run sync again", width)
    if any(mark.manual for mark in marks):
        lines += indented("", "* set by hand: the next sync starts there", width)
    if not all(mark.warehouse_answered for mark in marks):
        lines += indented("", "? the warehouse did not answer; shown as last known", width)
    return [*lines, *waiting]


def _health_lines(marks: Sequence[Watermark], width: int | None) -> list[str]:
    """The tables whose health is not ok by its word, the worst first."""
    from floodmark.status.health import WORDS  # imports too much for `--help`

    by_word = {word: [mark.table_name for mark in marks if mark.health == word] for word in WORDS[:-1]}
    return [
        line
        for word, names in by_word.items()
        if names
        for line in indented(f"{word}: ", named(names, 10), width)
    ]


def _older_lines(older: Sequence[OlderWatermark], width: int | None) -> list[str]:
    """Watermarks of the older tool whose tables have none of ours."""
    if not older:
        return []
    head = ("TABLE", "DATA UP TO", "WATERMARK")
    rows = [head, *((o.table_name, data_time(o.timestamp) or "none", o.uri) for o in older)]
    title = "Watermarks of the older tool; the first sync of each table takes over:"
    lines = fitted(rows, None if width is None else width - 2)
    if lines is None:
        lines = [line for row in rows[1:] for line in card(row[0], row[1:], (width or 80) - 2)]
    return [*indented("", title, width), *(f"  {line}" for line in lines)]


def _list_card(mark: Watermark, warehouse: str, width: int) -> list[str]:
    """A table on a narrow terminal."""
    _, mysql, rows, upto, _, load, loaded, waiting, behind, now = _list_row(mark)
    loads, late = WAREHOUSES[warehouse].can.label, "" if waiting == "0" else f", {waiting} waiting"
    timed = position(mark) is not None and not mark.whole
    said = [
        f"MySQL: {mysql}, {rows} rows",
        f"{loads}: nothing to load" if load == "-" else f"{loads}: {load}, {loaded} rows{late}",
        f"up to {upto}" if timed else upto,
        *([] if behind == "-" else [f"lag {behind}"]),
    ]
    return card(mark.table_name, [*said, *([now] if now != "idle" else [])], width)


def _list_row(mark: Watermark, ids: bool = True) -> tuple[str, ...]:
    load = (mark.redshift_status or UNKNOWN) + "?" * (not mark.warehouse_answered)
    return (
        mark.table_name, mark.mysql_status or UNKNOWN,
        _number(mark.mysql_rows_extracted), _up_to(mark, ids) + "*" * mark.manual, _strategy(mark, "-"),
        "-" if _nothing_to_load(mark) else load, _number(mark.redshift_rows_loaded), _waiting(mark),
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
    text = status or UNKNOWN
    return _painted(text, status) if paint else text


def _painted(text: str, status: str | None) -> str:
    """A text in the colour of a status."""
    colour = _COLOURS.get(status or "")
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
