"""The commands `serve` and `report`: the dashboard in a browser, and as one file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from floodmark.cli.options import Command, Settings, pass_settings
from floodmark.cli.output import emit
from floodmark.cli.stderr import to_stderr
from floodmark.model.errors import ConfigError, Interrupted
from floodmark.model.text import counted, size

# What the extra brings.
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


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8808,
    show_default=True,
    metavar="P",
    help="The port; 0 picks a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="A file with the token that every visitor must enter; required if other machines have access.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name that a proxy uses for this machine; repeatable.",
)
@_ledger
@pass_settings
def serve(
    settings: Settings, host: str, port: int, token_file: Path | None, names: tuple[str, ...], ledger: bool
) -> int:
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
    from floodmark.web.serve import ServeOptions, serve

    def ready(address: str) -> None:
        if settings.json:
            emit.emit_json({"ok": True, "url": address}, settings.scrub)
        elif not settings.quiet:
            to_stderr(f"The dashboard is at {address} (Ctrl-C to stop).")

    try:
        serve(config, ServeOptions(host, port, token_file, names, ledger), settings.scrub, ready)
    except Interrupted as stopped:  # the usual end
        raise Interrupted("the dashboard was stopped", code=stopped.code) from None
    return 0


@click.command(cls=Command)
@click.option(
    "-o", "--output", "file", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The HTML file to write.",
)  # fmt: skip
@_ledger
@pass_settings
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

    def lines() -> list[str]:
        tables, large = int(str(document["tables"])), int(str(document["bytes"]))
        return [f"{file}: {counted(tables, 'table')}, {size(large)}"]

    return settings.result({"ok": True, **document}, lines)


COMMANDS = (serve, report)
