"""The further places for copies (`store.copies_to`): sending copies there, and reading them back.

A place mirrors the store's layout: primary and daily copies, `pipeline.json` and, with `log: true`, the
commits, which are written before the copy that shows them. A place belongs to one pipeline. Objects of
another log of the same table are moved aside, never overwritten: they may be all that is left of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from floodmark.log.document import commit_numbers, commit_path, daily_path, primary_path
from floodmark.log.fold import State
from floodmark.model.commit import read_commit
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.json import digest, load
from floodmark.store.places import Place
from floodmark.store.store import Store, encode

PIPELINE = "pipeline.json"
# Names the store that a place holds copies of: `{"store": "s3://bucket/prefix"}`.
COPIED_FROM = "copied_from.json"
# In a store that was lost: its pipeline.json came back from a place, so its tables may be there too.
RECOVERED_FROM = "recovered_from.json"
REPLACED = "replaced/"


def send(store: Store, state: State, data: bytes, saved_at: str, own: Mapping[int, bytes]) -> None:
    """Sends a table's newest copy to the further places in the background; `own`: commits already in memory."""
    made = dict(own)
    for place in store.places:
        place.later(state.table_name, partial(_send, store, place, state, data, saved_at, made))


def _send(
    store: Store, place: Place, state: State, data: bytes, saved_at: str, own: Mapping[int, bytes]
) -> None:
    name = state.table_name
    introduce(store, place)
    known = place.reached.get(name)
    if known is None or known[0] > state.n or not _in_log(store, state, *known, own):
        _look(store, place, state, own)
    before = place.reached[name][0] if name in place.reached else None
    if before is not None and before > state.n:
        return  # another run has already sent a newer copy
    if place.with_log:
        _send_log(store, place, state, before, own)
    place.store.put(primary_path(name), data)
    place.store.put(daily_path(name, saved_at), data)
    place.reached[name] = state.n, state.digest


def _look(store: Store, place: Place, state: State, own: Mapping[int, bytes]) -> None:
    """Finds the newest commit that the place has of the table.

    Moves aside objects of another log, or of a branch that the log has left.
    """
    name = state.table_name
    place.reached.pop(name, None)
    found = _shown(place.store.get(primary_path(name)))
    if found is None:
        return
    if found.log != state.log:
        _put_aside(place.store, name, found.log)
    elif _left(store, place, state, found, own):
        _put_aside(place.store, name, f"{found.log}.{found.digest[:12]}")
    elif not place.with_log or place.store.get(commit_path(name, found.n)) is not None:
        place.reached[name] = found.n, found.digest


def _left(store: Store, place: Place, state: State, found: _Shown, own: Mapping[int, bytes]) -> bool:
    """Whether the copy shows commits that the log has given up: the store was restored to an older state and then continued.

    Compares the newest commit that both have.
    """
    if found.n <= state.n:
        return not _in_log(store, state, found.n, found.digest, own)
    carried = (_digest(state.n, commit) for commit in found.commits)
    theirs = next(filter(None, carried), None) or _digest(
        state.n, place.store.get(commit_path(state.table_name, state.n))
    )
    return theirs not in (state.digest, None)


def _in_log(store: Store, state: State, n: int, known: str, own: Mapping[int, bytes]) -> bool:
    """Whether the log's commit number `n`, at most the state's, has this digest, or can't be read."""
    if n == state.n:
        return known == state.digest
    data = own.get(n) or store.get(commit_path(state.table_name, n))
    return _digest(n, data) in (known, None)


def _digest(n: int, data: bytes | None) -> str | None:
    """The digest that these bytes stand for; None if they are not commit number `n`."""
    try:
        commit = read_commit(data or b"")
    except ValueError:
        return None
    return commit.stands_for or digest(data or b"") if commit.n == n else None


@dataclass(frozen=True)
class _Shown:
    """What a copy shows: its log, the newest commit, and the last commits that it carries."""

    log: str
    n: int
    digest: str
    commits: tuple[bytes, ...]


def _shown(data: bytes | None) -> _Shown | None:
    """What a copy shows; None if the copy is missing or unreadable, or shows no commit."""
    try:
        checkpoint = json.loads(data or b"")["checkpoint"]
        known, carried = checkpoint["body"]["state"], checkpoint.get("commits", ())
        commits = tuple(str(commit).encode() for commit in carried)
        found = _Shown(str(known["log"]), int(known["n"]), str(known["digest"]), commits)
        return found if found.n >= 0 else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _put_aside(place: Store, name: str, log: str) -> None:
    aside = f"{REPLACED}{encode(name)}/{encode(log)}/"
    commits = (commit_path(name, n) for n in commit_numbers(place, name))
    # The primary copy last: while it is there, an interrupted move is repeated.
    for path in (*commits, *daily_paths(place, name), primary_path(name)):
        if (data := place.get(path)) is not None:
            place.put(aside + path, data)
            place.delete([path])


