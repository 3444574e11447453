"""Group 7: changes between two syncs: the recipe, the target, privileges, time zones, application clocks.

Syncs after a change are often struck, too. The hints of refusals are followed word for word. Each experiment ends
with equal rows; on the way a sync may refuse with a documented exit code, but never exit 0 with different rows.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import duckdb

from .bench import Bench
from .checker import Problem, check
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import orders
from .recipe import MODES, PARTS, THINGS, Part, rows
from .residents import intruded, resident
from .services import PASSWORD, ZONE
from .spawn import Ended
from .truth import Source

Way = Callable[[Lab, str], Outcome]
# The exit codes of a refusal: 2 says what to change, 6 what to decide.
REFUSED = (2, 6)
STRIKES = ("", "before", "after", "during", "lost", "refused")


def changes(lab: Lab) -> Iterator[Outcome]:
    """Every kind of change in random order, round after round with new random numbers."""
    ways: tuple[tuple[str, Way], ...] = (
        *((f"recipe, {mode}", _walk) for mode in MODES),
        *((f"target, {what}", _tampered) for what in TAMPERED),
        *((f"privileges, {what}", _privileges) for what in PRIVILEGES),
        ("time zone", _zone),
        ("unix seconds", _seconds),
        ("resident snapshots", resident),
        ("another user", intruded),
    )
    for turn in range(1 if lab.quick else 100):
        for name, way in lab.dice("changes", turn).sample(ways, len(ways)):
            own = f"changes:{name}/{turn}"
            if lab.wanted(own):
                yield way(lab, own)


def _what(own: str) -> str:
    """`changes:target, emptied/3` → `emptied`."""
    return own.rpartition("/")[0].partition(", ")[2]


@dataclass
class Changing:
    """One experiment: a synced table, and what is done to it."""

    bench: Bench
    source: Source
    outcome: Outcome
    dice: Random
    options: dict[str, Any] = field(default_factory=dict)
    user: str = "lab"
    by_files: bool = True  # whether the target's rows can still be derived from the files

    def begin(self, *statements: str) -> None:
        """Create the table and sync it once."""
        self.sql(*statements)
        server = self.bench.services.server
        self.bench.clear(
            self.source.database,
            source={"url": server.url(self.source.database, self.user, PASSWORD)},
            defaults={"settle_seconds": 0.1, "slice_rows": self.dice.choice([7, 20, 1000])},
        )
        self.configure()
        note(self.outcome, self.bench.run("sync", "-t", self.source.name), (0,))
        self.outcome.strikes = 0

    def sql(self, *statements: str) -> None:
        self.bench.services.server.execute(*statements, database=self.source.database)

    def configure(self, **options: Any) -> None:
        """Change the table's options; None removes one."""
        self.options = {k: v for k, v in {**self.options, **options}.items() if v is not None}
        self.bench.config["tables"] = {self.source.name: self.options}
        self.bench.write()

    def in_target(self, *statements: str) -> None:
        """Run statements in the warehouse behind the product's back."""
        if self.bench.stack == "redshift":
            schema = self.bench.config["warehouse"]["schema"]
            self.bench.services.redshift.execute(f"SET search_path TO {schema}", *statements)
            return
        with duckdb.connect(str(self.bench.warehouse)) as link:
            for statement in statements:
                link.execute(statement)

    def struck(self, *more: int) -> None:
        """Run a sync that may be struck at one of its steps, and that may refuse."""
        when = self.dice.choice(STRIKES)
        plan: dict[str, Any] = (
            {"at": self.dice.randint(1, 25), "when": when, "delay": self.dice.uniform(0, 0.004)}
            if when
            else {}
        )
        ended = self.bench.run("sync", "-t", self.source.name, plan=plan)
        steps = self.bench.steps()
        if hit := bool(plan) and len(steps) >= plan["at"]:
            self.outcome.step = steps[plan["at"] - 1]
        self.outcome.strikes += 1  # the change is a fault, too
        lost = hit and when in ("lost", "refused")
        note(self.outcome, ended, (0, *REFUSED, *more, *((4, 5) if lost else (-9,) if hit else ())))
        self.outcome.code = ended.code
        if ended.code == -9:
            watermark_known(self.bench, self.source, self.outcome)

    def follow(self) -> list[str]:
        """Sync until it succeeds, following the hint of each refusal; returns the refusals."""
        refused: list[str] = []
        for _ in range(4):
            ended = note(
                self.outcome, self.bench.run("sync", "-t", self.source.name, "--json"), (0, *REFUSED)
            )
            if ended.code not in REFUSED:
                return refused
            error = ended.json["tables"][0]["error"]
            refused.append(f"{error['message']} ({error['hint']})")
            self._obey(error["hint"] or "")
        self.outcome.problems.append(Problem("code", f"refused again and again: {' | '.join(refused)}"[:900]))
        return refused

    def _obey(self, hint: str) -> None:
        whole = re.search(r"run: (ALTER TABLE .*)$", hint)
        if statement := whole or re.search(r"(ALTER TABLE (?:\([^)]*\)|[^,;(])+)", hint):
            self.in_target(statement[1].strip())
            self._run("verify", "-t", self.source.name, "--repair", allowed=(0, 6))
        elif command := re.search(
            r"floodmark ((?:watermark|verify) [^;,:]+?)(?: (?:reads|goes|loads|says)\b|[;,:]|$)", hint
        ):
            self._run(*shlex.split(command[1]), allowed=(0,))
        else:
            self.outcome.problems.append(Problem("said", f"no command in the hint: {hint}"))

    def _run(self, *command: str, allowed: tuple[int, ...]) -> Ended:
        return note(self.outcome, self.bench.run(*command), allowed)

    def equal(self, refused: list[str]) -> None:
        """Check that rows are equal now, whatever was refused on the way."""
        found = check(self.bench, self.source, by_files=self.by_files)
        if found and refused:
            found.append(Problem(found[0].kind, f"after: {' | '.join(refused)}"[:600]))
        self.outcome.problems += found

    def end(self) -> None:
        settle(self.bench, self.source, self.outcome, by_files=self.by_files)
        self.sql(f"DROP DATABASE {self.source.database}")


