"""Group 5: the outside world: full disks, clocks that jump, a source that was set back.

A full disk is a real one: a small tmpfs, mounted over the store, the warehouse or the temporary files (this needs
root). Clocks are libfaketime's, for one process and never for the machine. What this machine can't do is skipped, and
the laboratory says so once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.orders import create_orders

from .bench import Bench
from .checker import Problem
from .clocks import Clock, clock
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import orders
from .truth import Source

Way = Callable[[Lab, str], Outcome | None]
SYNC, LOAD = ("sync", "-t", "{t}"), ("sync", "-t", "{t}", "--redshift-only")


def world(lab: Lab) -> Iterator[Outcome]:
    """Every kind in turn, round after round with new random numbers."""
    ways: tuple[tuple[str, Way], ...] = (
        ("store full, load", lambda lab, own: _full(lab, own, "store", "orders", "pending", LOAD)),
        ("warehouse full, load", lambda lab, own: _full(lab, own, "warehouse", "orders", "pending", LOAD)),
        ("warehouse full, load without a key",
         lambda lab, own: _full(lab, own, "warehouse", "events", "pending", LOAD)),
        ("temporary files full, load", lambda lab, own: _full(lab, own, "temporary", "orders", "pending", LOAD)),
        ("temporary files full, sync", lambda lab, own: _full(lab, own, "temporary", "orders", "synced", SYNC)),
        ("store full, sync", lambda lab, own: _full(lab, own, "store", "orders", "synced", SYNC)),
        ("warehouse full, first sync", lambda lab, own: _full(lab, own, "warehouse", "orders", "empty", SYNC)),
        ("restored from a backup", lambda lab, own: _restored(lab, own, writes=False)),
        ("failed over to a replica behind", lambda lab, own: _restored(lab, own, writes=True)),
        *((f"{how}", partial(_replaced, how=how)) for how in REPLACED),
        ("command's clock an hour back", lambda lab, own: _clock(lab, own, -3600)),
        ("command's clock an hour ahead, then right", lambda lab, own: _clock(lab, own, 3600)),
        ("command's clock jumps", lambda lab, own: _clock(lab, own, 0, jump=True)),
        ("command's clock never stands still", _restless),
    )  # fmt: skip
    missing: set[str] = set()
    for turn in range(1 if lab.quick else 30):
        for name, way in lab.dice("world", turn).sample(ways, len(ways)):
            own = f"world:{name}/{turn}"
            if name in missing or not lab.wanted(own):
                continue
            outcome = way(lab, own)
            if outcome is None:
                missing.add(name)
            else:
                yield outcome


def _left_out(what: str) -> None:
    print(f"           left out: {what}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- full disks


class SmallDisk:
    """A tmpfs in place of a folder, with room for its files and hardly more."""

    def __init__(self, folder: Path, room: int) -> None:
        self.folder = folder
        self._aside = folder.with_name(f"{folder.name}.aside")
        page = os.sysconf("SC_PAGE_SIZE")
        # tmpfs counts whole pages per file, and nothing for folders.
        used = sum(-(-f.stat().st_size // page) * page for f in folder.rglob("*") if f.is_file())
        self._size = used + room

    def __enter__(self) -> None:
        self.folder.rename(self._aside)
        self.folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "floodmark-lab", str(self.folder)],
            check=True,
        )
        shutil.copytree(self._aside, self.folder, dirs_exist_ok=True, symlinks=True)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._aside)
        shutil.copytree(self.folder, self._aside, symlinks=True)
        subprocess.run(["umount", str(self.folder)], check=True)
        self.folder.rmdir()
        self._aside.rename(self.folder)


def _full(lab: Lab, own: str, what: str, family: str, kept: str, command: tuple[str, ...]) -> Outcome | None:
    if os.geteuid() != 0:
        _left_out("full disks need root, for a mount")
        return None
    began, dice = time.monotonic(), lab.dice(own)
    bench = lab.bench("s3" if what == "temporary" else "folder")
    source = lab.prepared(bench).lay(family, kept)
    args = tuple(part.format(t=source.name) for part in command)
    outcome = Outcome("world", f"{own.partition(', ')[2].rpartition('/')[0]} [{bench.stack}]",
                      f"disk full: {what}", "", own)  # fmt: skip
    room = dice.choice([0, 1, 2, 4, 8, 16, 64, 256]) * 4096
    outcome.step = "with some room left" if room > 65536 else "with little room left"
    folder = {"store": bench.folder / "lake", "warehouse": bench.folder, "temporary": bench.folder / "tmp"}[
        what
    ]
    folder.mkdir(exist_ok=True)
    lake = bench.folder / "lake"
    outside = bench.folder.with_name("lake-outside")
    if what == "warehouse":  # the store is elsewhere
        lake.mkdir(exist_ok=True)
        shutil.rmtree(outside, ignore_errors=True)
        lake.rename(outside)
        lake.symlink_to(outside)
    with SmallDisk(folder, max(4096, room)):
        plan = {"tmp": str(folder)} if what == "temporary" else {}
        ended = note(outcome, bench.run(*args, plan=plan), (0, 4))
    if what == "warehouse":
        lake.unlink()
        outside.rename(lake)
    outcome.code, outcome.hit = ended.code, ended.code != 0
    watermark_known(bench, source, outcome)
    note(outcome, bench.run(*args), (0,))
    settle(bench, source, outcome)
    return timed(outcome, began)


# ---------------------------------------------------------------- a source that was set back


def _restored(lab: Lab, own: str, writes: bool) -> Outcome:
    """The source is back where it was some commits ago; the sync must say so, unless later writes hide it."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    source = Source(bench.services.database(), "orders")
    execute = bench.services.server.execute
    execute(*orders(120), database=source.database)
    bench.clear(source.database, defaults={"settle_seconds": 0.1, "slice_rows": 50})
    bench.config["tables"] = {source.name: {}}
    bench.write()
    said = "failed over to a replica that was behind" if writes else "restored from an older backup"
    outcome = Outcome("world", "sync [folder]", said, "between two syncs", own)
    execute("CREATE TABLE backup AS SELECT * FROM orders", database=source.database)
    changed = dice.choice([
        "UPDATE orders SET note = 'since' WHERE id % 4 = 0",
        "INSERT INTO orders (id, amount, note) SELECT 5000 + seq, seq, 'since' FROM seq_1_to_20",
    ])  # fmt: skip
    execute(changed, database=source.database)
    note(outcome, bench.run("sync", "-t", source.name), (0,))
    _put_back(bench, source, writes)
    ended = note(outcome, bench.run("sync", "-t", source.name), (6,))
    outcome.code = ended.code
    if ended.code == 6:
        if "set back" not in ended.stderr and "not the one" not in ended.stderr:
            outcome.problems.append(Problem("said", f"not said why: {ended.stderr[-300:]}"))
        watermark_known(bench, source, outcome)
        # One of the ways out that it names (accept the source as it is, or go back to the time of the backup), then
        # a repair of what still differs.
        ways = (("accept",), ("set", "--timestamp", "2025-02-28 00:00:00"))
        verb, *rest = dice.choice(ways)
        note(outcome, bench.run("watermark", verb, "-t", source.name, *rest), (0,))
        note(outcome, bench.run("sync", "-t", source.name), (0,))
        note(outcome, bench.run("verify", "-t", source.name, "--repair"), (0,))
    # Rows that only the lost part of the source had stay in the warehouse until `verify --repair` or deletes.
    gone = frozenset(range(5001, 5021))
    settle(bench, Source(source.database, source.table, extra=gone), outcome)
    return timed(outcome, began)


