"""How the dashboard words things: times, lags, exit codes and what to do next, commands to copy. Pure."""

from __future__ import annotations

import shlex
from datetime import datetime
from urllib.parse import quote

from floodmark.log.status import LastVerify
from floodmark.model.text import clock, count, counted, duration, shown, size
from floodmark.status.health import age
from floodmark.web.seen import Row

__all__ = ["clock", "count", "counted", "duration", "shown", "size"]

EXIT_CODES = {
    0: ("done", ""),
    1: (
        "a bug in Floodmark",
        "Run it again with --debug, and report the traceback. Nothing committed is lost.",
    ),
    2: (
        "usage or configuration",
        "Correct what the message names: the command, the configuration or the privileges.",
    ),
    3: ("another run holds the table", "Nothing to do: the other run is doing the work."),
    4: ("a service failed", "Run the same command again: nothing is lost."),
    5: (
        "the warehouse's answer was lost",
        "Run the same command again: the ledger shows what was committed.",
    ),
    6: (
        "data or state that is not safe to continue with",
        "Decide as the message says; nothing continues until then.",
    ),
    7: ("verification found differences", "Look at the findings, then: floodmark verify --repair."),
    130: ("interrupted", "Run the same command again: it continues from there."),
    143: ("interrupted", "Run the same command again: it continues from there."),
}


def ended(code: int | None) -> str:
    """An exit code in words; None: the run ended without one."""
    if code is None:
        return "killed, or its machine stopped"
    return EXIT_CODES.get(code, (f"exit code {code}", ""))[0]


def next_step(code: int | None) -> str:
    """What to do about an exit code."""
    return EXIT_CODES.get(130 if code is None else code, ("", ""))[1]


def finding(kind: str, detail: str) -> str:
    """A finding in a line: its kind, and what it says."""
    return f"{kind.replace('_', ' ')}: {detail}".rstrip(": ")


def verify_findings(verify: LastVerify) -> list[str]:
    """The first findings of a verify, each in a line."""
    return [
        finding(str(one.get("kind", "finding")), str(one.get("detail", ""))) for one in verify.findings[:50]
    ]


def ago(moment: str | None, now: datetime) -> str:
    """`3 min ago`, coarse: it is read at a glance and should not change with every look."""
    seconds = age(moment, now)
    if seconds is None:
        return "never"
    return "just now" if seconds < 45 else f"{coarse(seconds)} ago"


def coarse(seconds: float) -> str:
    """A length of time in one unit: `45 s`, `12 min`, `5 h`, `3 d`."""
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{round(seconds / unit):,} {name}"
    return f"{round(seconds / 86400):,} d"


def lag(row: Row) -> str:
    """How far a table was behind when a sync last looked; at most so far by now, if that is too far."""
    if row.at_most is not None and (row.lag or 0.0) <= row.target:
        return f"up to {coarse(row.at_most)}"
    if row.lag is not None:
        return "none" if row.lag < 1 else coarse(row.lag)
    if row.lag_ids is not None:
        return "none" if row.lag_ids == 0 else f"{count(row.lag_ids)} ids"
    return "unknown"


def short(number: int) -> str:
    """A count for a narrow place: `1,250,000` as `1.25 M`."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= unit:
            scale = 1000 if name == "k" else unit
            return (
                f"{number / scale:.3g} {name}" if number < 1000 * scale else f"{number / scale:,.0f} {name}"
            )
    return count(number)


def table_url(name: str) -> str:
    return f"/tables/{quote(name, safe='')}"


def commands(row: Row) -> list[tuple[str, str]]:
    """What to do next with a table, with the command to copy; the likeliest first."""
    t = shlex.quote(row.name)
    sync = ("Bring it up to date", f"floodmark sync -t {t}")
    verify = ("Compare every row with the source", f"floodmark verify -t {t}")
    repair = ("Read again what differs", f"floodmark verify -t {t} --repair")
    load = ("Load the waiting files", f"floodmark sync -t {t} --redshift-only")
    plan = ("See what the next sync would do", f"floodmark plan -t {t}")
    rest = [
        ("Set the position by hand", f"floodmark watermark set -t {t} --timestamp 'YYYY-MM-DD HH:MM:SS'"),
        ("Go back to an earlier position", f"floodmark watermark restore -t {t} --commit N"),
        ("Start over", f"floodmark watermark reset -t {t}"),
    ]
    first = {
        "failed": [sync, plan],
        "failing": [sync, plan],
        "behind": [sync, plan],
        "waiting to load": [load],
        "never synced": [plan, sync],
        "unknown": [("Check what is there", f"floodmark watermark validate -t {t}"), sync],
    }.get(row.health.word, [])
    if row.verified is not None and row.verified.differences:
        first = [repair, *first]
    return [*first, verify, *rest]
