"""The commands before the first sync: `init` writes a configuration, `doctor` checks it, `pack` builds an archive."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import Command, Settings, many_tables, pass_settings
from floodmark.cli.output import emit as results
from floodmark.model.errors import ConfigError
from floodmark.model.secrets import of_url

if TYPE_CHECKING:
    from floodmark.config.load import Config

_LIVE = (
    "make redshift-live 'URL=redshift://loader:${REDSHIFT_PASSWORD}@host:5439/dev' "
    "STORE=s3://bucket/prefix ROLE=arn:aws:iam::123456789012:role/loader"
)
_LIVE_DOES = (
    "The command below, in a checkout or the unpacked source archive, tests every assumption about Redshift on your "
    "cluster, in schemas and below a prefix of its own; it removes both and writes a report (docs/redshift-live.md)."
)


@click.command(cls=Command)
@many_tables("Only this table; repeatable. Default: those of the configuration, or all.")
@click.option(
    "--spark",
    "start_spark",
    is_flag=True,
    help="Also start Spark and check its executors' Python packages; may take minutes on a cluster.",
)
@click.option(
    "--redshift-live",
    "live",
    is_flag=True,
    help="Say how to test a real Redshift; nothing is checked.",
)
@pass_settings
def doctor(settings: Settings, tables: tuple[str, ...], start_spark: bool, live: bool) -> int:
    """Check everything a sync needs, and say what to fix.

    The configuration; names, ports, tunnels and TLS; MySQL's privileges, clock, limits and role; each table's
    key, cursor and index, and what would refuse its next sync; permissions and conditional writes in the store;
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
        return settings.result({"command": _LIVE, "does": _LIVE_DOES}, lambda: [_LIVE_DOES, _LIVE])
    from floodmark.cli.output.doctor import check_lines, summary_lines
    from floodmark.setup.doctor import Check, examination, examine, keep

    began = time.monotonic()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    paint = results.coloured(sys.stdout)
    found: list[Check] = []
    configs: list[Config] = []

    def learn(config: Config) -> None:
        configs.append(config)
        settings.scrub.learn(config)

    for checks in examine(settings.config, tables, start_spark, learn):
        found += checks
        if not settings.json:
            lines = check_lines(checks, min(width, 120) if width else None, paint)
            settings.say(lines[0 if len(found) > len(checks) else 1 :])
    said = examination(found, began)
    if configs:
        keep(configs[0], results.scrubbed(said, settings.scrub), tables)
    return settings.result(said, lambda: summary_lines(said), 0 if said.ok else ConfigError.code)


@click.command(cls=Command)
@click.option(
    "--source",
    metavar="URL",
    help="mysql://user:password@host:3306/database; the database is optional. The password is not stored.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write. Default: --config, then $FLOODMARK_CONFIG, then ./floodmark.yaml.",
)
@click.option("--offline", is_flag=True, help="Don't connect to the source: the file then lists no tables.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@pass_settings
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
    return settings.result(made.as_json(), made.lines, free_text=True)


@click.command(cls=Command)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("floodmark.tar.gz"),
    metavar="FILE",
    help="The archive to write: .tar.gz or .zip. Default: floodmark.tar.gz.",
)
@click.option(
    "--code-only",
    is_flag=True,
    help="Only Floodmark's own Python code, for --py-files, where the machines have its packages.",
)
@pass_settings
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
    return settings.result(made.as_json(), made.lines)


COMMANDS = (init, doctor, pack)