def daily_paths(store: Store, name: str, old: float = 0.0) -> list[str]:
    """The table's daily copies in a store or place, newest first; that there are none may be `old` seconds old."""
    stem = daily_path(name, "").removesuffix(".json")
    if store.lacked(stem, old):
        return []
    paths = [o.path for o in store.list(stem, start_after=stem)]  # the folder holds the copies of all tables
    # The prefix `s.t_` also matches the copies of a table `s.t_2`.
    return [p for p in reversed(paths) if re.fullmatch(r"\d{8}\.json", p.removeprefix(stem))]


def _send_log(
    store: Store, place: Place, state: State, reached: int | None, own: Mapping[int, bytes]
) -> None:
    """Sends the commits that the place lacks; it already has those up to its own copy (`reached`)."""
    name = state.table_name
    there = set(commit_numbers(place.store, name)) if reached is None else set()
    missing = [n for n in range(0 if reached is None else reached + 1, state.n + 1) if n not in there]

    def one(n: int) -> None:
        path = commit_path(name, n)
        data = own.get(n) or store.get(path)
        if data is not None and not place.store.create(path, data) and place.store.get(path) != data:
            place.store.put(path, data)

    place.store.each(one, missing)


def introduce(store: Store, place: Place) -> None:
    """Marks the place as this pipeline's; ConfigError if it belongs to another."""
    if place.introduced:
        return
    own = store.get(PIPELINE)
    check_owner(store, place.store, own)
    place.ours = True
    if own is not None and place.store.get(PIPELINE) != own:
        place.store.put(PIPELINE, own)
    place.store.put(COPIED_FROM, json.dumps({"store": store.uri("")}).encode() + b"\n")
    place.introduced = own is not None


def check_owner(store: Store, place: Store, own: bytes | None) -> bytes | None:
    """The place's pipeline.json; ConfigError if it is another pipeline's or, ours unknown, another store's."""
    theirs = place.get(PIPELINE)
    instead = f"delete {COPIED_FROM} there"
    if own is not None and theirs is not None:
        same = _field(own, "id") == _field(theirs, "id")
        instead = (
            f"delete {store.uri(PIPELINE)} and, there, {COPIED_FROM}: the next sync adopts that identity"
        )
    else:
        known = place.get(COPIED_FROM)
        same = own is not None or known is None or _field(known, "store") == store.uri("")
    if same:
        return theirs
    whose = _field(place.get(COPIED_FROM), "store") or "another pipeline"
    raise ConfigError(
        f"copies_to {place.spec.url} holds copies of {whose}, not of {store.uri('')}",
        hint=f"give each pipeline its own place; if this store replaces that one, {instead}",
    )


def _field(data: bytes | None, name: str) -> Any:
    try:
        return load(dict[str, Any], data or b"{}").get(name)
    except ValueError:
        return None


def pipeline_elsewhere(store: Store, *, sure: bool) -> bytes | None:
    """The pipeline.json of a store that has lost it, from the first further place that has one.

    If `sure`, waits for the places, and raises if none has one and one of them could not be read.
    """
    failed: FloodmarkError | None = None
    for place in store.places:
        try:
            found = place.ask(lambda there: check_owner(store, there.store, None), patient=sure)
        except FloodmarkError as error:
            failed = failed or unanswered(store, place, error)
            continue
        if found is not None:
            return found
    if sure and failed is not None:
        raise failed
    return None


def maybe_lost(store: Store) -> bool:
    """Whether a table that the store doesn't know may still be in a further place.

    So it is for a store without a pipeline.json, which is either new or lost, and for one that got it back
    from a place: its tables follow one by one.
    """
    return bool(store.places) and (store.get(PIPELINE) is None or store.get(RECOVERED_FROM) is not None)


def unanswered(store: Store, place: Place, error: FloodmarkError) -> FloodmarkError:
    """The error for a store that may be lost while a place can't be read: nothing may start over then."""
    if isinstance(error, ConfigError):
        return error
    return TransientError(
        f"{store.uri('')} is new or was lost, and copies_to {place.label}, which may have its state, could not be "
        f"read: {error.message}",
        hint="run again when that place is reachable, or remove it from store.copies_to",
    )


def commits_elsewhere(
    store: Store, name: str, wanted: Iterable[int], *, beyond: str = ""
) -> Iterator[tuple[int, bytes]]:
    """The wanted commits found in the logs of further places, fetched in parallel.

    Skips places that fail, but for the one that has the copy at this address (`beyond`): then it raises.
    """
    left = list(wanted)
    for place in store.places:
        if not place.with_log or not left:
            continue
        try:
            found = place.store.each(place.store.get, [commit_path(name, n) for n in left])
        except FloodmarkError as error:
            place.complain(error.message, "read")
            if beyond.startswith(place.store.uri("watermark/")):
                raise unanswered(store, place, error).of(name) from None
            continue
        yield from ((n, data) for n, data in zip(left, found, strict=True) if data is not None)
