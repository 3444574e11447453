"""The commands around the first sync: `init` writes a configuration, `doctor` checks it, `pack` builds an archive, `demo` shows it all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli import options
from floodmark.cli.layout import colour, indent
from floodmark.cli.monitoring import needs_extra
from floodmark.cli.options import Settings
from floodmark.cli.printing import emit_json, has_colour, scrub_document, width
from floodmark.model.errors import ConfigError
from floodmark.model.secrets import of_url
from floodmark.model.text import counted

if TYPE_CHECKING:
    from floodmark.config.load import Config
    from floodmark.setup.doctor import Check, Examination

_COLOURS = {"ok": "32", "warning": "33", "failure": "31", "skipped": "2"}
_NAME = 12
_LIVE = (
    "make redshift-live 'URL=redshift://loader:${REDSHIFT_PASSWORD}@host:5439/dev' "
    "STORE=s3://bucket/prefix ROLE=arn:aws:iam::123456789012:role/loader"
)
_LIVE_DOES = (
    "The command below, in a checkout or the unpacked source archive, tests every assumption about Redshift on your "
    "cluster, in schemas and below a prefix of its own; it removes both and writes a report (docs/redshift-live.md)."
)


@options.command()
@options.many_tables("Only this table; repeatable. Default: those of the configuration, or all.")
@click.option(
    "--spark", "start_spark", is_flag=True,
    help="Also start Spark and check its executors' Python packages; may take minutes on a cluster.",
)  # fmt: skip
@options.flag("--redshift-live", "Say how to test a real Redshift; nothing is checked.", "live")
def doctor(settings: Settings, tables: tuple[str, ...], start_spark: bool, live: bool) -> int:
    """Check everything a sync needs, and say what to fix.

    The configuration; names, ports, tunnels and TLS; MySQL's privileges, clock, limits, role and binary log; each
    table's key, cursor and index, and what would refuse its next sync; permissions and conditional writes in the store;
    permissions in the warehouse; Java, Spark, memory, packages. Changes nothing, except for a probe object in the store, which it removes, and its
    result, which it leaves there for the dashboard (status/doctor.json) if the store is in use. Takes seconds, at most 15 if nothing answers. Exit code 2 if a check fails; warnings alone exit 0.

    --redshift-live does none of this: it prints the command that tests, on a real Redshift, every assumption
    Floodmark makes. The tests are in the source archive, not in the wheel (docs/redshift-live.md).

    \b
    Examples:
      floodmark doctor
      floodmark doctor -t shop.orders
      floodmark doctor --spark --json
      floodmark doctor --redshift-live
    """
    if live:
        if tables or start_spark:
            raise click.UsageError("--redshift-live can't be combined with -t or --spark")
        return settings.result({"command": _LIVE, "does": _LIVE_DOES}, lambda _: [_LIVE_DOES, _LIVE])
    from floodmark.setup.doctor import examination, examine, keep

    began = time.monotonic()
    found: list[Check] = []
    configs: list[Config] = []

    def learn(config: Config) -> None:
        configs.append(config)
        settings.scrub.learn(config)

    for checks in examine(settings.config, tables, start_spark, learn):
        found += checks
        if not settings.json:
            lines = check_lines(checks, min(wide, 120) if (wide := width()) else None, has_colour())
            settings.say(lines[0 if len(found) > len(checks) else 1 :])
    said = examination(found, began)
    if configs:
        keep(configs[0], scrub_document(said, settings.scrub), tables)
    return settings.result(said, summary_lines, 0 if said.ok else ConfigError.code)


@options.command()
@click.option(
    "--source",
    metavar="URL",
    help="mysql://user:password@host:3306/database; the database is optional. The password is not stored.",
)
@options.path_option(
    "--output", help="The file to write. Default: --config, then $FLOODMARK_CONFIG, then ./floodmark.yaml."
)
@options.flag("--offline", "Don't connect to the source: the file then lists no tables.")
@options.flag("--force", "Overwrite an existing file.")
def init(settings: Settings, source: str | None, output: Path | None, offline: bool, force: bool) -> int:
    """Write a commented floodmark.yaml, with the source's tables.

    Lists each table with how it will be read (key, cursor, mode, rows), what is not followed there, and any
    concerns. If the source can't be read (host, password, database), nothing is written and the exit code is 2,
    unless with --offline. The password is not stored: the file says ${MYSQL_PASSWORD}; export it before the next
    command. Never prompts, and changes nothing else.

    \b
    Examples:
      floodmark init --source mysql://reader:secret@db.internal:3306/shop
      floodmark init --source 'mysql://reader:${MYSQL_PASSWORD}@db.internal/shop'
      floodmark init --output other.yaml
    """
    from floodmark.config import load as config
    from floodmark.setup.init import initial

    # From here on the password is masked, even one that makes the URL unreadable.
    settings.scrub.add([of_url(source or "")])
    made = initial(config.place(output or settings.config), source, force, offline)
    return settings.result(made.as_json(), lambda _: made.lines(), free_text=True)


@options.command()
@options.path_option(
    "-o", "--output", default=Path("floodmark.tar.gz"),
    help="The archive to write: .tar.gz or .zip. Default: floodmark.tar.gz.",
)  # fmt: skip
@options.flag(
    "--code-only", "Only Floodmark's own Python code, for --py-files, where the machines have its packages."
)
def pack(settings: Settings, output: Path, code_only: bool) -> int:
    """Build the archive that a Spark cluster's machines need.

    It holds this Floodmark with its packages, including the compiled row reader, and a script that runs the
    machine's own Python with them, but not pyspark, which the cluster has. Also writes floodmark_job.py next to it,
    for spark-submit. The archive works only on machines of the same kind with the same version of Python, and says
    so on any other (docs/cluster.md).

    \b
    Examples:
      floodmark pack -o /srv/floodmark.tar.gz
      floodmark pack --code-only -o floodmark.zip
    """
    from floodmark.setup.pack import pack as make

    made = make(output, code_only)
    return settings.result(made.as_json(), lambda _: made.lines())


@options.command()
@options.number("--rows", "Rows to start with.", default=1_000_000)
@options.flag("--keep", "Keep the files and print where they are.")
@click.option(
    "--warehouse", type=click.Choice(["duckdb", "redshift"]), default="duckdb", show_default=True,
    help="The warehouse; redshift is a stand-in that needs PostgreSQL 15.",
)  # fmt: skip
@click.option(
    "--source", type=click.Choice(["mysql", "mariadb"]),
    help="The source. Default: mysql if `make setup` has fetched it, else mariadb.",
)  # fmt: skip
@options.flag("--serve", "Then serve a dashboard of the demo's data until Ctrl-C.")
@options.number("--port", "With --serve: its port.", least=0, most=65535, default=8808, metavar="P")
def demo(
    settings: Settings, rows: int, keep: bool, warehouse: str, source: str | None, serve: bool, port: int
) -> int:
    """See it work: a throw-away MySQL, S3 and warehouse.

    A first sync, changes, an incremental sync, a crash mid-sync, the run that completes it, and a comparison
    of source and warehouse that fails if a single row differs. Takes about a minute and cleans up after itself.

    \b
    Examples:
      floodmark demo
      floodmark demo --rows 100000 --keep
      floodmark demo --serve
    """
    if serve:
        needs_extra()
    from floodmark.setup.demo import run_demo
    from floodmark.spark.pyspark_internals import check_installed

    check_installed()
    began = time.monotonic()
    with _stdout_elsewhere() if settings.json else nullcontext():
        code = run_demo(rows, keep, warehouse, source, port if serve else None)
    if settings.json:
        seconds = round(time.monotonic() - began, 3)
        emit_json({"ok": code == 0, "rows": rows, "seconds": seconds}, settings.scrub)
    return code


@contextmanager
def _stdout_elsewhere() -> Iterator[None]:
    """Sends the output of the demo and its processes to stderr, so that stdout has only the document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


