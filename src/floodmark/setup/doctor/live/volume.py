"""Times a load of many rows and a merge of 1 % of them, both with our own code.

At most a million rows travel through the store; the rest are generated from them inside the warehouse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from floodmark.model.text import rate
from floodmark.services.warehouse.redshift.names import literal
from floodmark.setup.doctor.live.explain import Explaining, Notes, Sent
from floodmark.setup.doctor.live.loads import ORDERS, Log, named
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, tried

_GROUP = "volume"
_SENT = 1_000_000
_T = 1_735_689_600_000_000
_TABLE = named(ORDERS, "many")


def _columns(ids: range, at: int) -> dict[str, Any]:
    # Names neither repeat nor compress, like real rows; so the reported bytes of the files mean something.
    return {
        "id": list(ids),
        "name": [f"{n * 2_654_435_761 % 2**32:08x}{n:08x}" for n in ids],
        "update_at": [_T + at + n for n in ids],
    }


def _filled(live: Live) -> tuple[Log, dict[str, float]]:
    """The target with all rows, and how long that took."""
    wanted = live.scale.rows
    sent = min(wanted, _SENT)
    log = Log(live, _TABLE, live.way(live.first))
    commit = log.commit(_columns(range(sent), 0))
    began = time.monotonic()
    log.load(commit)
    loaded = time.monotonic() - began
    began = time.monotonic()
    have = sent
    with live.session(live.first) as session:
        while have < wanted:
            more = min(have, wanted - have)
            session.execute(
                f'INSERT INTO {live.path("many")} SELECT "id" + {have}, "name", "update_at" FROM {live.path("many")} '
                f'WHERE "id" < {more}'
            )
            have += more
    return log, {"first_load": loaded, "multiplied": time.monotonic() - began}


_INFO = (
    "size",
    "tbl_rows",
    "estimated_visible_rows",
    "unsorted",
    "stats_off",
    "diststyle",
    "sortkey1",
    "encoded",
    "skew_rows",
)


def _info(live: Live) -> dict[str, Any]:
    """The table's entry in SVV_TABLE_INFO, as far as we can see it."""
    with live.session(live.first) as session:
        found = tried(
            session,
            f"SELECT {', '.join(_INFO)} FROM svv_table_info WHERE schema = {literal(live.schema)} AND \"table\" = 'many'",
        )
    if isinstance(found, Refusal):
        return {"refused": str(found)}
    return (
        {n: None if v is None else str(v).strip() for n, v in zip(_INFO, found[0], strict=True)}
        if found
        else {}
    )


def _first(live: Live) -> Answer:
    _, seconds = live.once("rows", lambda: _filled(live))
    rows = live.warehouse().rows("many")
    sent = min(live.scale.rows, _SENT)
    said = f"{sent:,} rows loaded in {seconds['first_load']:.1f} s ({rate(sent, seconds['first_load'])})"
    return Answer(
        rows == live.scale.rows, said, {"seconds": seconds, "rows": rows, "table_info": _info(live)}
    )


@dataclass(frozen=True)
class _Merged:
    """A merge of 1 %: how long it took, its statements, and the table's entry before and after."""

    merged: int
    rows: int
    seconds: float
    sent: list[Sent]
    before: dict[str, Any]
    after: dict[str, Any]


def _merged(live: Live) -> _Merged:
    log, _ = live.once("rows", lambda: _filled(live))
    before = _info(live)
    count = max(1, live.scale.rows // 100)
    step = max(1, live.scale.rows // count)
    commit = log.commit(_columns(range(0, count * step, step), 10**12))
    notes = Notes()
    if "socket" in live.ways:
        log = Log(live, _TABLE, Explaining(live.way("socket"), notes, live.scale.statement), log.n)
    began = time.monotonic()
    log.load(commit)
    seconds = time.monotonic() - began
    return _Merged(count, live.warehouse().rows("many"), seconds, notes.sent, before, _info(live))


def _merge(live: Live) -> Answer:
    done = live.once("merge", lambda: _merged(live))
    slowest = sorted(done.sent, key=lambda sent: -sent.seconds)[:8]
    return Answer(
        done.rows == live.scale.rows and not any(sent.nested for sent in done.sent),
        f"{done.merged:,} rows merged into {done.rows:,} in {done.seconds:.1f} s",
        {"seconds": round(done.seconds, 2), "slowest": [sent.as_json() for sent in slowest]},
    )


def _table_info(live: Live) -> Answer:
    done = live.once("merge", lambda: _merged(live))
    for info in (done.before, done.after):
        if "refused" in info:
            grant = "to see it: GRANT SELECT ON svv_table_info TO the user"
            raise Unknown(f"{info['refused']}; {grant}")
    told = [
        f"{name} {done.before.get(name)} to {done.after.get(name)}"
        for name in ("size", "tbl_rows", "unsorted", "stats_off")
    ]
    return Answer(
        bool(done.before and done.after),
        ", ".join(told) if done.before and done.after else "the view does not list the table",
        {"before": done.before, "after": done.after},
    )


def _compared(live: Live) -> Answer:
    from floodmark.model.canonical import Scope, Span, forms
    from floodmark.services.warehouse.canonical import digests

    live.once("rows", lambda: _filled(live))
    scope = Scope(_TABLE, forms(_TABLE, redshift=True))
    began = time.monotonic()
    found = live.warehouse().ask("many", lambda place: digests(place, scope, [Span()]))
    seconds = time.monotonic() - began
    if not found:
        raise Unknown("the table does not exist")
    rows = int(found[0][1])
    return Answer(
        rows == live.scale.rows, f"{rows:,} rows digested in {seconds:.1f} s ({rate(rows, seconds)})"
    )


PROBES = (
    Probe(_GROUP, "first load", "How long does a first load take?", "all rows are there", _first),
    Probe(
        _GROUP,
        "merge",
        "How long does a merge of 1 % take?",
        "as many rows as before, no nested loop",
        _merge,
    ),
    Probe(
        _GROUP,
        "table info",
        "What does svv_table_info show about the table before and after the merge?",
        "its size in MB, its rows including deleted ones, how much is unsorted",
        _table_info,
    ),
    Probe(_GROUP, "digest", "How long does a digest of all rows take?", "all rows are counted", _compared),
)
