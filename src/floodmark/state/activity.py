"""What goes on at a table: a run holds it, one was interrupted, or nothing does. Pure.

Running is whoever's lease lives; interrupted is a window that is open and that nobody holds: the next sync goes on
with it. Rows are those that were committed under the newest claim.
"""

from __future__ import annotations

from typing import Any

from floodmark.model import by_key
from floodmark.state.fold import State
from floodmark.state.lease import Holder

FIELDS = ("run", "host", "pid", "since", "stage", "rows")
IDLE: dict[str, Any] = {"state": "idle", **dict.fromkeys(FIELDS)}


def activity(state: State, held: Holder | None) -> dict[str, Any]:
    """The contract's `activity`; `held` is who has the newest claim, alive or not."""
    if held is not None and held.alive:
        return _by("running", state, held)
    if state.window is None and state.reread is None:
        return dict(IDLE)
    claim = state.claim
    last = Holder(claim.run, claim.owner, claim.purpose, "", False) if claim else None
    return _by("interrupted", state, last)


def _by(word: str, state: State, held: Holder | None) -> dict[str, Any]:
    claim = state.claim if state.claim and held and state.claim.run == held.run else None
    committed = [d for d in state.data if claim and d.n > claim.n and not by_key(d.load_as)]
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
    """`extract` or `load`; of commands that do neither, what they do."""
    if state.window is not None or state.reread is not None:
        return "extract"
    if purpose == "sync":
        return "load" if committed else "extract"
    return purpose
