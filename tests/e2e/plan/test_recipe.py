"""What changes between two syncs: every part of the recipe, in every mode, with old and new rows changed after it.

Each ends with equal rows, or with a refusal whose own command leads there. The whole walk is long; a few cells always run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from floodmark.model.run import new_run
from floodmark.spark.context import Spark
from floodmark.watermark.validate import watermark_validate
from tests.conftest import SOURCE, Result, Workspace, lasting_workspace
from tests.support.recipe_changes import ROWS, Changing

NUMBERS = count()
MODES: dict[str, dict[str, Any]] = {
    "upsert": {"mode": "upsert"},
    "append": {"mode": "append", "cursor": "at"},
    "keyless": {"mode": "append", "cursor": "at"},
    "full": {"mode": "full"},
}
LAX = "SET sql_mode = ''"


@dataclass(frozen=True)
class Part:
    """A part of the recipe: the options before and after, and what happens at the source in between."""

    before: dict[str, Any]
    after: dict[str, Any]
    at_source: tuple[str, ...] = ()
    where: str = "TRUE"


def ddl(*statements: str) -> Part:
    return Part({}, {}, (LAX, *(f"ALTER TABLE {{t}} {s}" for s in statements)))


PARTS = {
    "where removed": Part({"where": "id % 2 = 0"}, {"where": None}),
    "where changed": Part({"where": "id % 2 = 0"}, {"where": "id % 3 = 0", "deletes": "hard", "deletes_every": "0s"},
                          where="id % 3 = 0"),
    "where narrowed": Part({}, {"where": "id % 3 = 0", "deletes": "hard", "deletes_every": "0s"}, where="id % 3 = 0"),
    "columns swapped": ddl("CHANGE a b INT, CHANGE b a INT"),
    "columns swapped with renames": Part({}, {"renames": {"a": "b", "b": "a"}},
                                         ("ALTER TABLE {t} CHANGE a b INT, CHANGE b a INT",)),
    "a column elsewhere": ddl("MODIFY txt VARCHAR(20) FIRST"),
    "expression changed": ddl("MODIFY twice INT AS (n * 3) STORED"),
    "BINARY longer": ddl("MODIFY bin BINARY(8)"),
    "SET reordered": ddl("MODIFY picks SET('y','x')"),
    "TIME with digits": ddl("MODIFY tm TIME(3)"),
    "DECIMAL as text with more digits": ddl("MODIFY wide DECIMAL(50,4)"),
    "DECIMAL as text from now on": ddl("MODIFY price DECIMAL(60,20)"),
    "VARCHAR to BLOB": ddl("MODIFY vb BLOB"),
    "DOUBLE to FLOAT": ddl("MODIFY ratio FLOAT"),
    "VARCHAR truncated": ddl("MODIFY txt VARCHAR(6)"),
    "ENUM value removed": ddl("MODIFY pick ENUM('p')"),
    "another character set": Part({}, {}, ("UPDATE {t} SET txt = '\u0416', at = at WHERE id % 4 = 0",),),
    "not NULL any more": ddl("MODIFY b INT NOT NULL DEFAULT 7"),
    "excluded": Part({}, {"exclude": ["b"]}),
    "no longer excluded": Part({"exclude": ["b"]}, {"exclude": None}),
    "zero dates kept": Part({"zero_dates": "null"}, {"zero_dates": "keep"}),
    "overflow": Part({"overflow": "null"}, {"overflow": "truncate"}),
    "deletes": Part({}, {"deletes": "hard"}),
    "another target": Part({}, {"target": "other_{t}"}),
    "key's type": ddl("MODIFY id BIGINT"),
    "cursor's type": ddl("MODIFY at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"),
    "another key": Part({}, {"key": ["code", "id"]}),
    "another cursor": Part({}, {"cursor": "id"}),
}  # fmt: skip
ALWAYS = {
    ("upsert", "where removed"), ("keyless", "where removed"), ("upsert", "where changed"), ("upsert", "columns swapped"),
    ("upsert", "expression changed"), ("upsert", "DECIMAL as text from now on"), ("upsert", "VARCHAR to BLOB"),
    ("upsert", "another target"), ("upsert", "another key"),
}  # fmt: skip


@pytest.fixture(scope="module", params=SOURCE)
def new_table(
    request: pytest.FixtureRequest, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Changing]]:
    """Makes tables in one workspace for the whole module."""
    folder, server = tmp_path_factory.mktemp("recipe"), request.getfixturevalue(request.param)
    with lasting_workspace(folder, server, spark, store={"url": "./lake"}) as workspace:
        workspace.write(defaults={"settle_seconds": 0.2, "overlap_seconds": 0})
        yield lambda: Changing(workspace, f"t{next(NUMBERS)}")


def cells() -> Iterator[Any]:
    for mode in MODES:
        for part in PARTS:
            marks = () if (mode, part) in ALWAYS else (pytest.mark.long,)
            yield pytest.param(mode, part, id=f"{mode}, {part}", marks=marks)


@pytest.mark.parametrize(("mode", "part"), list(cells()))
def test_a_changed_recipe_ends_with_equal_rows_or_the_command_that_gets_there(
    new_table: Callable[[], Changing], mode: str, part: str
) -> None:
    table, changed = new_table(), PARTS[part]
    table.create(keyed=mode != "keyless")
    table.configure(**MODES[mode], **changed.before)
    table.synced()
    table.change(*changed.at_source)
    if part == "another character set":
        table.change(LAX, "ALTER TABLE {t} MODIFY txt VARCHAR(20) CHARACTER SET latin1")
    after = {k: v for k, v in changed.after.items() if not (mode == "full" and k == "cursor")}
    if mode == "keyless" and "deletes" in after:
        after = {k: v for k, v in after.items() if not k.startswith("deletes")}
    if "target" in after:
        after["target"] = after["target"].format(t=table.name)
    table.configure(**after)
    if mode != "keyless":
        table.change("UPDATE {t} SET a = a + 100 WHERE id % 10 = 0")
    table.change(
        "INSERT INTO {t} (id, code, day) VALUES (1000, 'new', NOW()), (1002, 'news', NOW()), (999, 'newest', NOW())"
    )
    refused = table.followed()
    assert table.differences(changed.where) == [], refused
    assert table.sync()["exit_code"] == 0
    assert table.differences(changed.where) == []


@pytest.mark.parametrize(
    ("before", "after", "keyed"),
    [
        pytest.param("full", "upsert", True),
        pytest.param("full", "keyless", False),
        pytest.param("append", "upsert", True, marks=pytest.mark.long),
        pytest.param("upsert", "append", True, marks=pytest.mark.long),
        pytest.param("upsert", "full", True, marks=pytest.mark.long),
        pytest.param("keyless", "full", False, marks=pytest.mark.long),
        pytest.param("full", "append", True, marks=pytest.mark.long),
    ],
)
def test_a_sync_continues_after_a_change_of_mode(
    new_table: Callable[[], Changing], before: str, after: str, keyed: bool
) -> None:
    table = new_table()
    table.create(keyed)
    table.configure(**MODES[before])
    table.synced()
    gone = {"full"} & {before, after}
    if gone:
        table.change("DELETE FROM {t} WHERE id <= 5")
    table.configure(**{"cursor": None, **MODES[after]})
    if keyed:
        table.change("UPDATE {t} SET txt = 'changed' WHERE id % 10 = 0")
    table.change("INSERT INTO {t} (id, code) VALUES (1000, 'new')")
    table.synced()
    assert table.differences() == []
    table.change("INSERT INTO {t} (id, code) VALUES (1001, 'newer')")
    table.synced()
    assert table.differences() == []
    found = watermark_validate(table.workspace.settings, [table.name], run=new_run())
    assert found["ok"], found


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        pytest.param({}, ["ALTER TABLE {t} DROP a, CHANGE b a INT"], id="a neighbour's"),
        pytest.param(
            {}, ["ALTER TABLE {t} DROP txt, CHANGE vb txt VARCHAR(20) AFTER n"], id="one's from elsewhere"
        ),
        pytest.param(
            {}, ["ALTER TABLE {t} DROP txt, CHANGE vb txt VARCHAR(30) AFTER n"], id="and made longer"
        ),
        pytest.param({"renames": {"b": "a"}}, ["ALTER TABLE {t} DROP a, CHANGE b a INT"], id="declared"),
        pytest.param(
            {"renames": {"b": "a"}},
            ["ALTER TABLE {t} DROP a", "ALTER TABLE {t} CHANGE b a INT"],
            id="one that was there before",
        ),
        pytest.param(
            {"exclude": ["b"]}, ["ALTER TABLE {t} CHANGE a b INT, CHANGE b a INT"], id="an excluded one's"
        ),
    ],
)
def test_a_column_that_takes_another_ones_name_brings_its_own_values(
    new_table: Callable[[], Changing], options: dict[str, Any], changes: list[str]
) -> None:
    table = new_table()
    table.create()
    table.configure(**options)
    table.synced()
    for change in changes:
        table.change(change)
        table.synced()
    assert table.differences() == []


def test_a_dropped_column_is_recognised_by_the_other_columns_values(
    new_table: Callable[[], Changing],
) -> None:
    table = new_table()
    table.workspace.execute(
        f"CREATE TABLE {table.name} (id INT PRIMARY KEY, a INT, b INT,"
        " at DATETIME(6) NOT NULL DEFAULT '2025-03-01' ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        f"INSERT INTO {table.name} (id, a, b) SELECT seq, seq, seq % 3 FROM seq_1_to_500",
    )
    table.synced()
    table.change("ALTER TABLE {t} DROP b", "INSERT INTO {t} (id, a) VALUES (1000, 7)")
    done = table.synced()
    assert (done["rows_extracted"], done["rows_reread"]) == (1, 0)
    assert "names" not in " ".join(done["notes"]) and table.differences() == []


def test_rows_that_match_the_where_after_an_alter_of_its_column_are_read(
    new_table: Callable[[], Changing],
) -> None:
    table = new_table()
    table.create()
    table.change("UPDATE {t} SET n = n * 200, at = at WHERE id < 30")
    table.configure(where="n < 128", exclude=["n", "twice"])
    table.synced()
    assert table.differences("id = 30") == []
    table.change(LAX, "ALTER TABLE {t} MODIFY n TINYINT")
    table.synced()
    assert table.differences() == []


def test_a_table_can_switch_to_mode_full_and_back(new_table: Callable[[], Changing]) -> None:
    table = new_table()
    table.create()
    table.synced()
    table.configure(mode="full", start="2025-01-01")
    # Before the start: a whole copy has such rows, too, and what follows it must not lose them.
    table.change("DELETE FROM {t} WHERE id <= 5", "UPDATE {t} SET at = '2020-01-01' WHERE id = 9")
    table.synced()
    table.configure(mode=None)
    table.change("DELETE FROM {t} WHERE id = 6", "UPDATE {t} SET a = 1000 WHERE id = 7")
    refused = table.sync(limit=5)
    assert refused["exit_code"] == 2 and "replaces all rows of the target" in refused["error"]["message"]
    table.synced()
    assert table.differences() == []
    table.change("UPDATE {t} SET a = 1001 WHERE id = 8")
    assert table.synced()["rows_extracted"] == 1
    assert table.differences() == []


def test_replacing_rows_appear_all_at_once_even_after_a_failure(
    new_table: Callable[[], Changing],
) -> None:
    table = new_table()
    table.create()
    table.configure(mode="full", slice_rows=7)
    table.synced()
    table.configure(mode=None)
    table.change(
        "DELETE FROM {t} WHERE id <= 5", LAX, "UPDATE {t} SET day = '0000-00-00', at = at WHERE id = 25"
    )
    for _ in range(2):
        assert table.sync()["exit_code"] == 6
        assert table.workspace.query(f"SELECT count(*) FROM {table.name}") == [(ROWS,)]
    table.change("UPDATE {t} SET day = NULL, at = at WHERE id = 25")
    table.synced()
    assert table.differences() == []


@pytest.mark.parametrize("collations", [("bin", "general_ci"), ("general_ci", "bin")])
def test_a_changed_key_collation_replaces_all_rows(
    new_table: Callable[[], Changing], collations: tuple[str, str]
) -> None:
    table = new_table()
    table.create(key="code")
    table.change(
        f"ALTER TABLE {{t}} MODIFY code VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_{collations[0]}"
    )
    table.synced()
    table.change(
        f"ALTER TABLE {{t}} MODIFY code VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_{collations[1]}",
        "UPDATE {t} SET code = UPPER(code) WHERE id <= 10",
    )
    (refused,) = table.followed()
    assert "collation" in refused["message"]
    assert table.differences() == []
    table.change("UPDATE {t} SET code = UPPER(code), a = 7 WHERE id BETWEEN 11 AND 15 AND code <> ''")
    table.synced()
    rows = (
        ROWS if collations[1] == "general_ci" else ROWS + 5
    )  # to bin another key, whose old row only `deletes` take away
    assert table.workspace.query(f"SELECT count(*) FROM {table.target}") == [(rows,)]


def test_an_append_table_that_becomes_upsert_is_really_verified(
    new_table: Callable[[], Changing], command: Callable[..., Result]
) -> None:
    table = new_table()
    table.create()
    table.change("ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT")
    table.configure(mode="append")
    table.synced()
    table.configure(mode="upsert")
    verified = command(table.workspace, "verify", "-t", table.name, "--json")
    assert verified.code == 6 and "was read by id so far" in verified.json["tables"][0]["error"]["message"]
    table.followed()
    table.configure(mode="append")
    verified = command(table.workspace, "verify", "-t", table.name, "--json")
    assert verified.code == 6 and "was read by at so far" in verified.json["tables"][0]["error"]["message"]
    refused = table.sync()
    assert refused["exit_code"] == 6 and "change it back" in refused["error"]["hint"]


def test_plan_and_dry_run_show_the_consequences_of_a_change(new_table: Callable[[], Changing]) -> None:
    table = new_table()
    table.create()
    table.configure(where="id % 2 = 0", overflow="error")
    table.synced()
    table.configure(where=None, overflow="null")
    made = table.workspace.run("plan", "-t", table.name, "--json").ok().json
    assert {(c["part"], c["decision"]) for c in made["recipe"]} == {
        ("where", "reread"),
        ("overflow", "nothing"),
    }
    assert (
        "Changed   `where` has changed: all rows are read again"
        in table.workspace.run("plan", "-t", table.name).stdout
    )
    dry = " ".join(table.synced(dry_run=True)["notes"])
    assert (
        "`where` has changed: all rows are read again" in dry and "overflow changed from error to null" in dry
    )
    assert "no longer match `where`" not in dry, "every row matches without one"


def test_rereads_start_at_a_position_before_the_start_and_leave_out_skipped_rows(
    workspace: Workspace,
) -> None:
    """Neither for a new column nor by a look for deletes do rows come that a position set by hand has left out."""
    fill = "INSERT INTO moved (id, at) SELECT {first} + seq, '{day}' + INTERVAL seq SECOND FROM seq_1_to_{n}"
    workspace.write(tables={"moved": {"deletes": "hard", "deletes_every": "0s", "start": "2025-01-01"}})
    workspace.execute(
        "CREATE TABLE moved (id INT PRIMARY KEY, at DATETIME(6) NOT NULL ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        fill.format(first=0, day="2024-05-01", n=10),
        fill.format(first=100, day="2025-03-01", n=50),
    )
    assert workspace.synced("moved")["rows_extracted"] == 50
    workspace.run("watermark", "set", "-t", "moved", "--timestamp", "2024-01-01 00:00:00").ok()
    assert workspace.synced("moved")["rows_extracted"] == 60
    workspace.execute(
        fill.format(first=200, day="2025-03-02", n=20), fill.format(first=300, day="2025-03-04", n=5)
    )
    workspace.run("watermark", "set", "-t", "moved", "--timestamp", "2025-03-03 00:00:00").ok()
    done = workspace.synced("moved")
    assert (done["rows_extracted"], done["rows_reread"]) == (5, 0)
    workspace.execute(
        "ALTER TABLE moved ADD extra INT",
        "UPDATE moved SET extra = id, at = at",
        "DELETE FROM moved WHERE id = 1",
    )
    done = workspace.synced("moved")
    assert (done["rows_reread"], done["rows_deleted"]) == (64, 1)
    expected = list(
        workspace.execute("SELECT id, extra FROM moved WHERE id NOT BETWEEN 200 AND 299 ORDER BY id")
    )
    assert workspace.query("SELECT id, extra FROM moved ORDER BY id") == expected
    assert workspace.synced("moved")["rows_reread"] == 0