# ---------------------------------------------------------------- the recipe


def _walk(lab: Lab, own: str) -> Outcome:
    """Two to four parts of the recipe change, one after the other, with rows changing at the same time."""
    began, dice, mode = time.monotonic(), lab.dice(own), _what(own)
    bench = lab.bench("folder" if lab.quick else dice.choice(["folder", "folder", "s3", "redshift"]))
    keyed = mode != "keyless"
    source = Source(bench.services.database(), "things", key="id" if keyed else None, cursor="at")
    outcome = Outcome("changes", f"sync, {mode} [{bench.stack}]", "", "no kill", own)
    table = Changing(bench, source, outcome, dice, dict(MODES[mode]), by_files=False)
    table.begin(THINGS.format(key=" PRIMARY KEY" if keyed else ""), rows(1, 30))
    fit = [name for name, part in PARTS.items() if mode in part.modes]
    names = dice.sample(fit, dice.randint(2, 4))
    outcome.fault = names[0] if len(names) == 1 else "recipe changed"
    told = []
    for number, name in enumerate(names):
        _change(table, PARTS[name], number)
        if keyed:
            table.sql(f"UPDATE things SET a = a + 100 WHERE id % 10 = {dice.randint(0, 9)}")
        table.sql(rows(1000 + 10 * number, 1003 + 10 * number, now=True))
        table.struck()
        told.append(name)
        table.equal(table.follow())
        if outcome.problems:
            outcome.problems.append(Problem(outcome.problems[0].kind, f"the walk: {' | '.join(told)}"))
            return timed(outcome, began)
    table.end()
    return timed(outcome, began)