COMMANDS = (init, doctor, pack)


# ---------------------------------------------------------------- what `doctor` found, for people


def check_lines(checks: Sequence[Check], width: int | None, paint: bool = False) -> list[str]:
    """The checks of one or more sections, each under its heading; lines are wrapped only for a terminal."""
    lines: list[str] = []
    for section, listed in groupby(checks, lambda check: check.section):
        group = list(listed)
        lines += ["", section.capitalize()]
        if section == "tables":
            for table, about in groupby(group, lambda check: check.table):
                lines += _table(table, list(about), width, paint)
            continue
        for reason, same in groupby(group, lambda check: check.detail if check.status == "skipped" else None):
            if reason is None:
                for check in same:
                    lines += _line(check.status, check.name, check.detail, check.hint, width, paint)
            else:
                # One line for all checks that were skipped for the same reason.
                names = ", ".join(check.name for check in same)
                said = reason if names == section else f"{names}: {reason}"
                lines += _line("skipped", "", said, None, width, paint)
    return lines


def _table(table: str | None, checks: list[Check], width: int | None, paint: bool) -> list[str]:
    worst = next((s for s in ("failure", "warning") if any(c.status == s for c in checks)), "ok")
    lines: list[str] = []
    for number, check in enumerate(checks):
        if table is None:
            lines += _line(check.status, "", check.detail, check.hint, width, paint)
        elif number:
            lines += _line("", "", check.detail, check.hint, width, paint)
        else:
            lines += _line(worst, "", f"{table}: {check.detail}", check.hint, width, paint)
    return lines


def _line(status: str, name: str, detail: str, hint: str | None, width: int | None, paint: bool) -> list[str]:
    mark = colour(f"{status:<8}", _COLOURS.get(status) if paint else None)
    column = f"{name:<{_NAME}}  " if name else ""
    blank = " " * (11 + len(column))
    first, *others = indent(blank, detail, width)
    lines = [f"  {mark} {column}{first.removeprefix(blank)}", *others]
    return lines + (indent(f"{blank}→ ", hint, width) if hint else [])


def summary_lines(document: Examination) -> list[str]:
    """The result, and what to do next."""
    number = document.counts
    said = [f"{number['ok']} ok", *(counted(number[kind], kind) for kind in ("warning", "failure"))]
    said += [f"{number['skipped']} skipped"] if number["skipped"] else []
    then = "ready: floodmark sync --all" if document.ok else "fix the failures, then run doctor again"
    return ["", f"{', '.join(said)}; {then}"]
