"""A storm on tables that follow the binary log: writers, schema changes and an operator who works on the log itself.

Everything is seeded as far as threads allow. Statements may fail (deadlocks, duplicate keys, columns that were just dropped); those
that don't are counted. `differences` compares source and target without a line of the product's code.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pymysql

from floodmark.setup.services.databases import DatabaseServer

_ROOMS = (
    "abc",
    "ABC",
    "Abc",
    "äbc",
    "abc ",
    "dèf",
    "def",
    "DEF",
    "def  ",
    "straße",
    "strasse",
    "ß",
    "ss",
    "",
    " ",
    "a\tb",
    "o'x",
    "ﬁ",
    "fi",
    "é",
    "e\u0301",
)


@dataclass(frozen=True)
class Shape:
    """A table of the storm: its key, and how a random key is made."""

    name: str
    create: str
    key: tuple[str, ...]
    value: Callable[[Random], tuple[Any, ...]]


def _number(dice: Random) -> tuple[Any, ...]:
    return (dice.randint(-5, 400),)


def _word(dice: Random) -> tuple[Any, ...]:
    word = dice.choice(_ROOMS)
    return (
        word if dice.random() < 0.5 else f"{word}{dice.randint(1, 60)}{dice.choice(('', ' ', 'É', 'e'))}",
    )


def _pair(dice: Random) -> tuple[Any, ...]:
    return (dice.randint(1, 9), *_word(dice))


def _moment(dice: Random) -> tuple[Any, ...]:
    return (
        datetime(2025, 3, 30, 1)
        + timedelta(seconds=dice.randint(0, 9000), microseconds=dice.choice((0, 1, 500000))),
    )


def _bytes(dice: Random) -> tuple[Any, ...]:
    return (bytes(dice.choice((0, 1, 32, 255, 65)) for _ in range(dice.randint(1, 6))),)


def shapes(mariadb: bool) -> tuple[Shape, ...]:
    """The tables, all of them small, so that keys meet."""
    ai = "utf8mb4_unicode_520_ci" if mariadb else "utf8mb4_0900_ai_ci"
    rest = "v INT, note VARCHAR(60)"
    text = "name VARCHAR(30) CHARACTER SET utf8mb4 COLLATE {} NOT NULL"
    return (
        Shape("ints", f"id INT PRIMARY KEY, {rest}", ("id",), _number),
        Shape("ci", f"{text.format('utf8mb4_general_ci')} PRIMARY KEY, {rest}", ("name",), _word),
        Shape("ai", f"{text.format(ai)} PRIMARY KEY, {rest}", ("name",), _word),
        Shape(
            "pairs",
            f"a INT, {text.format('utf8mb4_general_ci')}, {rest}, PRIMARY KEY (a, name)",
            ("a", "name"),
            _pair,
        ),
        Shape(
            "prices",
            f"p DECIMAL(12,3) PRIMARY KEY, {rest}",
            ("p",),
            lambda d: (Decimal(d.randint(-900, 900)) / 8,),
        ),
        Shape("bins", f"k VARBINARY(8) PRIMARY KEY, {rest}", ("k",), _bytes),
        Shape("fixed", f"k BINARY(8) PRIMARY KEY, {rest}", ("k",), _bytes),
        Shape("moments", f"t DATETIME(6) PRIMARY KEY, {rest}", ("t",), _moment),
        Shape(
            "uniq",
            f"{rest}, u BIGINT UNSIGNED NOT NULL, UNIQUE KEY (u)",
            ("u",),
            lambda d: (d.randint(0, 300),),
        ),
        Shape("few", f"id INT PRIMARY KEY, {rest}", ("id",), _number),
        Shape("soft", f"id INT PRIMARY KEY, {rest}", ("id",), _number),
        Shape("keyless", f"id INT, {rest}", ("id",), _number),
        Shape("parts", f"id INT PRIMARY KEY, {rest}", ("id",), _number),
    )


PARTITIONED = (
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200), "
    "PARTITION p2 VALUES LESS THAN MAXVALUE)"
)
WHERE = "v < 500"
OPTIONS: dict[str, dict[str, Any]] = {"few": {"where": WHERE}, "soft": {"deletes": "soft"}}


class Storm:
    """Writers on one database, until they are told to stop."""

    def __init__(self, server: DatabaseServer, database: str, seed: int, calm: tuple[str, ...] = ()) -> None:
        """`calm`: what doesn't happen (ddl, statement, log, restart, reset, xa, image)."""
        self.server, self.database, self.seed, self.calm = server, database, seed, calm
        self.mariadb = server.name == "mariadb"
        self.shapes = shapes(self.mariadb)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.said: list[str] = []
        self._stop = threading.Event()
        self._down = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count(1)

    def create(self) -> None:
        """The tables, with some rows."""
        made = []
        for one in self.shapes:
            partitions = PARTITIONED if one.name == "parts" else ""
            made.append(f"CREATE TABLE {one.name} ({one.create}) ENGINE=InnoDB {partitions}")
        made.append(f"CREATE TABLE parts_x ({self.shapes[-1].create}) ENGINE=InnoDB")
        self.server.execute(*made, database=self.database)
        dice = Random(self.seed)
        with contextlib.closing(self._connect()) as link:
            for one in self.shapes:
                for _ in range(60):
                    self._insert(link.cursor(), one, dice)
            link.commit()

    def start(self, writers: int = 3) -> None:
        """Begins."""
        jobs = [*(self._write for _ in range(writers))]
        jobs += [self._xa] * ("xa" not in self.calm) + [self._ddl] * ("ddl" not in self.calm)
        jobs += [self._operate] * ("log" not in self.calm)
        for number, job in enumerate(jobs):
            dice = Random(f"{self.seed}/{number}")
            self._threads.append(threading.Thread(target=self._forever, args=(job, dice), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ends it, and every prepared transaction."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        dice = Random(f"{self.seed}/end")
        for *_, data in self.server.execute("XA RECOVER"):
            how = dice.choice(("COMMIT", "ROLLBACK"))
            with contextlib.suppress(pymysql.MySQLError):
                self.server.execute(f"XA {how} '{_text(data)}'")

    # ---------------------------------------------------------------- writers

    def _connect(self, **options: Any) -> Any:
        return self.server.connect(self.database, read_timeout=60, **options)

    def _forever(self, job: Callable[[Any, Random], None], dice: Random) -> None:
        while not self._stop.is_set():
            try:
                link = self._connect()
            except (pymysql.MySQLError, OSError):
                time.sleep(0.2)
                continue
            try:
                with contextlib.closing(link):
                    link.cursor().execute(
                        "SET SESSION innodb_lock_wait_timeout = 2, SESSION lock_wait_timeout = 5"
                    )
                    for _ in range(dice.randint(10, 60)):
                        if self._stop.is_set():
                            break
                        job(link, dice)
            except (pymysql.MySQLError, OSError) as error:
                self.failed[str(error.args[:1])] += 1
                time.sleep(0.05)
            except Exception as error:  # a bug of the storm
                self.said.append(f"{type(error).__name__}: {error}")
                time.sleep(0.5)

    def _try(self, cursor: Any, kind: str, statement: str, values: tuple[Any, ...] = ()) -> bool:
        try:
            cursor.execute(statement, values or None)
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            if error.args[0] in (2006, 2013, 0):
                raise
            self.failed[f"{kind} {error.args[0]}"] += 1
            return False
        except pymysql.MySQLError as error:
            self.failed[f"{kind} {error.args[0]}"] += 1
            return False
        self.done[kind] += 1
        return True

    def _insert(self, cursor: Any, one: Shape, dice: Random) -> None:
        names = ", ".join((*one.key, "v", "note"))
        verb = dice.choice(("INSERT", "INSERT", "REPLACE", "INSERT IGNORE"))
        values = (*one.value(dice), dice.randint(0, 700), self._note(dice))
        self._try(
            cursor,
            "insert",
            f"{verb} INTO {one.name} ({names}) VALUES ({', '.join(['%s'] * len(values))})",
            values,
        )

    def _note(self, dice: Random) -> str | None:
        return dice.choice((None, f"n{next(self._numbers)}", f"é{next(self._numbers)}"))

    def _change(self, cursor: Any, one: Shape, dice: Random) -> None:
        matches = " AND ".join(f"{name} = %s" for name in one.key)
        sets = ", ".join(f"{name} = %s" for name in one.key)
        what = dice.random()
        if what < 0.35:
            self._insert(cursor, one, dice)
        elif what < 0.55:
            change = (dice.randint(0, 700), self._note(dice), *one.value(dice))
            self._try(cursor, "update", f"UPDATE {one.name} SET v = %s, note = %s WHERE {matches}", change)
        elif what < 0.72:
            self._try(cursor, "delete", f"DELETE FROM {one.name} WHERE {matches}", one.value(dice))
        elif what < 0.87:
            self._try(
                cursor,
                "key",
                f"UPDATE {one.name} SET {sets} WHERE {matches}",
                (*one.value(dice), *one.value(dice)),
            )
        elif what < 0.93:
            part = dice.randint(0, 20)
            self._try(
                cursor,
                "many",
                f"UPDATE {one.name} SET v = MOD(IFNULL(v, 0) + 7, 700) WHERE MOD(IFNULL(v, 3), 21) = {part}",
            )
        elif what < 0.97:
            column = one.key[-1]
            if one.key[-1] == "name":
                how = dice.choice(("UPPER({})", "LOWER({})", "CONCAT({}, ' ')", "TRIM({})")).format(column)
                self._try(
                    cursor, "case", f"UPDATE {one.name} SET {column} = {how} WHERE {matches}", one.value(dice)
                )
        else:
            self._try(
                cursor,
                "many",
                f"DELETE FROM {one.name} WHERE MOD(IFNULL(v, 3), 37) = {dice.randint(0, 36)} LIMIT 5",
            )

    def _write(self, link: Any, dice: Random) -> None:
        """One transaction on one or several tables."""
        cursor = link.cursor()
        if "image" not in self.calm and dice.random() < 0.05:
            image = dice.choice(("FULL", "MINIMAL", "NOBLOB"))
            self._try(cursor, "image", f"SET SESSION binlog_row_image = {image}")
            if not self.mariadb:
                self._try(
                    cursor,
                    "image",
                    f"SET SESSION binlog_transaction_compression = {dice.choice(('ON', 'OFF'))}",
                )
        cursor.execute("BEGIN")
        for number in range(dice.choice((1, 1, 1, 3, 8))):
            one = dice.choice(self.shapes)
            if number and dice.random() < 0.2:
                self._try(cursor, "savepoint", "SAVEPOINT s")
                self._change(cursor, one, dice)
                if dice.random() < 0.5:
                    self._try(cursor, "savepoint", "ROLLBACK TO SAVEPOINT s")
            else:
                self._change(cursor, one, dice)
        if dice.random() < 0.15:
            link.rollback()
            self.done["rollback"] += 1
        else:
            link.commit()
            self.done["commit"] += 1
        time.sleep(dice.random() * 0.03)

    def _xa(self, link: Any, dice: Random) -> None:
        """Prepares a transaction, and ends one of those that were prepared some time ago."""
        xid = f"x{next(self._numbers)}"
        cursor = link.cursor()
        if self._try(cursor, "xa", f"XA START '{xid}'"):
            for _ in range(dice.randint(1, 3)):
                self._change(cursor, dice.choice(self.shapes[:11]), dice)
            if not (
                self._try(cursor, "xa", f"XA END '{xid}'") and self._try(cursor, "xa", f"XA PREPARE '{xid}'")
            ):
                self._try(cursor, "xa", f"XA ROLLBACK '{xid}'")
                raise OSError("xa")
        time.sleep(dice.choice((0.0, 0.1, 1.0)))
        with contextlib.closing(self._connect(autocommit=True)) as other:
            link.close()  # detached, it can be ended elsewhere
            second = other.cursor()
            second.execute("XA RECOVER")
            open_now = [_text(row[3]) for row in second.fetchall()]
            keep = dice.choice((0, 0, 1, 2))
            for text in open_now[: max(0, len(open_now) - keep)]:
                self._try(second, "xa end", f"XA {dice.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} '{text}'")
        raise OSError("next connection")

    # ---------------------------------------------------------------- schema changes

    def _ddl(self, link: Any, dice: Random) -> None:
        time.sleep(dice.random() * 0.8)
        one, cursor = dice.choice(self.shapes), link.cursor()
        name, extra = one.name, f"c{dice.randint(1, 3)}"
        place = dice.choice(("", "FIRST", "AFTER v"))
        key = one.key[-1]
        ways = [
            f"ALTER TABLE {name} ADD COLUMN {extra} INT DEFAULT {dice.randint(0, 9)} {place}",
            f"ALTER TABLE {name} ADD COLUMN {extra} VARCHAR(20) DEFAULT 'd' {place}",
            f"ALTER TABLE {name} DROP COLUMN {extra}",
            f"ALTER TABLE {name} RENAME COLUMN {extra} TO c{dice.randint(1, 3)}",
            f"ALTER TABLE {name} MODIFY COLUMN v {dice.choice(('INT', 'INT', 'BIGINT'))} {place if place != 'AFTER v' else ''}",
            f"ALTER TABLE {name} MODIFY COLUMN note VARCHAR({dice.choice((60, 70, 300))}) {place}",
            f"ALTER TABLE {name} ADD INDEX i{dice.randint(1, 4)} (v)",
            f"ALTER TABLE {name} DROP INDEX i{dice.randint(1, 4)}",
            f"ALTER TABLE {name} ENGINE=InnoDB",
            f"CREATE TABLE other{dice.randint(1, 4)} LIKE {name}",
            f"DROP TABLE IF EXISTS other{dice.randint(1, 4)}",
        ]
        if key == "name":
            collation = dice.choice(("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin"))
            ways.append(
                f"ALTER TABLE {name} MODIFY name VARCHAR({dice.choice((30, 40))}) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL"
            )
        if key == "id" and name in ("ints", "soft"):
            ways.append(f"ALTER TABLE {name} MODIFY id {dice.choice(('INT', 'BIGINT'))} NOT NULL")
        special = [self._truncate, self._swap, self._exchange]
        special += [self._statement] * ("statement" not in self.calm)
        if dice.random() < 0.75:
            self._try(cursor, "ddl", dice.choice(ways))
        else:
            dice.choice(special)(link, dice)

    def _truncate(self, link: Any, dice: Random) -> None:
        name = dice.choice(self.shapes).name
        self._try(link.cursor(), "truncate", f"TRUNCATE TABLE {name}")

    def _statement(self, link: Any, dice: Random) -> None:
        """DML that is logged as a statement."""
        cursor, name = link.cursor(), dice.choice(self.shapes).name
        if self._try(cursor, "format", "SET SESSION binlog_format = STATEMENT"):
            self._try(cursor, "statement", f"UPDATE {name} SET v = 77 WHERE v = {dice.randint(0, 700)}")
            link.commit()
            self._try(cursor, "format", "SET SESSION binlog_format = ROW")

    def _swap(self, link: Any, dice: Random) -> None:
        """As gh-ost and pt-osc end: another table takes the name, in one statement or in two."""
        cursor, name = link.cursor(), dice.choice(self.shapes[:12]).name
        self._try(cursor, "swap", f"DROP TABLE IF EXISTS _{name}_gho, _{name}_del")
        if self._try(cursor, "swap", f"CREATE TABLE _{name}_gho LIKE {name}"):
            self._try(
                cursor,
                "swap",
                f"INSERT IGNORE INTO _{name}_gho SELECT * FROM {name} WHERE v IS NULL OR MOD(v, {dice.randint(2, 40)}) > 0",
            )
            link.commit()
            self._try(cursor, "swap", f"RENAME TABLE {name} TO _{name}_del, _{name}_gho TO {name}")

    def _exchange(self, link: Any, dice: Random) -> None:
        cursor = link.cursor()
        self._try(cursor, "exchange", "DROP TABLE IF EXISTS parts_x")
        if self._try(cursor, "exchange", "CREATE TABLE parts_x LIKE parts") and self._try(
            cursor, "exchange", "ALTER TABLE parts_x REMOVE PARTITIONING"
        ):
            for _ in range(5):
                number = dice.randint(100, 199)
                self._try(
                    cursor, "exchange", f"INSERT IGNORE INTO parts_x (id, v, note) VALUES ({number}, 1, 'x')"
                )
            link.commit()
            self._try(cursor, "exchange", "ALTER TABLE parts EXCHANGE PARTITION p1 WITH TABLE parts_x")
        if dice.random() < 0.3:
            self._try(cursor, "exchange", "ALTER TABLE parts TRUNCATE PARTITION p0")

    # ---------------------------------------------------------------- the log

    def _operate(self, link: Any, dice: Random) -> None:
        time.sleep(dice.random() * 3)
        cursor, what = link.cursor(), dice.random()
        if what < 0.45:
            self._try(cursor, "flush", "FLUSH BINARY LOGS")
        elif what < 0.6:
            self._try(
                cursor, "metadata", f"SET GLOBAL binlog_row_metadata = {dice.choice(('FULL', 'MINIMAL'))}"
            )
        elif what < 0.68:
            cursor.execute("SHOW BINARY LOGS")
            self._try(cursor, "purge", f"PURGE BINARY LOGS TO '{cursor.fetchall()[-1][0]}'")
        elif what < 0.78:
            self._try(cursor, "sync_binlog", f"SET GLOBAL sync_binlog = {dice.choice((0, 1, 1))}")
        elif what < 0.84 and "reset" not in self.calm:
            self._try(cursor, "reset", "RESET MASTER" if self.mariadb else "RESET BINARY LOGS AND GTIDS")
        elif what < 0.90 and "restart" not in self.calm:
            kill = dice.random() < 0.5
            if kill:
                self.server.kill()
                self.server.start()
            else:
                self.server.restart()
            self.done["killed server" if kill else "restart"] += 1
            raise OSError("restarted")


# ---------------------------------------------------------------- comparison


def differences(server: DatabaseServer, database: str, warehouse: Path, mariadb: bool) -> list[str]:
    """What differs between source and target, row by row, in words."""
    found = []
    with duckdb.connect(str(warehouse), read_only=True) as lake:
        lake.execute("SET TimeZone = 'UTC'")
        for one in shapes(mariadb):
            where = f"WHERE {WHERE}" if one.name == "few" else ""
            names = [
                row[0]
                for row in server.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = "
                    f"'{database}' AND table_name = '{one.name}' ORDER BY ordinal_position"
                )
            ]
            there = [row[0] for row in lake.execute(f"DESCRIBE {one.name}").fetchall()]
            if missing := [name for name in names if name.lower() not in there]:
                found.append(f"{one.name}: the target lacks {missing}")
                continue
            columns = ", ".join(names)
            mine = Counter(
                map(_plain, server.execute(f"SELECT {columns} FROM {one.name} {where}", database=database))
            )
            alive = "WHERE _deleted_at IS NULL" if "_deleted_at" in there else ""
            theirs = Counter(
                map(_plain, lake.execute(f"SELECT {columns} FROM {one.name} {alive}").fetchall())
            )
            if mine != theirs:
                found.append(
                    f"{one.name} {columns}: {sum(mine.values())} rows and {sum(theirs.values())}; missing "
                    f"{list((mine - theirs).items())[:4]}, extra {list((theirs - mine).items())[:4]}"
                )
    return found


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode()


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