def _change(table: Changing, part: Part, number: int) -> None:
    options = {k: v.format(n=number) if isinstance(v, str) else v for k, v in part.options.items()}
    table.sql(*(s.format(n=number) for s in part.at_source))
    table.configure(**options)
    source = table.source
    if "where" in options:
        source = replace(source, where=options["where"] or "TRUE")
    if "target" in options:
        source = replace(source, target=options["target"])
    if "exclude" in options:
        source = replace(source, without=frozenset(options["exclude"] or ()))
    table.source = source


# ---------------------------------------------------------------- the target


TAMPERED = {
    "a column dropped": ("ALTER TABLE orders DROP COLUMN note",),
    "emptied": ("DELETE FROM orders",),
    "dropped": ("DROP TABLE orders",),
    "rows deleted": ("DELETE FROM orders WHERE id % 4 = 0",),
    "rows added": ("INSERT INTO orders (id, amount) VALUES (-1, 0), (-2, 0)",),
    "rows changed": ("UPDATE orders SET note = 'by hand' WHERE id % 9 = 0",),
}
# Those that a sync notices (it counts rows in DuckDB only); the others are for `verify` to find.
NOTICED = ("a column dropped", "emptied", "dropped")
COUNTED = ("rows deleted", "rows added")


def _tampered(lab: Lab, own: str) -> Outcome:
    """The target is changed by hand: a sync refuses, or `verify` finds it; the hint leads to equal rows."""
    began, dice, what = time.monotonic(), lab.dice(own), _what(own)
    bench = lab.bench("folder" if lab.quick else dice.choice(["folder", "s3", "redshift"]))
    noticed = NOTICED if bench.stack == "redshift" else (*NOTICED, *COUNTED)
    outcome = Outcome("changes", f"sync [{bench.stack}]", f"target: {what}", "no kill", own)
    table = Changing(bench, Source(bench.services.database(), "orders"), outcome, dice, by_files=False)
    table.begin(*orders(60))
    table.in_target(*TAMPERED[what])
    table.sql(
        "UPDATE orders SET amount = amount + 1 WHERE id % 5 = 0",
        "INSERT INTO orders (amount) VALUES (1), (2)",
    )
    table.struck()
    refused = table.follow()
    if what in noticed and not refused:
        outcome.problems.append(Problem("lost", f"nobody noticed: {what}"))
    if what not in noticed and not refused:
        found = note(outcome, bench.run("verify", "-t", table.source.name), (7,))
        outcome.said.append((found.code or 0, "verify finds it"))
    note(outcome, bench.run("verify", "-t", table.source.name, "--repair"), (0,))
    table.equal(refused)
    table.end()
    return timed(outcome, began)


# ---------------------------------------------------------------- privileges


PRIVILEGES = {
    "the schema's": "SELECT ON `{d}`.*",
    "all": "ALL ON *.*",
}


