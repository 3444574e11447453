"""A table's current activity: running, interrupted or idle.

Running means that the holder's lease is alive. Interrupted means that a window is open and no live run holds
the table; the next sync resumes it, or gives it up. Rows come from the live document, or else from the commits
under the newest claim.
"""

from __future__ import annotations

from typing import Any

from floodmark.log.fold import State
from floodmark.log.lease import Holder, holder
from floodmark.log.status import Live, read_live
from floodmark.model.commit import by_key
from floodmark.store.store import Store

FIELDS = ("run", "host", "pid", "since", "stage", "rows")
IDLE: dict[str, Any] = {"state": "idle", **dict.fromkeys(FIELDS)}


def activity(state: State, held: Holder | None, live: Live | None = None) -> dict[str, Any]:
    """The contract's `activity`; `held` holds the newest claim, alive or not, `live` is its progress."""
    if held is not None and held.alive:
        shown = at_work("running", state, held)
        if live is not None and live.run == held.run and live.stage is not None:
            shown |= {"stage": live.stage, "rows": live.rows}
        return shown
    if state.window is None and state.extraction.reread is None:
        return dict(IDLE)
    claim = state.claim
    last = Holder(claim.run, claim.owner, claim.purpose, "", False) if claim else None
    return at_work("interrupted", state, last)


def activity_now(store: Store, state: State) -> dict[str, Any]:
    """The table's activity now; fetches the progress only while a live run holds the table."""
    held = holder(store, state.table_name, state.claim)
    live = read_live(store, state.table_name, held.run) if held is not None and held.alive else None
    return activity(state, held, live)


def at_work(word: str, state: State, held: Holder | None) -> dict[str, Any]:
    """Who holds the newest claim, and what was committed under it."""
    claim = state.claim if state.claim and held and state.claim.run == held.run else None
    committed = [d for d in state.data.commits if claim and d.n > claim.n and not by_key(d.load_as)]
    owner = held.owner if held else None
    return {
        "state": word,
        "run": held.run if held else None,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "since": claim.at if claim else None,
        "stage": _stage(state, held.purpose if held else None, bool(committed)),
        "rows": sum(d.rows for d in committed),
    }


def _stage(state: State, purpose: str | None, committed: bool) -> str | None:
    """`extract` or `load`; for commands that do neither, their purpose."""
    if state.window is not None or state.extraction.reread is not None:
        return "extract"
    if purpose == "sync":
        return "load" if committed else "extract"
    return purpose
