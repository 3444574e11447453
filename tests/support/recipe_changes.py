"""A table whose recipe changes between two syncs. It must lead to equal rows, if need be by a refusal's command."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb

from tests.conftest import Workspace

COLUMNS = """id INT NOT NULL{id}, code VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL, a INT, b INT,
  n INT, txt VARCHAR(20), wide DECIMAL(50,2), price DECIMAL(10,2), bin BINARY(4), vb VARCHAR(20), tm TIME, picks SET('x','y'),
  pick ENUM('p','q'), ratio DOUBLE, twice INT AS (n * 2) STORED, day DATETIME,
  at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at)"""
ROW = """({id}, 'k{id}', {id} % 7, NULLIF({id} % 5, 0), {id}, 'text {id}', {id}.25, {id}.5, 'b{d}', 'v\\\\{id}', '10:11:12', 'x,y', 'q',
  {id} / 3, {day}, '2025-03-01' + INTERVAL {id} SECOND)"""
NAMES = "id, code, a, b, n, txt, wide, price, bin, vb, tm, picks, pick, ratio, day, at"
ROWS = 30


@dataclass
class Changing:
    """One table in a shared workspace."""

    workspace: Workspace
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, keyed: bool = True, key: str = "id") -> None:
        columns = COLUMNS.format(id=" PRIMARY KEY" if keyed and key == "id" else "")
        if keyed and key != "id":
            columns += f", PRIMARY KEY ({key})"
        self.workspace.execute(f"CREATE TABLE {self.name} ({columns})", self.filling(1, ROWS))

    def filling(self, first: int, last: int) -> str:
        rows = (
            ROW.format(id=i, d=i % 10, day="NULL" if i % 3 else "'2025-01-01'")
            for i in range(first, last + 1)
        )
        return f"INSERT INTO {self.name} ({NAMES}) VALUES {', '.join(rows)}"

    def configure(self, **options: Any) -> None:
        """Change the table's options; None removes one."""
        self.options = {k: v for k, v in {**self.options, **options}.items() if v is not None}
        self.workspace.write(tables={self.name: self.options})

    def sync(self, **options: Any) -> dict[str, Any]:
        (table,) = self.workspace.sync(self.name, **options).as_json()["tables"]
        return dict(table)

    def synced(self, **options: Any) -> dict[str, Any]:
        done = self.sync(**options)
        assert done["exit_code"] == 0, done["error"]
        return done

    def change(self, *statements: str) -> None:
        self.workspace.execute(*(s.format(t=self.name) for s in statements))

    def go_on(self, error: dict[str, Any]) -> None:
        """Do what the refusal says, word for word."""
        hint = error["hint"]
        if statement := re.search(r"run: (ALTER TABLE .*)$", hint):
            with duckdb.connect(str(self.workspace.warehouse)) as link:
                link.execute(statement[1])
            return
        command = re.search(r"floodmark (watermark reset .*)$", hint)
        assert command, hint
        self.workspace.run(*shlex.split(command[1])).ok()

    def followed(self) -> list[dict[str, Any]]:
        """Sync until it succeeds, following each refusal; returns the refusals."""
        refused: list[dict[str, Any]] = []
        while (done := self.sync())["exit_code"]:
            assert done["exit_code"] in (2, 6), done["error"]
            assert len(refused) < 2, (refused, done["error"])
            refused.append(done["error"])
            self.go_on(done["error"])
        return refused

    @property
    def target(self) -> str:
        return str(self.options.get("target", self.name))

    def differences(self, where: str = "TRUE") -> list[str]:
        """The differences between source and target."""
        kinds = dict(
            self.workspace.execute(
                "SELECT LOWER(column_name), data_type FROM information_schema.columns WHERE table_schema = "
                f"'{self.workspace.database.name}' AND table_name = '{self.name}' ORDER BY ordinal_position"
            )
        )
        names = [n for n in kinds if n not in self.options.get("exclude", ())]
        asked = ", ".join(_asked(n, kinds[n]) for n in names)
        told = ", ".join(_told(n, kinds[n]) for n in names)
        source = self.workspace.execute(
            "SET time_zone = '+00:00'", f"SELECT {asked} FROM {self.name} WHERE {where}"
        )
        gone = self.workspace.query(
            f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{self.target}'"
        )
        there = "_deleted_at IS NULL" if ("_deleted_at",) in gone else "TRUE"
        target = self.workspace.query(f"SELECT {told} FROM {self.target} WHERE {there}")
        mine, theirs = (
            sorted([_same(kinds[n], v) for n, v in zip(names, r, strict=True)] for r in rows)
            for rows in (source, target)
        )
        if len(mine) != len(theirs):
            return [f"{len(mine)} rows at the source, {len(theirs)} in the target"]
        return [f"{m} is {t}" for m, t in zip(mine, theirs, strict=True) if m != t]


def _asked(name: str, kind: str) -> str:
    if kind in ("binary", "blob", "varbinary"):
        return f"HEX({name})"
    if kind in ("datetime", "timestamp"):
        return f"DATE_FORMAT({name}, '%Y-%m-%d %H:%i:%s.%f')"
    return f"{name} * 1e0" if kind in ("float", "double") else f"CAST({name} AS CHAR)"


def _told(name: str, kind: str) -> str:
    name = f'"{name}"'
    if kind in ("binary", "blob", "varbinary"):
        return f"hex({name})"
    if kind in ("datetime", "timestamp"):
        return f"strftime({name}, '%Y-%m-%d %H:%M:%S.%f')"
    return f"CAST({name} AS DOUBLE)" if kind in ("float", "double") else f"CAST({name} AS VARCHAR)"


def _same(kind: str, value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if value is None or kind not in ("decimal", "float", "double"):
        return str(value)
    # Values carried as text are compared as text (above): only their form shows whether a row was read again.
    return str(float(value)) if kind != "decimal" else str(Decimal(value).normalize())
