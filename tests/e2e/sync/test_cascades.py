"""Foreign keys that change rows without touching their cursor: named, and followed if configured."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from floodmark.config.load import TableOptions, source_from
from floodmark.model.notes import sentence
from floodmark.source.describe import cascades, discover, discover_with_notes, touched
from floodmark.source.session import Session
from tests.conftest import Database, Workspace
from tests.support.doctor_checks import doctor
from tests.support.table_shapes import same

pytestmark = pytest.mark.both_servers

AT = "update_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at)"
PARENT = "CREATE TABLE parent (id INT PRIMARY KEY, part INT NOT NULL, KEY (id, part)) ENGINE=InnoDB"
CHILD = f"""CREATE TABLE child (id INT PRIMARY KEY, parent_id INT, owner_id INT, other_id INT, n INT, {AT},
  CONSTRAINT `moves` FOREIGN KEY (parent_id) REFERENCES parent (id) ON UPDATE CASCADE ON DELETE SET NULL,
  CONSTRAINT `clears` FOREIGN KEY (owner_id) REFERENCES parent (id) ON UPDATE RESTRICT ON DELETE SET NULL,
  CONSTRAINT `holds` FOREIGN KEY (other_id) REFERENCES parent (id) ON DELETE CASCADE) ENGINE=InnoDB"""


def test_cascading_columns_are_named_even_to_a_read_only_user(database: Database) -> None:
    database.execute(PARENT, CHILD)
    user = f"r_{secrets.token_hex(4)}"
    database.server.create_user(user, "pw-of-reader", f"SELECT ON {database.name}.*")
    with Session(source_from(database.server.url(database.name, user, "pw-of-reader"))) as session:

        def said(**options: Any) -> str:
            found = discover_with_notes(session, "child", TableOptions(**options), database.name)
            return " ".join(map(sentence, found.notes))

        table = discover(session, "child", TableOptions(), database.name)
        assert touched(table, cascades(session, table)) == ("parent_id", "owner_id")
        note = said()
        assert (
            "parent_id, owner_id can change without update_at, through ON DELETE SET NULL from parent" in note
        )
        assert "ON UPDATE CASCADE and ON DELETE SET NULL from parent" in note and "cascades: follow" in note
        assert "parent_id, owner_id" not in said(cascades="follow") + said(mode="full")
        assert "owner_id can change without" in said(exclude=("parent_id",))
        assert "can change without" not in said(exclude=("parent_id", "owner_id"))
    database.server.execute(f"DROP USER `{user}`")


def test_init_doctor_plan_and_the_first_sync_name_cascading_columns(workspace: Workspace) -> None:
    workspace.execute(PARENT, CHILD)
    named = "parent_id, owner_id can change without update_at"
    written = workspace.folder / "new.yaml"
    workspace.run("init", "--source", workspace.database.url, "--output", str(written)).ok()
    assert f"! {named}" in written.read_text()
    told = doctor(workspace, "-t", "child").one("tables", "cascades")
    assert named in told["detail"] and told["hint"].endswith(".cascades: follow")
    assert named in workspace.run("plan", "-t", "child").ok().stdout
    assert named in " ".join(workspace.synced("child")["notes"])


def test_changes_by_a_cascade_arrive_with_cascades_follow(workspace: Workspace) -> None:
    name = workspace.full_name("child")
    workspace.execute(
        PARENT, CHILD,
        "INSERT INTO parent SELECT seq, seq FROM seq_1_to_20",
        "INSERT INTO child (id, parent_id, owner_id, n) SELECT seq, seq % 20 + 1, seq % 7 + 1, seq FROM seq_1_to_200",
    )  # fmt: skip
    workspace.synced("child")
    change = ("UPDATE parent SET id = id + 1000 WHERE id > 15", "DELETE FROM parent WHERE id < 3")
    workspace.execute(*change)
    assert workspace.synced("child")["rows_extracted"] == 0, "the cursor does not tell"
    with pytest.raises(AssertionError):
        same(workspace, "child", "id, parent_id, owner_id, n")
    workspace.write(tables={name: {"cascades": "follow", "deletes_every": "0s"}})
    report = workspace.synced("child")
    changed = [i for i in range(1, 201) if i % 20 + 1 > 15 or i % 20 + 1 < 3 or i % 7 + 1 < 3]
    assert report["rows_reread"] == len(changed)
    assert any("changed by foreign keys: read again" in note for note in report["notes"])
    assert same(workspace, "child", "id, parent_id, owner_id, n")
    assert workspace.synced("child")["rows_reread"] == 0
    workspace.execute("DELETE FROM child WHERE id < 10", "DELETE FROM parent WHERE id = 1016")
    workspace.synced("child")
    assert workspace.query("SELECT count(*) FROM child") == [(200,)], "rows that are gone are for `deletes`"
    workspace.write(tables={name: {"cascades": "follow", "deletes": "hard", "deletes_every": "0s"}})
    workspace.synced("child")
    assert same(workspace, "child", "id, parent_id, owner_id, n")
