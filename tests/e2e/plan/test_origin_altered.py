"""A source lives on through ordinary ALTERs, whatever they leave of the sampled rows to compare."""

from __future__ import annotations

import pytest

from tests.conftest import Workspace

AT = "update_at DATETIME NOT NULL DEFAULT '2025-06-01', KEY (update_at)"
REBUILD = "ALTER TABLE {t} ENGINE = InnoDB, ALGORITHM=COPY"

# By name: the columns beside the id, values for row `seq`, how many rows, and what happens to the table.
ALTERED: dict[str, tuple[str, str, int, str]] = {
    "prices": ("price DECIMAL(8,2), note VARCHAR(20)", "seq * 1.5, IF(seq IN (3, 997), NULL, seq)", 1000,
                "ALTER TABLE {t} MODIFY price DECIMAL(10,2), ALGORITHM=COPY"),
    "scale": ("price DECIMAL(8,2), label VARCHAR(20) AS (CONCAT('p',price)) STORED", "seq * 1.5", 40,
              "ALTER TABLE {t} MODIFY price DECIMAL(10,4)"),
    "computed": ("n INT, g INT AS (n + 1) STORED", "7", 40, "ALTER TABLE {t} MODIFY g INT AS (n + 2) STORED"),
    "only_computed": ("doc TEXT, g INT AS (LENGTH(doc)) STORED", "REPEAT('x', seq)", 40,
                       "ALTER TABLE {t} MODIFY g INT AS (LENGTH(doc) * 2) STORED"),
    "padded": ("b BINARY(4), note VARCHAR(20)", "LPAD(seq, 4, 'x'), IF(seq = 39, NULL, seq)", 40,
                "ALTER TABLE {t} MODIFY b BINARY(8)"),
    "recoded": ("word VARCHAR(20) CHARSET latin1, note VARCHAR(20) CHARSET ascii", "CONCAT('ä', seq), IF(seq = 2, NULL, seq)", 40,
                "ALTER TABLE {t} MODIFY word VARCHAR(20) CHARSET utf8mb4"),
    "recoded_whole": ("word VARCHAR(20) CHARSET latin1", "CONCAT('ä', seq)", 40,
                     "ALTER TABLE {t} MODIFY word VARCHAR(20) CHARSET utf8mb4"),
    "few": ("note VARCHAR(20)", "IF(seq = 2, NULL, seq)", 4, REBUILD),
    "one": ("note VARCHAR(20)", "NULL", 1, REBUILD),
    "nulls": ("note VARCHAR(20)", "NULL", 40, REBUILD),
    "keys_only": ("", "", 40, REBUILD),
}  # fmt: skip


@pytest.mark.source
@pytest.mark.parametrize("cursor", [AT, ""], ids=["by time", "by id"])
def test_no_ordinary_alter_makes_a_source_another_one(workspace: Workspace, cursor: str) -> None:
    """Read by a time that all rows share, and by id."""
    for name, (columns, values, count, _) in ALTERED.items():
        described = ", ".join(filter(None, (columns, cursor)))
        names = ", ".join(part.split()[0] for part in columns.split(", ") if part and " AS (" not in part)
        workspace.execute(
            f"CREATE TABLE {name} (id INT AUTO_INCREMENT PRIMARY KEY{described and f', {described}'})",
            f"INSERT INTO {name} (id{names and f', {names}'}) SELECT seq{values and f', {values}'} FROM seq_1_to_{count}",
        )
    assert workspace.sync(*ALTERED).ok
    for name, (*_, change) in ALTERED.items():
        workspace.execute(change.format(t=name))
    report = workspace.sync(*ALTERED)
    assert {t.table: t.error.message for t in report.tables if t.error} == {}
    for name in ALTERED:
        there = f"SELECT COUNT(*) FROM {name}"
        assert workspace.query(there) == workspace.execute(there)
