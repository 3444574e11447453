"""Every type of MySQL, its extremes and random values, is printed alike by MySQL, DuckDB and Redshift's stand-in."""

from __future__ import annotations

import random

import pytest

from floodmark.log.log import Log
from floodmark.model.commit import Batch
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.verify.compare import holds
from tests.conftest import Silent, Workspace
from tests.support.every_type import ZOO, Kind
from tests.support.tampered_warehouse import Verifying

ROWS = 400
pytestmark = pytest.mark.source


def fill(workspace: Workspace, kinds: dict[str, Kind]) -> int:
    """The zoo's awkward values, a row of NULLs, and random rows; how many there are."""
    columns = ", ".join(f"{n} {k.type}" for n, k in kinds.items())
    workspace.execute(
        f"CREATE TABLE zoo (id INT PRIMARY KEY, {columns}, update_at DATETIME NOT NULL DEFAULT '2025-05-05')"
    )
    height = max(len(k.values) for k in kinds.values()) + 1
    rows = [[k.values[i] if i < len(k.values) else "NULL" for k in kinds.values()] for i in range(height)]
    chosen = random.Random(20250707)
    for _ in range(ROWS):
        rows.append([k.draw(chosen) if chosen.random() < 0.95 else "NULL" for k in kinds.values()])
    strict = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
    for first in range(0, len(rows), 50):
        values = (f"({i}, {', '.join(row)})" for i, row in enumerate(rows[first : first + 50], first))
        workspace.execute(strict, f"INSERT INTO zoo (id, {', '.join(kinds)}) VALUES {', '.join(values)}")
    return len(rows)


def test_every_type_agrees_and_every_change_is_seen(place: Verifying, kind: str) -> None:
    # U+0000 and text beyond 65,535 bytes are more than Redshift holds: its side has what the policy left.
    place.workspace.write(defaults={"overflow": "truncate", "settle_seconds": 0.2})
    kinds = ZOO[kind]
    rows = fill(place.workspace, kinds)
    place.workspace.synced("zoo")
    found = place.verify("zoo")
    assert found["findings"] == [] and found["rows_source"] == found["rows_warehouse"] == rows
    assert place.schema == "main" or as_in_its_files(place.workspace, "zoo")
    row = 60
    place.change(*(f"UPDATE zoo SET {name} = NULL WHERE id = {row}" for name in kinds))
    asked = ", ".join(f"{name} IS NOT NULL" for name in kinds)
    [given] = place.workspace.execute(f"SELECT {asked} FROM zoo WHERE id = {row}")
    [one] = place.verify("zoo")["findings"]
    # Redshift keeps the meaning of MySQL's JSON (SUPER), not its text, which can't be compared.
    unseen = {"c_json"} if kind == "mysql" and place.schema != "main" else set()
    expected = [name for name, there in zip(kinds, given, strict=True) if there and name not in unseen]
    assert one["columns"] == expected
    # Another value in one cell of each column, each in a row of its own.
    cells = other_values(place.workspace, [name for name in kinds if name not in unseen], row + 1)
    place.change(
        *(
            f"UPDATE zoo SET {name} = (SELECT {name} FROM zoo WHERE id = {donor}) WHERE id = {changed}"
            for name, (changed, donor) in cells.items()
        )
    )
    seen: dict[int, list[str]] = {
        f["key"][0]: f["columns"] for f in place.verify("zoo", named=rows)["findings"] if f["key"] != [row]
    }
    assert seen == {changed: [name] for name, (changed, _) in cells.items()}


def as_in_its_files(workspace: Workspace, table: str) -> bool:
    """Whether the target's digest is that of the files of the last commit, which hold all of its rows."""
    with Services(workspace.settings, Silent(), new_run()) as services:
        state = Log(services.store, workspace.full_name(table)).read()
        [(commit, _)] = Log(services.store, state.table_name).commits([state.data.commits[-1].n])
        assert isinstance(commit, Batch) and state.table is not None
        assert commit.rows == services.warehouse().rows(state.table.target)
        return holds(services, state, commit) is True


