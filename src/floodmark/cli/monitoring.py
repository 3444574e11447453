"""What others watch: the dashboard (`serve`, `report`), `alerts test` and `alerts check`, and `dbt sources`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import options
from floodmark.cli.options import Settings
from floodmark.cli.printing import emit_json, to_stderr
from floodmark.model.errors import ConfigError, Interrupted, TransientError
from floodmark.model.events import Noted
from floodmark.model.text import counted, duration, size

if TYPE_CHECKING:
    from floodmark.status.alerts import Alerts

# What the extra `web` brings.
NEEDED = ("starlette", "uvicorn", "jinja2")


def needs_extra() -> None:
    """Raises ConfigError if the extra is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}", hint="pip install 'floodmark[web]'")


_ledger = click.option(
    "--ledger/--no-ledger",
    default=True,
    help="Whether to read the warehouse's ledger; without it, loads are shown as runs have published them.",
)


@options.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H", help="The address to listen on.")
@options.number("--port", "The port; 0 picks a free one.", least=0, most=65535, default=8808, metavar="P")
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="F",
    help="A file with the token that every visitor must enter; required if other machines have access.",
)  # fmt: skip
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME",
    help="A host name that a proxy uses for this machine; repeatable.",
)  # fmt: skip
@_ledger
def serve(settings: Settings, /, **given: Any) -> int:
    """Show a dashboard in the browser, until Ctrl-C.

    All tables, the worst first, with their lag and their runs; what is running now; what is in the store. It reads the
    store and the warehouse's ledger, never MySQL, and changes nothing, so it works while syncs run and when MySQL or the
    warehouse is down. Pages update themselves. Every page has its JSON under /api/; /healthz is for probes, /metrics
    for Prometheus.

    No sync waits for the ledger to be read: a DuckDB file is opened only while no sync runs, for 100 ms at most;
    Redshift is queried at most every ten minutes, and only after a run, so that a paused cluster stays paused.

    Only this machine can see it, unless --host and --token-file let others in; then put a TLS proxy in front of it.

    \b
    Examples:
      floodmark serve
      floodmark serve --port 9000
      floodmark serve --host 0.0.0.0 --token-file /etc/floodmark/token
    """
    needs_extra()
    config = settings.load()
    from floodmark.web.serve import serve

    def ready(address: str) -> None:
        if settings.json:
            emit_json({"ok": True, "url": address}, settings.scrub)
        elif not settings.quiet:
            to_stderr(f"The dashboard is at {address} (Ctrl-C to stop).")

    try:
        serve(config, settings.scrub, ready, **given)
    except Interrupted as stopped:  # the usual end
        raise Interrupted("the dashboard was stopped", code=stopped.code) from None
    return 0


@options.command()
@options.path_option("-o", "--output", "file", required=True, help="The HTML file to write.")
@_ledger
def report(settings: Settings, file: Path, ledger: bool) -> int:
    """Write the dashboard's overview and tables into one HTML file.

    The file needs nothing else: no server, no internet. For mail and archives. Reads the store and
    the ledger, as `serve` does.

    \b
    Examples:
      floodmark report -o report.html
    """
    needs_extra()
    config = settings.load()
    from floodmark.web.serve import report

    document = report(config, file.absolute(), settings.scrub, ledger)
    said = f"{file}: {counted(document['tables'], 'table')}, {size(document['bytes'])}"
    return settings.result({"ok": True, **document}, lambda _: [said])


@click.group(cls=options.Group)
def alerts() -> None:
    """Notify people when a table fails, falls behind or differs.

    The receivers are those of `alerts` in the configuration; sync and verify notify them automatically.
    """


@options.command(of=alerts)
def test(settings: Settings) -> int:
    """Send a test message to every receiver, and show which of them accepted it.

    The heartbeat receives it at its URL with /log appended, which healthchecks.io logs without counting it as a run.
    Exit code 4 if a receiver did not accept it.
    """
    with _configured(settings) as found:
        document = found.test()
    code = 0 if document["ok"] else TransientError.code
    return settings.result(document, _receiver_lines, code)


