"""What `floodmark changes` prints, and which options it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.cli.changes import changes_lines
from floodmark.cli.main import main
from floodmark.model.results import ChangesResult

DOCUMENT: dict[str, Any] = {
    "ok": True,
    "begin": {"file": "binlog.000041", "position": 157},
    "begin_by": "log",
    "end": {"file": "binlog.000042", "position": 1234},
    "held_back_by": [],
    "bytes": 2_345_678,
    "files": 2,
    "transactions": 1203,
    "first_commit": "2025-08-19T14:00:01.500000Z",
    "last_commit": "2025-08-19T14:03:12.000000Z",
    "tables": [
        {"table": "shop.customers", "inserts": 0, "updates": 0, "deletes": 0, "bytes": 0, "statements": ["CREATE INDEX"]},
        {"table": "shop.orders", "inserts": 1200, "updates": 30, "deletes": 5, "bytes": 81234, "statements": []},
    ],
    "statements": [],
    "prepared": 0,
    "notes": [],
    "seconds": 0.2,
}  # fmt: skip


def lines(width: int | None = 100, **changed: Any) -> list[str]:
    return changes_lines(ChangesResult.of({**DOCUMENT, **changed}), width)


def test_it_shows_where_from_how_many_and_each_table() -> None:
    assert lines() == [
        "binlog.000041:157 to binlog.000042:1234   2.3 MB in 2 files",
        "  from          where the last sync ended",
        "  transactions  1,203, from 2025-08-19 14:00:01 UTC to 2025-08-19 14:03:12 UTC",
        "",
        "TABLE           INSERTS  UPDATES  DELETES     SIZE  STATEMENTS",
        "shop.customers        0        0        0      0 B  CREATE INDEX",
        "shop.orders       1,200       30        5  81.2 kB",
    ]


def test_a_log_without_changes_says_so() -> None:
    said = lines(tables=[], transactions=0, first_commit=None, last_commit=None, begin_by="newest_file")
    assert said[1:] == [
        "  from          the beginning of the newest file: no sync has followed this log yet",
        "No changes.",
    ]


def test_it_names_who_holds_the_end_back_and_what_was_not_counted() -> None:
    said = lines(
        held_back_by=["connection 12"], notes=["1 XA transaction prepared and not committed: not counted"]
    )
    assert "  held back by  connection 12" in said
    assert "  note          1 XA transaction prepared and not committed: not counted" in said


@pytest.mark.parametrize("width", [40, 60, 80])
def test_it_fits_narrow_terminals(width: int) -> None:
    assert all(len(line) <= width for line in lines(width)[1:])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "orders"], "is not FILE or FILE:POSITION"),
        (["--from", "bin.000001:x"], "is not FILE or FILE:POSITION"),
        (["--from", "bin.000001", "--since", "2025-01-01"], "exclude each other"),
        (["--all-tables", "-t", "a"], "exclude each other"),
        (["--until", "yesterday"], "yesterday"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "floodmark.yaml").write_text(
        "source: {url: 'mysql://u:p@127.0.0.1:1/shop'}\nstore: {url: ./lake}\nwarehouse: {url: 'duckdb:///w.duckdb'}\n"
    )
    (tmp_path / "floodmark.yaml").chmod(0o600)
    assert main(["changes", *arguments]) == 2
    assert said in capsys.readouterr().err
