"""Checks what an experiment left behind: rows, log, files, ledger and output. Independent of the product.

Every problem has a kind: `lost`, `doubled`, `different` and `extra` rows; `log`, `files`, `ledger`, `counts` where
the state does not add up; `said` where an error is not a proper line, or a secret was printed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .bench import Bench
from .spawn import Ended
from .truth import (
    Loaded,
    Place,
    RawCommit,
    Row,
    Source,
    commits,
    counted,
    file_rows,
    ledger,
    place,
    source_rows,
    warehouse_rows,
)

# A column that a file did not have: the target's value is checked against the source alone.
ANY = object()


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    kind: str
    text: str


def check(
    bench: Bench, source: Source, *, excused: Sequence[tuple[Place | None, Place]] = (), by_files: bool = True
) -> list[Problem]:
    """All problems after the last sync; `by_files`: in the files, too, unless a column has changed since."""
    log = commits(bench, source.name)
    found = check_log(log)
    found += check_files(bench, log)
    loaded = ledger(bench, source.name)
    target = warehouse_rows(bench, source.into)
    found += check_ledger(log, loaded)
    found += check_fold(bench, source, log, loaded, target) if by_files else []
    found += check_rows(source, source_rows(bench, source), target, excused)
    return found


# ---------------------------------------------------------------- the log


def check_log(log: Sequence[RawCommit]) -> list[Problem]:
    """No gaps, each commit names its predecessor, only the newest claim's run commits, every slice occurs once."""
    found: list[Problem] = []
    before: RawCommit | None = None
    claim: dict[str, Any] | None = None
    walk = _Walk(found)
    for number, commit in enumerate(log):
        body = commit.body
        if commit.n != number or body["n"] != number:
            found.append(
                Problem("log", f"commit {commit.n} (it says {body['n']}) is the {number}th of the log")
            )
        if before is not None and body["prev"] != before.digest:
            found.append(Problem("log", f"commit {commit.n} does not continue commit {before.n}"))
        if before is not None and body["log"] != before.body["log"]:
            found.append(Problem("log", f"commit {commit.n} is of another log"))
        if commit.kind == "claim":
            claim = body
        elif commit.kind != "open" and (claim is None or claim["run"] != body["run"]):
            found.append(Problem("log", f"commit {commit.n} is by a run that does not hold the table"))
        walk.on(commit)
        before = commit
    ids = Counter(c.body["id"] for c in log)
    found += [Problem("log", f"a commit is there {n} times: {i}") for i, n in ids.items() if n > 1]
    paths = Counter(f["path"] for c in log for f in c.body["files"])
    found += [Problem("doubled", f"a file is committed {n} times: {p}") for p, n in paths.items() if n > 1]
    return found