def _privileges(lab: Lab, own: str) -> Outcome:
    """The user loses a privilege and gets it back: meanwhile syncs exit with 2, and nothing is lost."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    database, user, server = bench.services.database(), f"u_{secrets.token_hex(4)}", bench.services.server
    outcome = Outcome("changes", "sync [folder]", f"privileges revoked: {_what(own)}", "no kill", own)
    granted = (f"SELECT ON `{database}`.*", *(("PROCESS ON *.*",) if dice.random() < 0.5 else ()))
    server.create_user(user, PASSWORD, *granted)
    table = Changing(bench, Source(database, "orders"), outcome, dice, user=user)
    table.begin(*orders(60))
    for _ in range(dice.randint(1, 2)):
        if _what(own) == "all":
            server.execute(f"REVOKE ALL, GRANT OPTION FROM `{user}`@'%'")
        else:
            server.execute(f"REVOKE SELECT ON `{database}`.* FROM `{user}`@'%'")
        table.sql(
            "UPDATE orders SET note = 'meanwhile' WHERE id % 3 = 0", "INSERT INTO orders (amount) VALUES (1)"
        )
        asked = dice.choice([("-t", table.source.name), ("--all",)])
        ended = note(outcome, bench.run("sync", *asked), (2,))
        if ended.code == 0:
            outcome.problems.append(Problem("lost", f"sync {' '.join(asked)} says that all is well"))
        server.execute(*(f"GRANT {grant} TO `{user}`@'%'" for grant in granted))
        table.struck()
        table.equal(table.follow())
    table.end()
    server.execute(f"DROP USER `{user}`@'%'")
    return timed(outcome, began)


# ---------------------------------------------------------------- clocks of the source


def _zone(lab: Lab, own: str) -> Outcome:
    """The server moves to another time zone and back; older connections keep writing in the old one."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    server, source = bench.services.server, Source(bench.services.database(), "orders")
    outcome = Outcome("changes", "sync [folder]", "the server's time zone changes", "no kill", own)
    table = Changing(bench, source, outcome, dice)
    kind = dice.choice(["DATETIME", "DATETIME(3)", "TIMESTAMP"])
    table.begin(*orders(40, kind), "INSERT INTO orders (amount, note) VALUES (1, 'now')")
    outcome.scenario = f"sync, {kind} [folder]"
    write = "INSERT INTO orders (amount, note) SELECT seq, 'new' FROM seq_1_to_{n}"
    try:
        with closing(server.connect(source.database, autocommit=True)) as pooled:
            for zone in [
                *dice.sample(["+00:00", "+08:00", "-08:00", "+13:00", "-05:30"], dice.randint(1, 2)),
                ZONE,
            ]:
                server.execute(f"SET GLOBAL time_zone = '{zone}'")
                table.sql(
                    "UPDATE orders SET note = 'moved' WHERE id % 7 = 0 AND id % 3 = 0", write.format(n=3)
                )
                table.struck()
                if dice.random() < 0.7:
                    pooled.cursor().execute("INSERT INTO orders (amount, note) VALUES (1, 'pooled')")
                    pooled.cursor().execute("UPDATE orders SET note = 'pooled, too' WHERE id = 14")
                table.equal(table.follow())
                if outcome.problems:
                    break
    finally:
        server.execute(f"SET GLOBAL time_zone = '{ZONE}'")
    table.end()
    return timed(outcome, began)


SECONDS = """CREATE TABLE ticks (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20), at BIGINT NOT NULL, KEY (at))"""


def _seconds(lab: Lab, own: str) -> Outcome:
    """Cursors from an application, in seconds or milliseconds since 1970: some late, some within one second."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    unit = dice.choice([1, 1000])
    source = Source(bench.services.database(), "ticks", cursor="at")
    outcome = Outcome(
        "changes", f"sync, {'ms' if unit > 1 else 's'} since 1970 [folder]", "late writers", "no kill", own
    )
    table = Changing(bench, source, outcome, dice, {"cursor": "at", "mode": "upsert"})
    now = "FLOOR(UNIX_TIMESTAMP(SYSDATE(3)))"
    write = f"INSERT INTO ticks (note, at) SELECT 'n', {now} * {unit} - {60 * unit} FROM seq_1_to_20"
    table.begin(SECONDS, write, f"INSERT INTO ticks (note, at) VALUES ('n', {now} * {unit})")
    server = bench.services.server
    for number in range(3):
        # Updated within the same second: the newest rows keep their cursor.
        newest = "SELECT id FROM ticks ORDER BY at DESC, id DESC LIMIT 2"
        ids = ", ".join(str(row[0]) for row in server.execute(newest, database=source.database))
        with closing(server.connect(source.database)) as late:
            ago = dice.randint(0, 30) * unit
            late.cursor().execute(f"INSERT INTO ticks (note, at) VALUES ('late', {now} * {unit} - {ago})")
            table.sql(
                *[f"INSERT INTO ticks (note, at) VALUES ('n', {now} * {unit})"] * dice.randint(1, 5),
                f"UPDATE ticks SET note = 's{number}' WHERE id IN ({ids})",
            )
            table.struck()
            note(outcome, bench.run("sync", "-t", source.name), (0,))
            late.commit()
        table.struck()
        table.equal(table.follow())
        if outcome.problems:
            break
    table.end()
    return timed(outcome, began)