def _put_back(bench: Bench, source: Source, writes: bool) -> None:
    """Restore the backup's rows into a recreated table, as a restore does; then, with `writes`, write some more."""
    execute = bench.services.server.execute
    execute(
        "DROP TABLE orders",
        create_orders(),
        "INSERT INTO orders SELECT * FROM backup",
        database=source.database,
    )
    if writes:
        time.sleep(1.1)  # the clock moves on
        execute(
            "UPDATE orders SET note = 'after' WHERE id % 6 = 0",  # including the row at the watermark (840)
            "INSERT INTO orders (amount, note) SELECT seq, 'after' FROM seq_1_to_9",
            database=source.database,
        )


# What happened to the table between two syncs, and the sync's exit code.
REPLACED: dict[str, tuple[tuple[str, ...], int]] = {
    "truncated and filled again": (
        ("TRUNCATE {t}", "INSERT INTO {t} (amount, note) SELECT seq, CONCAT('b', seq) FROM seq_1_to_300"), 6),
    "dropped and created anew": (
        ("DROP TABLE {t}", "{made}", "INSERT INTO {t} (id, amount, note) SELECT 3 * seq, seq, 'anew' FROM seq_1_to_99"), 6),
    "made anew by ALTER": (("ALTER TABLE {t} ENGINE = InnoDB", "OPTIMIZE TABLE {t}", "{more}"), 0),
    "swapped for a copy of itself": (
        ("CREATE TABLE {t}_new LIKE {t}", "INSERT INTO {t}_new SELECT * FROM {t}",
         "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}", "{more}"), 0),
}  # fmt: skip
TICKETS = "CREATE TABLE tickets (id BIGINT AUTO_INCREMENT PRIMARY KEY, amount DECIMAL(12,2) NOT NULL, note VARCHAR(40))"