class _Walk:
    """The position along the log: it follows the windows, has no gaps, and moves back only by a command."""

    def __init__(self, found: list[Problem]) -> None:
        self._found = found
        self.at: Place | None = None
        self._window: dict[str, Any] | None = None
        self._done: set[int] = set()
        self._moved = True  # by hand, or not started: the next window may begin anywhere

    def on(self, commit: RawCommit) -> None:
        body = commit.body
        moved = commit.kind == "reset" and "extract" in body["stages"]
        moved = moved or (commit.kind == "clean" and body["clean"]["moved"])
        if moved or commit.kind in ("set", "restore"):
            self.at, self._window, self._done = place(body["position"]), None, set()
            self._moved = self.at is None
        elif commit.kind == "claim" and body["window"] is not None:
            self._open(commit)
        elif body["window_id"] is not None:
            self._slices(commit)

    def _open(self, commit: RawCommit) -> None:
        window = commit.body["window"]
        if self._window is not None and window["id"] == self._window["id"]:
            if window != self._window:
                self._found.append(Problem("log", f"commit {commit.n} changes the open window"))
            return
        low = place(window["low"])
        if window["done"]:
            if self._window is None or (window["low"], window["high"]) != (
                self._window["low"],
                self._window["high"],
            ):
                self._found.append(Problem("log", f"commit {commit.n} cuts a window finer that is not open"))
        elif not self._moved and low != self.at and window["by"] != "snapshot":
            self._found.append(
                Problem("log", f"commit {commit.n}: a window from {low} where {self.at} was reached")
            )
        self._window, self._done = window, set(window["done"])
        if self._moved:
            self.at, self._moved = low, False

    def _slices(self, commit: RawCommit) -> None:
        window, slices = self._window, commit.body["slices"]
        if window is None or window["id"] != commit.body["window_id"]:
            self._found.append(Problem("log", f"commit {commit.n} has slices of a window that is not open"))
            return
        count = len(window["edges"]) + 1
        if self._done & set(slices) or len(set(slices)) != len(slices) or any(s >= count for s in slices):
            self._found.append(
                Problem("log", f"commit {commit.n} has a slice twice, or one too many: {slices}")
            )
        self._done |= set(slices)
        if window["by"] == "snapshot" or len(self._done) == count:
            self._reach(commit, place(window["high"]))
            self._window = None
        elif window["by"] == "cursor":
            first = next(i for i in range(count) if i not in self._done)
            if first:
                self._reach(commit, place(window["edges"][first - 1]))

    def _reach(self, commit: RawCommit, to: Place | None) -> None:
        if self.at is not None and to is not None and to < self.at:
            self._found.append(
                Problem("log", f"commit {commit.n} takes the watermark back, {self.at} to {to}")
            )
        self.at = to


def reached(log: Sequence[RawCommit]) -> Place | None:
    """How far the table was read, according to the log."""
    walk = _Walk([])
    for commit in log:
        walk.on(commit)
    return walk.at


def cleaned(log: Sequence[RawCommit]) -> tuple[set[str], set[int]]:
    """The files that a clean may have removed, and the commits that it gave up."""
    paths: set[str] = set()
    given_up: set[int] = set()
    files = {c.n: [f["path"] for f in c.body["files"]] for c in log}
    for clean in [c.body["clean"] for c in log if c.kind == "clean"]:
        for first, last in clean["whole"]:
            paths |= {path for n in range(first, last + 1) for path in files.get(n, ())}
        for n, places in clean["some"]:
            paths |= {files[n][i] for i in places}
        given_up |= {gone[0] for gone in clean["given_up"]}
    return paths, given_up


def check_files(bench: Bench, log: Sequence[RawCommit]) -> list[Problem]:
    """Every file named by a commit exists with the bytes and rows that the commit states, unless it was cleaned."""
    found = []
    gone, _ = cleaned(log)
    for commit in log:
        for file in commit.body["files"]:
            there = file_rows(bench, file["path"])
            if there is None and file["path"] in gone:
                continue
            if there is None:
                found.append(Problem("files", f"commit {commit.n} names {file['path']}, which is not there"))
            elif (len(there[0]), there[1]) != (file["rows"], file["checksum"]):
                found.append(Problem("files", f"{file['path']} is not what commit {commit.n} says"))
    return found


# ---------------------------------------------------------------- the warehouse


def epochs(log: Sequence[RawCommit]) -> tuple[int, int, int]:
    """The numbers of the last resets: of the extraction, the load, and both at once."""
    extract = load = both = 0
    for commit in log:
        if commit.kind == "reset":
            stages = commit.body["stages"]
            extract = commit.n if "extract" in stages else extract
            load = commit.n if "load" in stages else load
            both = commit.n if len(stages) == 2 else both
    return extract, load, both


def data_commits(log: Sequence[RawCommit]) -> list[RawCommit]:
    """The commits that have something to load."""
    return [
        c
        for c in log
        if c.kind in ("batch", "deletes") and (c.body["files"] or c.body["load_as"] == "replace")
    ]


