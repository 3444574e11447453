"""The command that moves rows, `sync`: its options, one run or a resident one, and what they print.

Several tables get one line each, and below them what is worth knowing: each note once, with the tables that it concerns.
A single table, or `-v`, is printed in full. If lines are too wide for the terminal, each table gets a few short ones.
A resident sync prints one line for a cycle, with `--json` one document; a failure is printed when it begins and when it is
over, not with every cycle in between.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import logs, options, printing
from floodmark.cli.layout import behind, card, colour, fit, indent, label, list_names, position
from floodmark.cli.options import Settings
from floodmark.cli.signals import KEPT, import_aside, interrupted
from floodmark.model import log_lines
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.events import Event, Noted, RunBegan, to_all
from floodmark.model.run import STRATEGIES, SyncOptions, SyncReport, TableReport
from floodmark.model.text import clock, count, counted, data_time, duration, rate, shown, size
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    from floodmark.config.load import Config
    from floodmark.model.results import Failure
    from floodmark.sync.resident import Cycle, Failing, Health

_INTERRUPTED = (130, 143)
_VALUES = re.compile(r"[0-9][0-9,.:+-]*")
# How a table ended: its symbol and its colour, where they are shown.
_SIGNS = {"ok": ("✓", "32"), "idle": ("·", ""), "bad": ("✗", "31"), "stopped": ("!", "33"), "todo": ("→", "")}


def _address(value: str) -> tuple[str, int]:
    """`127.0.0.1:9908`, `[::1]:9908` or `:9908`, which is loopback."""
    host, separator, port = value.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:9908")
    return host.strip("[]") or "127.0.0.1", int(port)


@options.command()
@options.tables_or_all(
    "The tables of the configuration, or every table of the source if it names none; not retired ones."
)
@click.option(
    "-s", "--strategy", default="auto", show_default=True,
    type=click.Choice(STRATEGIES),
    help="sequential: slice after slice, in cursor order. inter-table: several tables in parallel. "
    "intra-table: slices of one table in parallel.",
)  # fmt: skip
@options.number(
    "--limit",
    "Read at most the first N rows of each table. With --redshift-only: load whole commits, up to N rows.",
)
@options.number("--max-chunks", "Read M chunks of N rows each (of slice_rows without --limit).", metavar="M")
@options.flag("--backup-only", "Extract only (MySQL → S3); a later run loads the files.")
@options.flag("--redshift-only", "Load only (S3 → warehouse): the pending files.", "load_only", "--load-only")
@options.flag("--verify-data", "Compare the loaded rows with the source; exit code 7 if they differ.")
@options.flag("--dry-run", "Show what would be read, loaded and run in the warehouse; write nothing.")
@options.timestamp_option(
    "--since", "Read rows with cursor > TS again, up to the watermark, which does not move."
)
@options.timestamp_option("--until", "With --since: only rows with cursor <= TS.")
@options.number(
    "--max-workers",
    "Sync at most N tables in parallel (if not given, 16, and up to 64 while they wait for Spark).",
)
@options.duration_option(
    "--every", "Keep running and sync this often (30s, 5m), with Spark kept warm, until Ctrl-C or SIGTERM."
)
@click.option(
    "--listen", callback=options.parse_by(_address), metavar="HOST:PORT",
    help="With --every: serve /metrics (Prometheus) and /healthz on this address, such as 127.0.0.1:9908.",
)  # fmt: skip
@options.path_option(
    "--metrics-file",
    help="Write the metrics of all tables to FILE after the run, for node_exporter (*.prom).",
)
@options.flag("--force", "Proceed even if rows may be duplicated or removed.")
@options.flag("-v", "Print each table in full, with all its notes.", "verbose", "--verbose")
def sync(
    settings: Settings, /, tables: tuple[str, ...], all_tables: bool, every: float | None,
    listen: tuple[str, int] | None, metrics_file: Path | None, verbose: bool, **given: Any,
) -> int:  # fmt: skip
    """Copy what is new: MySQL → S3 → warehouse.

    Continues where the last run stopped, even after a crash: every committed row arrives exactly once.
    A run copies what was committed when it began.

    Timestamps are YYYY-MM-DD[ HH:MM:SS[.ffffff]], as the cursor column has them.

    \b
    Examples:
      floodmark sync -t shop.orders
      floodmark sync --all --max-workers 4
      floodmark sync -t shop.orders --backup-only
      floodmark sync -t shop.orders --redshift-only
      floodmark sync -t shop.orders --verify-data
      floodmark sync -t shop.orders --limit 10000 --max-chunks 3
      floodmark sync -t shop.orders --since 2025-08-01 --until "2025-08-02 12:00:00"
      floodmark sync --all --every 30s --listen 127.0.0.1:9908
      floodmark sync --all --metrics-file /var/lib/node_exporter/floodmark.prom
    """
    options.one_choice(tables, all_tables)
    request = SyncOptions(**given)
    if mistake := request.mistake():
        raise click.UsageError(mistake)
    once = {"--dry-run": request.dry_run, "--since": request.since, "--force": request.force}
    if every is not None and any(once.values()):
        raise click.UsageError(
            f"--every repeats a sync and can't be combined with {next(n for n in once if once[n])}"
        )
    if listen is not None and every is None:
        raise click.UsageError("--listen needs --every")
    if metrics_file is not None and not metrics_file.absolute().parent.is_dir():
        raise click.UsageError(f"--metrics-file: there is no folder {metrics_file.absolute().parent}")
    settings.left = lambda: "nothing was written" if request.dry_run else KEPT
    config = settings.load()
    if every is not None:
        _warn_of_exposed_secrets(settings, config)
        return _stay(settings, config, tables, all_tables, request, every, listen, metrics_file)
    from floodmark.sync.early import early_spark

    with early_spark(config, tables, all_tables, request, settings.run) as spark:
        import_aside("floodmark.status.run", "floodmark.sync.run")
        from floodmark.status.run import Observer
        from floodmark.sync.run import sync as run_sync

        def lines(tables: Sequence[TableReport], seconds: float, unfinished: Sequence[str] = ()) -> list[str]:
            width, paint = printing.width(), printing.has_colour()
            how = ResultStyle(request.dry_run, verbose, width, paint, progress.notes, unfinished)
            return sync_lines(settings.run, tables, seconds, how)

        # Alerts are sent while the result is printed.
        with Observer(config, metrics_file) as observer:
            with settings.progress().gathering() as progress:
                emit = to_all(progress, observer)
                try:
                    report = run_sync(config, tables, all_tables, request, emit, settings.run, spark)
                except Interrupted:
                    progress.stop()
                    done = progress.in_order()
                    # With `--json`, the error alone is the document.
                    if not (settings.json or settings.quiet) and any(
                        not one.error or one.commits for one in done
                    ):
                        settings.say(lines(done, progress.seconds, progress.unfinished()))
                    raise
            settings.totals = report.log_fields
            if settings.json or not settings.quiet or request.dry_run:
                settings.result(
                    report.as_json(), lambda _: lines(report.tables, report.seconds), free_text=True
                )
            settings.complain_of([table.error for table in report.tables])
    if report.ok:  # a failure stays one or two lines
        _warn_of_exposed_secrets(settings, config)
    return report.exit_code


def _warn_of_exposed_secrets(settings: Settings, config: Config) -> None:
    """A line each when others can read a secret of the configuration, or change it."""
    from floodmark.setup.doctor import exposed, secrets

    with settings.progress() as progress:
        for check in (*secrets(config.path), *exposed(config)):
            if check.status == "warning":
                progress(Noted("", f"warning: {check.detail}; {check.hint}"))


# ---------------------------------------------------------------- a resident sync


def _stay(
    settings: Settings, config: Config, tables: Sequence[str], all_tables: bool, request: SyncOptions,
    every: float, listen: tuple[str, int] | None, metrics_file: Path | None,
) -> int:  # fmt: skip
    """Syncs again and again until a signal ends it; returns the exit code."""
    from floodmark.status.run import Observer
    from floodmark.sync.resident import Health, keep_up

    health = Health()
    with ExitStack() as stack:
        observer = stack.enter_context(Observer(config, metrics_file))
        beat = _listen(stack, config, listen, every) if listen is not None else lambda code: None
        watch = stack.enter_context(settings.progress().brief())

        def told(cycle: Cycle) -> None:
            nonlocal health
            watch.stop()  # leave the terminal alone between cycles
            health = health.after(cycle)
            _tell(settings, cycle, health)
            beat(cycle.exit_code)

        def name_run(event: Event) -> None:
            if isinstance(event, RunBegan):
                settings.run = event.run

        emit = to_all(name_run, watch, observer)
        try:
            return keep_up(config, tables, all_tables, request, every, emit, told, settings.stopped)
        except Interrupted as error:
            code = settings.stopped() or error.code
    said = interrupted(code, KEPT)
    settings.complain(said)
    if settings.json:
        printing.emit_json(printing.failure(said), settings.scrub, indent=None)
    return code


def _listen(
    stack: ExitStack, config: Config, address: tuple[str, int], every: float
) -> Callable[[int], None]:
    """Serves /metrics and /healthz from now on; returns what to call when a cycle has ended."""
    from floodmark.status.facts import StoreFacts
    from floodmark.status.health import limit_of
    from floodmark.status.metrics import Listener, Metrics, Pulse
    from floodmark.store.store import Store

    pulse = Pulse(every)
    metrics = Metrics(StoreFacts(Store(config.store), partial(limit_of, config)))
    stack.enter_context(Listener(address, {"/metrics": metrics.answer, "/healthz": pulse.health}))
    return pulse.beat


def _tell(settings: Settings, cycle: Cycle, health: Health) -> None:
    """Prints one cycle: news about failures to stderr, rows to stdout; idle cycles not with --quiet."""

    def _log(level: int, event: str, line: str, **fields: Any) -> None:
        fields |= {"run": cycle.run, "cycle": cycle.number, "said": True}
        log_lines.tell(logs.logger, level, event, line, **fields)
        if event != "cycle_end" and not settings.json_logs:
            printing.to_stderr(shown(settings.scrub(line)))

    for error in printing.together([one.error for one in health.new]):
        line = failing_line(cycle.at, error)
        about = {"exit_code": error.code, "kind": error.kind, "hint": error.hint}
        _log(logging.ERROR, "failing", line, table=error.table, **about)
    if health.recovered:
        line = recovered_line(cycle.at, health.recovered)
        failures = max(one.cycles for one in health.recovered)
        seconds = max(_seconds(one, cycle.at) for one in health.recovered)
        _log(logging.INFO, "recovered", line, failures=failures, seconds=seconds)
    report = cycle.report or SyncReport(cycle.run, 0.0, ())
    line, seconds = shown(settings.scrub(cycle_line(cycle))), round(cycle.seconds, 3)
    totals = report.log_fields
    _log(logging.INFO, "cycle_end", line, seconds=seconds, exit_code=cycle.exit_code, **totals)
    try:
        if settings.json:
            printing.emit_json(cycle.as_json(), settings.scrub, indent=None)
        elif moved(report.tables) or (not cycle.exit_code and not settings.quiet):
            printing.emit(line)
    except FloodmarkError as unwritten:  # stdout is full or closed; the sync continues
        settings.complain(unwritten)


def failing_line(at: str, error: FloodmarkError | Failure) -> str:
    """`2025-08-14 16:45:33 UTC  failed, exit code 4: shop.orders: …`, once for each failure."""
    reason = "; ".join(line.strip() for line in printing.error_said(error))
    return f"{clock(at)}  failed, exit code {error.code}: {reason} (retrying; nothing more is printed until it recovers)"


def recovered_line(at: str, recovered: Sequence[Failing]) -> str:
    """`2025-08-14 16:51:36 UTC  recovered: shop.orders, after 12 failed cycles in 6 min 3 s`."""
    names = [one.table for one in recovered if one.table is not None]
    who = f" {names[0]}," if len(names) == 1 else f" {counted(len(names), 'table')}," if names else ""
    cycles = counted(max(one.cycles for one in recovered), "failed cycle")
    return (
        f"{clock(at)}  recovered:{who} after {cycles} in {duration(max(_seconds(r, at) for r in recovered))}"
    )


def _seconds(failing: Failing, at: str) -> float:
    return max(0.0, round((parse_moment(at) - parse_moment(failing.since)).total_seconds(), 3))


# ---------------------------------------------------------------- what a sync did, for people


@dataclass(frozen=True)
class ResultStyle:
    """How a result is shown."""

    dry_run: bool = False
    verbose: bool = False
    width: int | None = None  # of the terminal; None: as wide as it takes
    paint: bool = False  # with colours, and the symbols that say the same
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by table
    unfinished: Sequence[str] = ()  # tables that an interrupted run has not begun


def sync_lines(run: str, tables: Sequence[TableReport], seconds: float, how: ResultStyle) -> list[str]:
    """What a sync did, for people; the errors themselves go to stderr."""
    if how.verbose or len(tables) == 1:
        lines = [line for one in tables for line in _in_full(one, seconds, how)]
    else:
        lines = [*_listed(tables, how), *_statements(tables, how), *_worth_knowing(tables, how)]
        lines += [""] if lines and len(lines) > len(tables) + 1 else []
    if how.unfinished:
        lines += indent("", f"Not started: {list_names(how.unfinished)}", how.width)
    return [*lines, *indent("", _last_line(run, tables, seconds, how), how.width)]


def moved(tables: Sequence[TableReport]) -> list[TableReport]:
    """The tables for which a cycle did something."""
    return [table for table in tables if not table.idle and table.error is None]


def cycle_line(cycle: Cycle) -> str:
    """One cycle of a resident sync: `2025-08-14 16:45:33 UTC  shop.orders: 100 rows extracted, 100 loaded, 1.2 s`."""
    tables = cycle.report.tables if cycle.report else ()
    done = moved(tables)
    said = f"up to date, {counted(sum(table.idle for table in tables), 'table')}"
    if done:
        names = done[0].table if len(done) == 1 else counted(len(done), "table")
        extracted = sum(table.rows_extracted + table.rows_reread for table in done)
        loaded = sum(table.rows_loaded for table in done)
        said = f"{names}: {counted(extracted, 'row')} extracted, {count(loaded)} loaded"
    return f"{clock(cycle.at)}  {said}, {duration(cycle.seconds)}"


# ---------------------------------------------------------------- how it ended


def _last_line(run: str, tables: Sequence[TableReport], seconds: float, how: ResultStyle) -> str:
    interrupted = sum(one.exit_code in _INTERRUPTED for one in tables)
    failed, stopped = sum(not one.ok for one in tables) - interrupted, interrupted + len(how.unfinished)
    outcome = [f"{counted(failed, 'table')} failed"] if failed else []
    outcome += [f"{counted(stopped, 'table')} not finished"] if stopped else []
    if not outcome:
        outcome = ["dry run, nothing written" if how.dry_run else "done"]
    number = counted(len(tables) + len(how.unfinished), "table")
    return f"Run {run}: {number}, {', '.join(outcome)}, {duration(seconds)}"


def _state(one: TableReport, how: ResultStyle) -> tuple[str, str]:
    """In a word or two, and its symbol."""
    if one.exit_code in _INTERRUPTED:
        return "interrupted", "stopped"
    if not one.ok:
        return ("differs" if one.exit_code == 7 else "failed") + f" ({one.exit_code})", "bad"
    if how.dry_run:
        return ("nothing to do", "idle") if _nothing_planned(one) else ("to do", "todo")
    if one.rows_extracted or one.rows_reread or one.rows_loaded or one.rows_deleted:
        return "ok", "ok"
    return ("held back", "stopped") if one.held_back_by else ("up to date", "idle")


def _signed(text: str, sign: str, how: ResultStyle) -> str:
    """The text with its symbol, coloured; or plain, if that is wanted."""
    if not how.paint:
        return text
    symbol, code = _SIGNS[sign]
    return colour(f"{symbol} {text}", code)


def _nothing_planned(one: TableReport) -> bool:
    plan = one.plan
    return plan is None or not (plan.rows or (plan.pending and plan.pending.files) or plan.ddl)


# ---------------------------------------------------------------- one line for each table


def _listed(tables: Sequence[TableReport], how: ResultStyle) -> list[str]:
    head = ("Table", "Rows", "Slices", "Files", "Waiting", "State") if how.dry_run else (
        "Table", "Rows", "Files", "Time", "Watermark", "Lag", "State")  # fmt: skip
    body = [
        (*(_planned_cells(one) if how.dry_run else _cells(one)), _signed(*_state(one, how), how))
        for one in tables
    ]
    lines = fit([head, *body], how.width, {1, 2, 3, 4} if how.dry_run else {1, 2, 3})
    return lines or [line for one in tables for line in _card(one, how)]


def _cells(one: TableReport) -> tuple[str, ...]:
    mark = one.watermark
    return (
        one.table,
        _rows(one) or "–",
        count(one.files_written or one.files_loaded) if _rows(one) else "–",
        duration(one.seconds),
        (data_time(mark.last_mysql_data_timestamp) or position(mark) or "–") if mark else "–",
        behind(one.lag_after) if one.lag_after else "–",
    )


def _rows(one: TableReport) -> str:
    extracted, again = one.rows_extracted, one.rows_reread
    if extracted or again:
        return count(extracted) + (f" +{count(again)} again" if again else "")
    return count(one.rows_loaded) if one.rows_loaded else ""


def _rows_in_words(one: TableReport) -> str:
    extracted, again = one.rows_extracted, one.rows_reread
    if not again:
        return counted(extracted or one.rows_loaded, "row")
    return (
        f"{counted(extracted, 'row')}, {count(again)} again"
        if extracted
        else f"{counted(again, 'row')} again"
    )


def _planned_cells(one: TableReport) -> tuple[str, ...]:
    if (plan := one.plan) is None:
        return (one.table, "0", "0", "0", counted(0, "file"))
    waiting = counted(plan.pending.files if plan.pending else 0, "file")
    files = plan.files or 0 if plan.rows else 0
    counts = (count(number or 0) for number in (plan.rows, plan.slices, files))
    return (one.table, *counts, "?" if plan.warehouse_unknown else waiting)


def _card(one: TableReport, how: ResultStyle) -> list[str]:
    """A table on a narrow terminal."""
    state, sign = _state(one, how)
    plain = f"{_SIGNS[sign][0]} {state}" if how.paint else state
    if how.dry_run:
        told = [plain, *_planned(one)]
    else:
        lag, where = one.lag_after, position(one.watermark) if one.watermark else None
        files = counted(one.files_written or one.files_loaded, "file")
        told = [
            ", ".join([plain, *([_rows_in_words(one), files] if _rows(one) else []), duration(one.seconds)])
        ]
        told += [f"up to {where}" + (f", {behind(lag)} behind" if lag else "")] if where else []
    name, first, *others = card(one.table, told, how.width or 80)
    return [name, first.replace(plain, _signed(state, sign, how), 1), *others]


# ---------------------------------------------------------------- what is worth knowing


def _worth_knowing(tables: Sequence[TableReport], how: ResultStyle) -> list[str]:
    """Notes, files that wait and findings, each once, with the tables that they concern."""
    notes = [(text, one.table) for one in tables for text in how.notes.get(one.table, ())]
    waiting = [] if how.dry_run else [one for one in tables if _waiting(one)]
    for one in waiting:
        notes.append((f"{counted(_waiting(one), 'file')} waiting to be loaded", one.table))
    findings = [(f"{found.kind}: {found.detail}", one.table) for one in tables for found in one.findings]
    return [*_grouped("Notes", notes, how), *_grouped("Findings", findings, how)]


def _grouped(title: str, said: Sequence[tuple[str, str]], how: ResultStyle) -> list[str]:
    """Prints a text about several tables once, even if its numbers and times differ."""
    if not said:
        return []
    alike: dict[str, list[tuple[str, str]]] = {}
    for text, name in said:
        alike.setdefault(_VALUES.sub("#", text), []).append((text, name))
    lines = ["", title]
    for group in alike.values():
        texts = list(dict.fromkeys(text for text, _ in group))
        names = list(dict.fromkeys(name for _, name in group))
        if len(texts) > 1 and len(names) <= 2:
            pairs = group
        elif len(texts) == 1:
            pairs = [(texts[0], list_names(names))]
        else:
            others = list_names([name for name in names if name != group[0][1]])
            pairs = [(texts[0], f"{group[0][1]}; the same, with other numbers: {others}")]
        for text, who in pairs:
            lines += indent("  ", text, how.width) + indent("      ", who, how.width)
    return lines


def _waiting(one: TableReport) -> int:
    return len(one.watermark.pending_s3_files) if one.watermark else 0


def _statements(tables: Sequence[TableReport], how: ResultStyle) -> list[str]:
    """What a load would run first, table by table."""
    ddl = [statement for one in tables if one.plan for statement in one.plan.ddl]
    if not how.dry_run or not ddl:
        return []
    return ["", "Statements for the target", *indent("  ", ddl, how.width)]


# ---------------------------------------------------------------- one table in full


def _in_full(one: TableReport, seconds: float, how: ResultStyle) -> list[str]:
    state, sign = _state(one, how)
    strategy = f", {one.strategy}" if one.strategy else ""
    state = state.replace("(", "(exit code ")
    lines = [f"{one.table}: {_signed(state, sign, how)}{strategy}"]
    if how.dry_run:
        lines += indent("  ", _planned(one), how.width)
        texts = [("would run", statement) for statement in (one.plan.ddl if one.plan else ())]
    else:
        texts = _done(one, seconds)
    texts += [("note", note) for note in how.notes.get(one.table, ())]
    texts += [("finding", f"{finding.kind}: {finding.detail}") for finding in one.findings]
    return lines + label(texts, how.width)


def _planned(one: TableReport) -> list[str]:
    """What a dry run found to do."""
    if (plan := one.plan) is None:
        return []
    told = []
    if plan.rows:
        slices = f" in {counted(plan.slices, 'slice')}" if plan.slices else ""
        files = f", into {counted(plan.files, 'file')}" if plan.files else ""
        told.append(f"would read about {counted(plan.rows, 'row')}{slices}{files}")
    told += [f"of these, {counted(again.rows, 'row')} again ({again.kind})" for again in plan.read_again]
    if plan.pending and plan.pending.files:
        rows = counted(plan.pending.rows, "row")
        told.append(f"would load {counted(plan.pending.files, 'file')} ({rows}) written earlier")
    if plan.warehouse_unknown:
        told.append(f"the warehouse could not be reached: {' '.join(plan.warehouse_unknown.split())}")
    return told


def _done(one: TableReport, total: float) -> list[tuple[str, str]]:
    """What was done, with a label for each step."""
    extracted, reread, mark = one.rows_extracted, one.rows_reread, one.watermark
    done = []
    if extracted or reread:
        again = f", and {count(reread)} read again" if reread else ""
        amount = f"{counted(one.files_written, 'file')}, {size(one.bytes_written)}"
        speed = rate(extracted + reread, one.seconds or total)
        amount += f", {speed}" if speed else ""
        done.append(("extracted", f"{counted(extracted, 'row')}{again}, {amount}"))
    if one.rows_deleted:
        done.append(("deleted", f"{counted(one.rows_deleted, 'row')} of the target"))
    if one.rows_loaded or one.files_loaded:
        done.append(("loaded", f"{counted(one.rows_loaded, 'row')}, {counted(one.files_loaded, 'file')}"))
    if mark and mark.commit is not None:
        waiting = f", {counted(_waiting(one), 'file')} waiting" if _waiting(one) else ""
        done.append(("watermark", f"{position(mark) or 'at the start'}, commit {mark.commit}{waiting}"))
    if extracted and one.lag_after:
        was = f"{behind(one.lag_before)} → " if one.lag_before else ""
        done.append(("lag", was + behind(one.lag_after)))
    return done