@options.command(of=alerts)
def check(settings: Settings) -> int:
    """Check all tables from the store alone, and notify the receivers of changes.

    For when the scheduler itself is dead: run it on another machine. It needs neither MySQL nor the warehouse, and sends
    nothing twice. Exit code 0 even if a table is failing or behind; 4 if a receiver could not be reached.
    """
    with _configured(settings) as found:
        document = found.check()
    code = 0 if all(one["ok"] for one in document["receivers"]) else TransientError.code
    return settings.result(document, _table_lines, code)


def _configured(settings: Settings) -> Alerts:
    config = settings.load()
    if config.alerts is None:
        raise ConfigError(
            f"{config.path} has no alerts", hint="add alerts: {webhook: ${HOOK_URL}}; see docs/monitoring.md"
        )
    from floodmark.status.alerts import Alerts

    return Alerts(config)


def _receiver_lines(document: dict[str, Any]) -> list[str]:
    lines = [f"{one['receiver']}: {_sent(one)}" for one in document["receivers"]]
    return lines or ["no receivers: alerts has neither heartbeat, webhook nor to"]


def _sent(one: dict[str, Any]) -> str:
    if not one["ok"]:
        return f"not sent: {one['error']}"
    return "sent to …/log, which does not count as a run" if one["receiver"] == "heartbeat" else "sent"


def _table_lines(document: dict[str, Any]) -> list[str]:
    lines = []
    for one in document["tables"]:
        behind = one["behind_seconds"]
        far = f", at most {duration(behind)} behind" if behind is not None else ""
        detail = f": {one['detail']}" if one["detail"] else ""
        lines.append(f"{one['table']}: {one['state']}{far}{detail}")
    return [
        *(lines or ["no table has been synced yet"]),
        *(_receiver_lines(document) if document["receivers"] else []),
    ]


@click.group(cls=options.Group)
def dbt() -> None:
    """Tell dbt about the copied tables."""


@options.command(of=dbt)
@options.many_tables(
    "A table, as schema.table; repeatable. Without it, all that were synced and are not retired."
)
@options.path_option(
    "-o",
    "--output",
    "file",
    help="Write it to FILE (such as models/staging/floodmark.yml) instead of printing it.",
)
@click.option(
    "--name", default="floodmark", show_default=True, metavar="NAME", help="The source's name in dbt."
)
@options.duration_option(
    "--warn-after", "When dbt warns about a stale table. Default: the table's `behind`, or that of `alerts`."
)
@options.duration_option("--error-after", "When dbt fails. Default: four times the warning.")
@options.flag("--force", "Replace FILE even if this command did not write it.")
def sources(
    settings: Settings, tables: tuple[str, ...], file: Path | None, name: str, warn_after: float | None,
    error_after: float | None, force: bool,
) -> int:  # fmt: skip
    """Print or write a `sources.yml` with the copied tables, their columns and their freshness.

    Freshness needs `warehouse.freshness: true`: every sync, even one that finds nothing new, then records in the
    table floodmark_freshness up to when each target is complete. Without it, the file has no freshness.

    \b
    Examples:
      floodmark dbt sources -o models/staging/floodmark.yml
      floodmark dbt sources -t shop.orders --warn-after 30m --error-after 2h
    """
    if warn_after and error_after and error_after < warn_after:
        raise click.UsageError("--error-after is sooner than --warn-after")
    config = settings.load()
    from floodmark.integrations import dbt as made

    content = made.sources(config, tables, made.SourcesOptions(name, warn_after, error_after))
    if file is not None:
        made.write(file.absolute(), content, force)
    if not config.warehouse.freshness:
        with settings.progress() as progress:
            progress(Noted("", "without freshness: set warehouse.freshness: true, and sync"))
    said = f"{file}: {counted(len(content['sources'][0]['tables']), 'table')}"
    written = {"ok": True, "file": str(file) if file else None, "freshness": config.warehouse.freshness}
    return settings.result(
        {**written, **content}, lambda _: [said] if file else made.text(content).splitlines()
    )


COMMANDS = (serve, report, alerts, dbt)