def check_ledger(log: Sequence[RawCommit], loaded: Sequence[Loaded], pending: bool = False) -> list[Problem]:
    """Each data commit of this epoch is in the ledger exactly once, by number and digest, with its rows."""
    if not log:
        return []
    _, epoch, both = epochs(log)
    known = {c.digest: c for c in data_commits(log)}
    mine = [r for r in loaded if r.log == log[0].body["log"]]
    twice = Counter((r.epoch, r.n, r.digest) for r in mine)
    found = [Problem("ledger", f"{k} is {n} times in the ledger") for k, n in twice.items() if n > 1]
    for row in mine:
        commit = known.get(row.digest)
        if commit is not None and (commit.n, commit.rows) != (row.n, row.rows):
            found.append(Problem("ledger", f"the ledger's row for commit {row.n} does not fit the log"))
    here = {r.digest for r in mine if r.epoch == epoch}
    if not pending:
        _, given_up = cleaned(log)
        missing = [c.n for c in known.values() if c.n > both and c.digest not in here and c.n not in given_up]
        found += [Problem("ledger", f"commit {n} is not in the ledger") for n in missing]
    return found


def check_fold(
    bench: Bench, source: Source, log: Sequence[RawCommit], loaded: Sequence[Loaded], target: Sequence[Row]
) -> list[Problem]:
    """The target holds exactly what the files of the loaded commits yield, where the later read wins."""
    by_digest = {c.digest: c for c in log}
    if any(row.digest not in by_digest for row in loaded):
        return []  # from another log or a lost commit: only the source can tell
    files = [f["path"] for row in loaded for f in by_digest[row.digest].body["files"]]
    marked = any(by_digest[row.digest].body["load_as"] == "mark" for row in loaded)
    if marked or any(path in cleaned(log)[0] for path in files):
        return []  # files are gone, or rows carry the time of a mark
    rows: dict[Any, Row] = {}
    many: list[Row] = []
    for entry in loaded:
        commit = by_digest[entry.digest]
        put = [
            row for file in commit.body["files"] for row in (file_rows(bench, file["path"]) or ([], ""))[0]
        ]
        if commit.body["load_as"] == "replace":
            rows, many = {}, []
        if source.key is None:
            many += put
            continue
        if commit.body["load_as"] == "delete":
            for row in put:
                rows.pop(row[source.key], None)
            continue
        for row in sorted(put, key=lambda row: _when(row, source)):
            rows[row[source.key]] = row
    expected = many if source.key is None else list(rows.values())
    names = sorted({name for row in target for name in row})
    have = Counter(_tuple(row, names) for row in target)
    if any(name not in row for row in expected for name in names):
        return []  # files from before a column was added: only the source can tell
    want = Counter(_tuple(row, names) for row in expected)
    return [
        *(Problem("lost", f"a loaded row is not in the target: {r}") for r in list(want - have)[:3]),
        *(Problem("doubled", f"the target has a row too many: {r}") for r in list(have - want)[:3]),
    ]


def check_rows(
    source: Source,
    there: Sequence[Row],
    target: Sequence[Row],
    excused: Sequence[tuple[Place | None, Place]] = (),
) -> list[Problem]:
    """Source and warehouse hold the same rows, each exactly once, with every value equal."""
    names = sorted({name for row in there for name in row})
    if source.key is None:
        have = Counter(_tuple(row, names) for row in target)
        want = Counter(_tuple(row, names) for row in there)
        return [
            *(Problem("lost", f"not in the warehouse: {r}") for r in list(want - have)[:3]),
            *(Problem("doubled", f"too often in the warehouse: {r}") for r in list(have - want)[:3]),
        ]
    counted = Counter(row[source.key] for row in target)
    found = [Problem("doubled", f"key {k} is {n} times there") for k, n in counted.items() if n > 1][:5]
    by_key = {row[source.key]: row for row in target}
    for row in there:
        key = row[source.key]
        if source.cursor and row[source.cursor] is not None and _excused(row, source, excused):
            continue
        if key not in by_key:
            found.append(Problem("lost", f"row {key} ({row}) is missing"))
        elif _tuple(by_key[key], names) != _tuple(row, names):
            found.append(Problem("different", f"row {key}: {by_key[key]} where the source has {row}"))
    known = {row[source.key] for row in there}
    extra = [key for key in by_key if key not in known and key not in source.extra]
    return found[:8] + [Problem("extra", f"row {key} is in the warehouse only") for key in extra[:5]]