def other_values(workspace: Workspace, names: list[str], first: int) -> dict[str, tuple[int, int]]:
    """For each column a row from `first` on, each another one, and a row that has a different value there."""
    chosen: dict[str, tuple[int, int]] = {}
    for at, name in enumerate(names, first):
        values = dict(workspace.execute(f"SELECT id, HEX(CAST({name} AS BINARY)) FROM zoo WHERE id >= {at}"))
        row = next(i for i, v in values.items() if v and i not in {taken for taken, _ in chosen.values()})
        donors = (i for i, v in values.items() if v and v != values[row] and i > first + 2 * len(names))
        chosen[name] = row, next(donors)
    return chosen


def test_values_changed_by_a_policy_agree(place: Verifying) -> None:
    place.workspace.write(defaults={"overflow": "null", "zero_dates": "null", "settle_seconds": 0.2})
    place.workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, w DATETIME(3), body MEDIUMTEXT, "
        "update_at DATETIME NOT NULL DEFAULT '2025-05-05')",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO t (id, d, w, body) VALUES (1, '2025-01-01', '2025-02-30 01:02:03.004', REPEAT('ü', 40000)), "
        "(2, '0000-00-00', 0, 'a\\0b'), (3, '2020-00-15', NULL, ''), (4, NULL, '2024-02-29', NULL)",
    )
    place.workspace.synced("t")
    assert place.found("t") == []
    place.workspace.write(defaults={"zero_dates": "keep", "overflow": "truncate"})
    place.workspace.execute("SET sql_mode = 'ALLOW_INVALID_DATES'", "UPDATE t SET update_at = '2025-06-06'")
    place.workspace.synced("t")
    assert place.found("t") == []
    assert place.schema == "main" or as_in_its_files(place.workspace, "t")
    place.change("UPDATE t SET d__raw = '0000-00-01' WHERE id = 2")
    assert place.found("t") == [("different_row", 2, "d__raw")]
    assert place.schema == "main" or not as_in_its_files(place.workspace, "t")


@pytest.mark.parametrize("place", ["redshift"], indirect=True)
def test_text_in_a_super_column_is_not_compared_and_all_else_is(place: Verifying) -> None:
    workspace = place.workspace
    workspace.write(defaults={"overflow": "truncate", "settle_seconds": 0.2})
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, n INT, update_at DATETIME NOT NULL DEFAULT '2025-05-05')",
        "INSERT INTO t (id, body, n) VALUES (1, '{\"a\": 5}', 1), (2, NULL, 2)",
    )
    workspace.synced("t")
    place.change("ALTER TABLE t ALTER COLUMN body TYPE SUPER USING CAST(body AS JSONB)")
    workspace.execute("UPDATE t SET update_at = '2025-05-06'")
    [synced] = workspace.sync("t", verify_data=True).as_json()["tables"]
    assert synced["exit_code"] == 0, synced["error"]
    place.change("UPDATE t SET body = '[]', n = 7 WHERE id = 1")
    found = place.verify("t")
    assert [f["columns"] for f in found["findings"]] == [["n"]]
    assert found["notes"] == ["parsed JSON is not compared: body"]
    # A document that was cut stays in a file that has to load. This is the way out that its error names.
    workspace.execute(
        "UPDATE t SET update_at = '2025-06-06', body = CONCAT('[\"', REPEAT('x', 70000), '\"]') WHERE id = 1"
    )
    [stuck] = workspace.sync("t").as_json()["tables"]
    assert stuck["exit_code"] == 6 and "`overflow: null`" in stuck["error"]["hint"]
    workspace.write(defaults={"overflow": "null", "settle_seconds": 0.2})
    assert workspace.run("watermark", "reset", "-t", "t").code == 0
    workspace.synced("t")
    assert place.found("t") == []