def _replaced(lab: Lab, own: str, how: str) -> Outcome:
    """A recreated table, read by time or by id: refused if its rows are different ones, continued if not."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    table = dice.choice(["orders", "tickets"])
    database, execute = bench.services.database(), bench.services.server.execute
    source = Source(database, "orders") if table == "orders" else Source(database, "tickets", cursor="id")
    more = f"INSERT INTO {table} (amount, note) SELECT seq, CONCAT('a', seq) FROM seq_1_to_40"
    made, fill = orders(120) if table == "orders" else (TICKETS, more)
    execute(made, fill, more, database=database)
    bench.clear(database, defaults={"settle_seconds": 0.1, "slice_rows": 50})
    bench.config["tables"] = {source.name: {}}
    bench.write()
    outcome = Outcome("world", f"sync, {table} [folder]", how, "between two syncs", own)
    note(outcome, bench.run("sync", "-t", source.name), (0,))
    statements, code = REPLACED[how]
    time.sleep(1.1)  # writes from here on fall into a later second
    execute(*(s.format(t=table, made=made, more=more) for s in statements), database=database)
    ended = note(outcome, bench.run("sync", "-t", source.name), (code,))
    outcome.code = ended.code
    if code and ended.code == code:
        watermark_known(bench, source, outcome)
        note(outcome, bench.run("sync", "-t", source.name), (code,))
        note(outcome, bench.run("watermark", "accept", "-t", source.name), (0,))
        note(outcome, bench.run("sync", "-t", source.name), (0,))
        note(outcome, bench.run("verify", "-t", source.name, "--repair"), (0,))
    settle(bench, source, outcome)
    return timed(outcome, began)


# ---------------------------------------------------------------- clocks


def _clock(lab: Lab, own: str, seconds: int, jump: bool = False) -> Outcome | None:
    """A sync under a clock that is wrong, or goes wrong; then one under the right clock."""
    set_clock: Clock | None = clock(lab.services)
    if set_clock is None:
        _left_out("libfaketime is not there and can't be fetched (Debian's package libfaketime)")
        return None
    began, dice = time.monotonic(), lab.dice(own)
    bench = lab.bench(dice.choice(["folder", "folder", "s3"]))
    family, kept = dice.choice([("orders", "synced"), ("orders", "interrupted"), ("events", "synced")])
    source = lab.prepared(bench).lay(family, kept)
    said = own.partition(":")[2].rpartition("/")[0]
    outcome = Outcome("world", f"sync, {family} {kept} [{bench.stack}]", said, "whole run", own)
    with set_clock.wrong(bench, seconds):
        at = dice.randint(1, 12)
        running = bench.start("sync", "-t", source.name, plan={"at": at, "when": "pause"} if jump else None)
        if jump:
            outcome.hit = set_clock.stopped(bench, running)
            set_clock.set(dice.choice([-3600, 3600, -30, 30]))
            outcome.step = "in mid-run"
            set_clock.go_on(running)
        # S3 refuses requests that are more than 15 minutes off, and the command then blames the clock.
        ended = note(outcome, bench.wait(running), (0,) if bench.stack == "folder" else (0, 2))
    if ended.code == 2 and "clock is wrong" not in ended.stderr:
        outcome.problems.append(Problem("said", f"not said why: {ended.stderr[-300:]}"))
    outcome.code = ended.code
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    return timed(outcome, began)


# Syncs per experiment under a clock that keeps jumping.
SYNCS = 20


def _restless(lab: Lab, own: str) -> Outcome | None:
    """Many syncs, one after the other, under a clock that keeps jumping; one of them with its own JVM."""
    set_clock: Clock | None = clock(lab.services)
    if set_clock is None:
        _left_out("libfaketime is not there and can't be fetched (Debian's package libfaketime)")
        return None
    began, dice = time.monotonic(), lab.dice(own)
    bench = lab.bench(dice.choice(["folder", "folder", "redshift"]))
    source = Source(bench.services.database(), "orders")
    execute = bench.services.server.execute
    execute(*orders(60), database=source.database)
    bench.clear(source.database, defaults={"settle_seconds": 0.1})
    said = "command's clock never stands still"
    outcome = Outcome("world", f"{SYNCS} syncs [{bench.stack}]", said, "whole run", own, strikes=SYNCS)
    whole = dice.randrange(SYNCS)
    # S3 refuses requests that are more than 15 minutes off: there would be no sync to look at.
    most = 3600 if bench.stack == "folder" else 600
    with set_clock.wrong(bench, 0), set_clock.restless(lab.dice(own, "jumps"), most):
        for number in range(SYNCS):
            execute(f"UPDATE orders SET note = 'n{number}' WHERE id % 7 = 0 AND id % 5 = {number % 5}",
                    "INSERT INTO orders (amount) VALUES (1)", database=source.database)  # fmt: skip
            note(outcome, bench.run("sync", "-t", source.name, own_jvm=number == whole), (0,))
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    execute(f"DROP DATABASE {source.database}")
    return timed(outcome, began)