def _excused(row: Row, source: Source, excused: Sequence[tuple[Place | None, Place]]) -> bool:
    """Whether a command moved the watermark past this row."""
    assert source.cursor is not None and source.key is not None
    here = (row[source.cursor], row[source.key])
    return any((low is None or here > low) and (here <= high or here[:1] == high) for low, high in excused)


def _when(row: Row, source: Source) -> Any:
    value = row.get(source.cursor or "")
    return (value is not None, value) if value is not None else (False, 0)


def _tuple(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(str(row.get(name)) for name in names)


# ---------------------------------------------------------------- output


def check_document(bench: Bench, source: Source, document: dict[str, Any]) -> list[Problem]:
    """The watermark's numbers match the sums over the log and the ledger."""
    log = commits(bench, source.name)
    if not log:
        return []
    extract, epoch, superseded = epochs(log)
    data = [c for c in data_commits(log) if c.n > extract]
    digests = {
        r.digest for r in ledger(bench, source.name) if r.log == log[0].body["log"] and r.epoch == epoch
    }
    gone = {given[0] for c in log if c.body.get("clean") for given in c.body["clean"]["given_up"]}
    live = [c for c in data_commits(log) if c.n not in gone]
    extracted = counted(c for c in live if c.n > extract)
    loaded = counted(c for c in live if c.n > superseded and c.digest in digests)
    expected = {
        "commit": log[-1].n,
        "mysql_rows_extracted": extracted[0],
        "mysql_rows_reread": extracted[1],
        "s3_file_count": sum(len(c.body["files"]) for c in data),
        "redshift_rows_loaded": loaded[0],
        "redshift_rows_reloaded": loaded[1],
    }
    return [
        Problem("counts", f"{name} is {document.get(name)}, and should be {value}")
        for name, value in expected.items()
        if document.get(name) != value
    ]


def check_said(bench: Bench, ended: Sequence[Ended]) -> list[Problem]:
    """An error is one or two lines, never a traceback; no secret appears anywhere that people look."""
    found = []
    for one in ended:
        told = [line for line in one.stderr.splitlines() if line.startswith("floodmark:")]
        told += one.stdout.splitlines() if one.code == 7 else []  # findings are an answer, not an error
        if one.code is not None and one.code > 0 and not told:
            found.append(Problem("said", f"{' '.join(one.args)}: exit code {one.code} without a line"))
        if "Traceback" in one.stderr or one.code == 1:
            found.append(Problem("said", f"{' '.join(one.args)}: {one.stderr.strip()[-300:]}"))
        for secret in bench.services.secrets:
            if secret in one.stdout or secret in one.stderr:
                found.append(Problem("said", f"{' '.join(one.args)} printed a secret"))
    # Every object, data files included, and whatever else the run left next to its configuration.
    left = {str(p.relative_to(bench.folder)): p for p in bench.folder.rglob("*") if p.is_file()}
    contents = [(name, p.read_bytes()) for name, p in left.items() if name != "floodmark.yaml"]
    if bench.stack != "folder":
        contents += [(path, bench.get(path) or b"") for path in bench.objects("")]
    for name, data in contents:
        if any(secret.encode() in data for secret in bench.services.secrets):
            found.append(Problem("said", f"{name} holds a secret"))
    return found


def expired(lease: bytes) -> bytes:
    """The lease, expired, as if its holder had been away for long."""
    note = json.loads(lease)
    past = datetime.now(UTC).replace(year=2020).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps({**note, "expires_at": past}).encode()
