"""Group 6: random histories. Source changes, schema changes, commands and faults, all derived from one number.

After every command the log, the files, the ledger and the target must agree; after every sync that ran to its end,
the warehouse must hold the source's rows. A problem is reported with its history, which its number replays. The
model knows what is promised: deleted rows may stay, rows may be late, none may be lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.orders import create_orders, fill_orders

from .bench import Bench
from .checker import (
    Problem,
    check,
    check_document,
    check_files,
    check_fold,
    check_ledger,
    check_log,
    check_said,
    cleaned,
    reached,
)
from .lab import Lab, Outcome, failures, note, timed, watermark_known
from .truth import Source, commits, ledger, warehouse_columns, warehouse_rows
from .writers import KINDS as WRITERS
from .writers import Slow

# How many of the newest rows are never deleted or moved: without them, a source looks set back.
NEWEST = 25
LONG = WRITERS[0]
KINDS = ("DATETIME", "DATETIME(3)", "TIMESTAMP(6)")


def histories(lab: Lab) -> Iterator[Outcome]:
    """One history after the other, numbered from the seed."""
    number = lab.seed
    while True:
        own = f"histories:{number}"
        if lab.only is not None and lab.only.startswith("histories:"):
            number = int(lab.only.partition(":")[2])
            yield History(lab, number).run()
            return
        if not lab.wanted(own):
            return
        yield History(lab, number).run()
        number += 1


@dataclass
class History:
    """One history, and its state so far."""

    lab: Lab
    number: int
    told: list[str] = field(default_factory=list)
    extra: set[Any] = field(default_factory=set)  # keys that the source once had
    columns: int = 0
    slow: Slow | None = None

    def run(self) -> Outcome:
        """Play it from an empty table to the final check."""
        began = time.monotonic()
        self.dice = random.Random(f"history {self.number}")
        stack = "folder" if self.lab.quick else self.dice.choice(["folder"] * 6 + ["s3"] * 2 + ["redshift"])
        self.bench: Bench = self.lab.bench(stack)
        self.outcome = Outcome(
            "histories",
            f"history [{stack}]",
            "kills and lost answers",
            "any step",
            f"histories:{self.number}",
        )
        self.outcome.strikes = 0
        self._begin()
        for _ in range(self.dice.randint(8, 14)):
            self._change()
            self._command()
            if self.outcome.problems:
                break
        else:
            self._join()
            self._last()
        self._join()
        self.outcome.said += failures(self.bench.printed)
        if self.outcome.problems:
            story = " | ".join(self.told)
            self.outcome.problems.append(Problem(self.outcome.problems[0].kind, f"the history: {story}"))
        return timed(self.outcome, began)

    # the source

    def _begin(self) -> None:
        dice = self.dice
        self.kind = dice.choice(KINDS)
        self.nullable = dice.random() < 0.4
        digits = self.kind[self.kind.find("(") :] if "(" in self.kind else ""
        self.now = f"CURRENT_TIMESTAMP{digits}"
        database = self.bench.services.database()
        self.source = Source(database, "orders")
        to_a_second, rows = dice.randint(1, 60), dice.randint(1, 200)
        self._sql(
            create_orders("amount DECIMAL(12,2), note VARCHAR(20)", self.kind, null=self.nullable),
            fill_orders(rows, f"(seq DIV {to_a_second}) SECOND", amount="seq / 10", note="CONCAT('n', seq)"),
        )
        self.bench.clear(
            database, defaults={"settle_seconds": 0.1, "slice_rows": dice.choice([7, 20, 50, 100, 1000])}
        )
        null = "NULL" if self.nullable else "NOT NULL"
        self._tell(f"{self.kind} {null}, slice_rows {self.bench.config['defaults']['slice_rows']}")

    def _sql(self, *statements: str) -> None:
        self.bench.services.server.execute(*statements, database=self.source.database)

    def _ids(self, count: int, old: bool = False) -> list[int]:
        """Some random keys; with `old`, none of the newest rows'."""
        hide = f"LIMIT 1000000 OFFSET {NEWEST}" if old else "LIMIT 1000000"
        rows = self.bench.services.server.execute(
            f"SELECT id FROM orders ORDER BY update_at DESC, id DESC {hide}", database=self.source.database
        )
        found = sorted(row[0] for row in rows)
        return self.dice.sample(found, min(count, len(found)))

    def _change(self) -> None:
        for _ in range(self.dice.randint(0, 3)):
            name = self.dice.choices(
                [
                    "insert",
                    "update",
                    "some",
                    "delete",
                    "key",
                    "null",
                    "future",
                    "past",
                    "add",
                    "widen",
                    "slow",
                ],
                [6, 5, 4, 2, 2, 2, 1, 1, 1, 1, 2],
            )[0]
            getattr(self, f"_do_{name}")()

    def _do_insert(self) -> None:
        count = self.dice.randint(1, 40)
        self._sql(f"INSERT INTO orders (amount, note) SELECT seq, 'i{len(self.told)}' FROM seq_1_to_{count}")
        self._tell(f"insert {count}")

    def _do_update(self) -> None:
        part = self.dice.randint(2, 6)
        self._sql(f"UPDATE orders SET note = 'u{len(self.told)}' WHERE id % {part} = 0")
        self._tell(f"update every {part}th")

    def _do_some(self) -> None:
        ids = self._ids(self.dice.randint(1, 5))
        for one in ids:
            self._sql(f"UPDATE orders SET amount = {self.dice.randint(0, 999)}, note = NULL WHERE id = {one}")
        self._tell(f"update {ids}")

    def _do_delete(self) -> None:
        for one in self._ids(self.dice.randint(1, 4), old=True):
            self._sql(f"DELETE FROM orders WHERE id = {one}")
            self.extra.add(one)
            self._tell(f"delete {one}")

    def _do_key(self) -> None:
        for one in self._ids(1, old=True):
            other = one + 100000 * (1 + len(self.told))  # never an existing key
            self._sql(f"UPDATE orders SET id = {other}, note = 'moved' WHERE id = {one}")
            self.extra.add(one)
            self._tell(f"key {one} becomes {other}")

    def _do_null(self) -> None:
        for one in self._ids(1, old=True) if self.nullable else ():
            self._sql(f"UPDATE orders SET update_at = NULL, note = 'null' WHERE id = {one}")
            self._tell(f"cursor of {one} is NULL")

    def _do_future(self) -> None:
        for one in self._ids(1, old=True):
            self._sql(
                f"UPDATE orders SET update_at = '2036-05-05 05:05:05', note = 'future' WHERE id = {one}"
            )
            self._tell(f"cursor of {one} is in the future")

    def _do_past(self) -> None:
        self._sql(f"UPDATE orders SET update_at = {self.now}, note = 'now' WHERE update_at > '2036-01-01'")
        self._tell("cursors in the future are set right")

    def _do_add(self) -> None:
        if self.columns < 2:
            self.columns += 1
            default = self.dice.choice(["NULL", "NOT NULL DEFAULT 7"])
            self._sql(f"ALTER TABLE orders ADD COLUMN extra_{self.columns} INT {default}")
            self._sql(f"UPDATE orders SET extra_{self.columns} = id WHERE id % 4 = 1")
            self._tell("column added")

    def _do_widen(self) -> None:
        self._sql(f"ALTER TABLE orders MODIFY COLUMN note VARCHAR({20 + 10 * len(self.told)})")
        self._tell("column widened")

    def _do_slow(self) -> None:
        """Start a statement before others that commits after them."""
        self._join()
        self.slow = Slow(self.bench, self.source.database, LONG)
        time.sleep(0.1 if "(" in self.kind else 1.1)
        self._sql("INSERT INTO orders (amount, note) VALUES (2, 'quick')")
        self._tell("a slow insert begins, a quick one overtakes it")

    def _join(self) -> None:
        if self.slow is not None:
            self.slow.let_go()
            self.slow = None

    # the commands

    def _command(self) -> None:
        dice, name = self.dice, self.source.name
        log = commits(self.bench, name)
        here = reached(log)
        choices: list[tuple[int, tuple[str, ...]]] = [
            (8, ("sync", "-t", name)),
            (2, ("sync", "-t", name, "-s", dice.choice(["sequential", "intra-table"]))),
            (4, ("sync", "-t", name, "--limit", str(dice.randint(1, 60)))),
            (1, ("sync", "-t", name, "--limit", "9", "--max-chunks", "3")),
            (3, ("sync", "-t", name, "--backup-only")),
            (3, ("sync", "-t", name, "--redshift-only")),
            (1, ("sync", "-t", name, "--redshift-only", "--limit", str(dice.randint(1, 60)))),
            (1, ("watermark", "validate", "-t", name, "--repair")),
        ]
        if log:
            choices += [
                (1, ("verify", "-t", name, "--repair")),
                (1, ("s3clean", "clean", "-t", name, "--force")),
                (1, ("s3clean", "orphans", "-t", name, "--force")),
                (1, ("watermark", "reset", "-t", name)),
                (1, ("watermark", "reset", "-t", name, "--redshift-only")),
                (1, ("watermark", "reset", "-t", name, "--mysql-only")),
            ]
        if here is not None:
            back = dice.choice(["2025-03-01 00:00:00", "2025-03-01 00:00:01", str(here[0])[:19]])
            # Without the id, the other rows with that timestamp would be skipped, as the command warns.
            among = ("--id", str(here[1])) if len(here) > 1 and back == str(here[0])[:19] else ()
            choices.append((2, ("watermark", "set", "-t", name, "--timestamp", back, *among)))
            earlier = [c.n for c in log if (there := reached(log[: c.n + 1])) is not None and there <= here]
            if earlier:
                choices.append(
                    (2, ("watermark", "restore", "-t", name, "--commit", str(dice.choice(earlier))))
                )
        command = dice.choices([c for _, c in choices], [w for w, _ in choices])[0]
        when = dice.choice(["", "", "before", "after", "during", "lost", "refused"])
        plan = {"at": dice.randint(1, 30), "when": when, "delay": dice.uniform(0, 0.004)} if when else {}
        self._run(command, plan)

    def _run(self, command: tuple[str, ...], plan: dict[str, Any]) -> None:
        bench, outcome = self.bench, self.outcome
        lacks = command[0] == "verify" and (
            self._lacks_columns() or reached(commits(bench, self.source.name)) is None
        )
        ended = bench.run(*command, plan=plan)
        steps = bench.steps()
        struck = bool(plan) and len(steps) >= plan["at"]
        told = " ".join(command[2:]) if command[0] == "sync" else " ".join(command[1:2] + command[4:])
        self._tell(f"{command[0]} {told}" + (f" ({plan['when']} {steps[plan['at'] - 1]})" if struck else ""))
        allowed = [0, 7] if "validate" in command else [0]
        if (
            "reset" in command
            and "--redshift-only" in command
            and cleaned(commits(bench, self.source.name))[0]
        ):
            allowed.append(6)  # files that it would have to reload were removed
        if lacks:
            allowed.append(6)  # the run that would have added the column was killed, or there is no watermark
        if struck:
            outcome.strikes += 1
            allowed += [4, 5] if plan["when"] in ("lost", "refused") else [-9]
        self._tell(f"= {ended.code}")
        note(outcome, ended, allowed)
        if struck and ended.code == -9:
            watermark_known(bench, self.source, outcome)
        log = commits(bench, self.source.name)
        loaded = ledger(bench, self.source.name)
        outcome.problems += check_log(log) + check_files(bench, log) + check_ledger(log, loaded, pending=True)
        target = warehouse_rows(bench, self.source.table)
        outcome.problems += check_fold(bench, self.source, log, loaded, target)
        whole = command[0] == "sync" and not {"--limit", "--backup-only", "--redshift-only"} & set(command)
        if whole and ended.code == 0 and self.slow is None and "lost" not in told:
            outcome.problems += check(bench, replace(self.source, extra=frozenset(self.extra)))
        self._join()

    def _lacks_columns(self) -> bool:
        """Whether the newest claim describes columns that the target does not have."""
        described = [c.body["table"] for c in commits(self.bench, self.source.name) if c.body.get("table")]
        there = warehouse_columns(self.bench, self.source.table)
        return bool(described and there) and any(
            column["name"].lower() not in there for column in described[-1]["columns"]
        )

    def _last(self) -> None:
        bench, outcome, name = self.bench, self.outcome, self.source.name
        last = note(outcome, bench.run("sync", "-t", name, "--json"), (0,))
        outcome.problems += check(bench, replace(self.source, extra=frozenset(self.extra)))
        if last.code == 0:
            outcome.problems += check_document(bench, self.source, last.json["tables"][0]["watermark"])
        outcome.problems += check_said(bench, bench.printed)
        self._sql(f"DROP DATABASE {self.source.database}")

    def _tell(self, text: str) -> None:
        self.told.append(text)
