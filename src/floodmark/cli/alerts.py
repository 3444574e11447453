"""The commands `alerts test` and `alerts check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import Command, Group, Settings, pass_settings
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.text import duration

if TYPE_CHECKING:
    from floodmark.status.alerts import Alerts


@click.group(cls=Group)
def alerts() -> None:
    """Notify people when a table fails, falls behind or differs.

    The receivers are those of `alerts` in the configuration; sync and verify notify them automatically.
    """


@alerts.command(cls=Command)
@pass_settings
def test(settings: Settings) -> int:
    """Send a test message to every receiver, and show which of them accepted it.

    The heartbeat receives it at its URL with /log appended, which healthchecks.io logs without counting it as a run.
    Exit code 4 if a receiver did not accept it.
    """
    with _configured(settings) as found:
        document = found.test()
    code = 0 if document["ok"] else TransientError.code
    return settings.result(document, lambda: _receiver_lines(document), code)


@alerts.command(cls=Command)
@pass_settings
def check(settings: Settings) -> int:
    """Check all tables from the store alone, and notify the receivers of changes.

    For when the scheduler itself is dead: run it on another machine. It needs neither MySQL nor the warehouse, and sends
    nothing twice. Exit code 0 even if a table is failing or behind; 4 if a receiver could not be reached.
    """
    with _configured(settings) as found:
        document = found.check()
    code = 0 if all(one["ok"] for one in document["receivers"]) else TransientError.code
    return settings.result(document, lambda: _table_lines(document), code)


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
