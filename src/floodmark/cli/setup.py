"""The commands before the first sync: `init` writes a configuration, `doctor` looks for what would fail."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from floodmark import output as results
from floodmark.cli.options import Command, Settings, many_tables, pass_settings
from floodmark.errors import ConfigError


@click.command(cls=Command)
@many_tables("Only this table; may be given several times. Default: those of the configuration, or all.")
@click.option(
    "--spark",
    "start_spark",
    is_flag=True,
    help="Start Spark and ask its executors for their Python packages. Takes longer, on a cluster up to minutes.",
)
@click.option(
    "--redshift-live",
    "live",
    is_flag=True,
    help="Ask the configured Redshift everything that Floodmark assumes of it, in a schema of its own. Minutes.",
)
@click.option(
    "--rows",
    type=click.IntRange(100, 100_000_000),
    metavar="N",
    help="With --redshift-live: rows of the timed load. Default: 10,000,000.",
)
@click.option(
    "--minutes",
    type=click.IntRange(1, 240),
    metavar="N",
    help="With --redshift-live: begin no further probe after N minutes. Default: 60.",
)
@click.option(
    "--only",
    metavar="GROUP",
    multiple=True,
    help="With --redshift-live: only this group of probes; may be given several times.",
)
@click.option(
    "--second-url",
    metavar="URL",
    help="With --redshift-live: a second user of the same database, as redshift://user:${PASSWORD}@host:5439/dev.",
)
@pass_settings
def doctor(
    settings: Settings,
    tables: tuple[str, ...],
    start_spark: bool,
    live: bool,
    rows: int | None,
    minutes: int | None,
    only: tuple[str, ...],
    second_url: str | None,
) -> int:
    """Look for what would make a sync fail, and say what to do.

    The configuration; names, ports, tunnels and TLS; MySQL's privileges, clock, limits and role; each table's
    key, cursor and index; the store's rights and its conditional writes; the warehouse's rights; Java, Spark,
    memory, packages. Changes nothing: one probe object in the store is removed again. Takes seconds, and at most
    15 when nothing answers. Exit code 2 when there is a failure; warnings alone are 0.

    --redshift-live does none of this: it asks a real Redshift everything that Floodmark assumes of it, in a schema and
    below a prefix of its own, which are removed afterwards. The report can be attached to an issue: it has no
    passwords, keys, hosts, accounts, buckets or users. Exit code 7 when an answer differs (docs/redshift-live.md).

    \b
    Examples:
      floodmark doctor
      floodmark doctor -t shop.orders
      floodmark doctor --spark --json
      floodmark doctor --redshift-live --json > report.json
    """
    if live:
        if tables or start_spark:
            raise click.UsageError("--redshift-live goes without -t and --spark")
        return _live(settings, rows, minutes, only, second_url)
    if rows is not None or minutes is not None or only or second_url is not None:
        raise click.UsageError("--rows, --minutes, --only and --second-url go with --redshift-live")
    from floodmark.doctor import Check, document, examine
    from floodmark.output_doctor import check_lines, summary_lines

    began = time.monotonic()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    paint = results.coloured(sys.stdout)
    found: list[Check] = []
    for checks in examine(settings.config, tables, start_spark, settings.scrub.learn):
        found += checks
        if not settings.json:
            lines = check_lines(
                [check.as_json() for check in checks], min(width, 120) if width else None, paint
            )
            results.emit_lines(
                [settings.scrub(line) for line in lines[0 if len(found) > len(checks) else 1 :]]
            )
    said = document(found, began)
    settings.result(said, lambda: summary_lines(said))
    return 0 if said["ok"] else ConfigError.code


def _live(
    settings: Settings, rows: int | None, minutes: int | None, only: tuple[str, ...], second_url: str | None
) -> int:
    """`doctor --redshift-live`: the probes, each told on stderr, then the report."""
    # Whatever happens from here on, the password is masked; also one that makes the URL unreadable.
    settings.scrub.add([(second_url or "").partition("://")[2].rpartition("@")[0].partition(":")[2]])
    config = settings.load()
    from floodmark.config import second_user
    from floodmark.doctor.live import GROUPS, PROBES, Scale, examine_live
    from floodmark.logs import log
    from floodmark.output_live import live_lines
    from floodmark.progress import to_stderr

    if unknown := set(only) - set(GROUPS):
        raise click.UsageError(f"no such group: {', '.join(sorted(unknown))}; there are: {', '.join(GROUPS)}")
    probes = [probe for probe in PROBES if not only or probe.group in only]
    second = None if second_url is None else second_user(config.warehouse, second_url)
    settings.scrub.learn(second)
    given = {"rows": rows, "seconds": None if minutes is None else minutes * 60.0}
    scale = Scale(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def say(line: str) -> None:
        log.info("%s", line, extra={"said": True})
        if not settings.quiet and not settings.json_logs:
            to_stderr(settings.scrub(line))

    report = examine_live(config, scale, say, second=second, probes=probes)
    width = min(shutil.get_terminal_size().columns, 140) if sys.stdout.isatty() else None
    said = report.as_json()
    settings.result(
        said, lambda: [settings.scrub(line) for line in live_lines(said, width, results.coloured(sys.stdout))]
    )
    return report.code


@click.command(cls=Command)
@click.option(
    "--source",
    metavar="URL",
    help="mysql://user:password@host:3306/database; the database may be left out. The password is not written down.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write. Default: --config, then $FLOODMARK_CONFIG, then ./floodmark.yaml.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@pass_settings
def init(settings: Settings, source: str | None, output: Path | None, force: bool) -> int:
    """Write a commented floodmark.yaml, with the source's tables.

    Each table is listed with how it will be read: key, cursor, mode, rows, and what is unfortunate about it. If the
    source does not answer, the file is written without tables. The password stays out of it: the file says
    ${MYSQL_PASSWORD}, to be exported before the next command. Nothing is asked, nothing else is changed.

    \b
    Examples:
      floodmark init --source mysql://reader:secret@db.internal:3306/shop
      floodmark init --source 'mysql://reader:${MYSQL_PASSWORD}@db.internal/shop'
      floodmark init --output other.yaml
    """
    from floodmark import config
    from floodmark.initial import initial

    # Whatever happens from here on, the password is masked; also one that makes the URL unreadable.
    settings.scrub.add([(source or "").partition("://")[2].rpartition("@")[0].partition(":")[2]])
    made = initial(config.place(output or settings.config), source, force)
    document = made.as_json()
    settings.result(document, lambda: [settings.scrub(line) for line in made.lines()])
    return 0


COMMANDS = (init, doctor)
