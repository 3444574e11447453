"""Lists on a narrow terminal: readable from 40 columns on, and in full when piped."""

from __future__ import annotations

import pytest

from floodmark.cli.clean import files_lines
from floodmark.cli.layout import fold
from floodmark.cli.watermark import list_lines, watermark_lines
from floodmark.cli.watermark_history import history_lines
from floodmark.model.results import History, StagedFiles
from floodmark.model.text import cells
from tests.unit.conftest import mark

WIDTHS = (40, 47, 60, 72, 80, 100, 120, 160)
LONG = "settlement_archive.settlement_normal_delivery_detail"
TABLES = [
    mark(table_name="shop.orders", lag_seconds=5.0),
    mark(table_name=LONG, mysql_rows_extracted=1_250_000, lag_seconds=5.0),
    mark(table_name="shop.countries", mode="full", pending_s3_files=[]),
]
RUN = {"run": "20250814_164530_ab12"}
COMMITS = History.of(
    {
        "table_name": "shop.orders",
        "cursor": "updated_at",
        "commits": [
            {
                "n": 12, "kind": "batch", "at": "2025-08-14T16:45:33.123456Z", **RUN,
                "rows": 1_250_000, "files": 12, "position": ["2025-08-14 15:30:22.000000", 1_250_000],
            },
            {
                "n": 11, "kind": "claim", "purpose": "sync", "at": "2025-08-14T16:45:30.123456Z", **RUN,
                "rows": 0, "files": 0, "position": None,
            },
        ],
    }
)  # fmt: skip
FOLDER = "s3://bucket/a/long/prefix/data/shop.orders/20250814_164530_ab12/"
FILES = StagedFiles.of(
    {
        "files": [
            {
                "uri": f"{FOLDER}11-window{n}-127e58e5-0.parquet", "rows": 125_000, "bytes": 1_234_567,
                "created_at": "2025-08-14T16:45:33.123456Z", "commit": 12, "state": "superseded",
            }
            for n in range(2)
        ]
    }
)  # fmt: skip


def told(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_watermarks_fits_and_keeps_names_positions_and_states(width: int) -> None:
    lines = list_lines(TABLES, warehouse="DuckDB", width=width)
    assert max(map(cells, lines)) <= width
    for word in ("orders", LONG.partition(".")[2], "countries", "2025-08-14 15:30:22", "success"):
        assert word in told(lines)


def test_columns_that_are_left_out_are_named() -> None:
    lines = list_lines(TABLES[:1], warehouse="DuckDB", width=96)
    assert "STRATEGY" not in lines[0]
    assert lines[-1] == "Not shown, for lack of space: strategy. --json has everything."
    assert "STRATEGY" in list_lines(TABLES[:1], warehouse="DuckDB")[0]


def test_one_long_name_does_not_take_the_table_apart() -> None:
    head, first, long, second, *_ = list_lines(TABLES, warehouse="DuckDB", width=82)
    assert head.startswith("TABLE") and first.startswith(
        "orders"
    )  # as shop.countries has no room for its schema
    assert long == LONG and second.split()[0] == "success"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_history_fits_and_keeps_numbers_times_and_positions(width: int) -> None:
    lines = history_lines(COMMITS, width)
    assert max(map(cells, lines)) <= width
    for word in (
        "12",
        "batch",
        "1,250,000",
        "2025-08-14 16:45:33 UTC",
        "2025-08-14 15:30:22",
        "claim (sync)",
    ):
        assert word in told(lines)
    assert "2025-08-14 15:30:22 (id 1250000)" in told(history_lines(COMMITS))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_files_fits_and_keeps_their_names_whole(width: int) -> None:
    lines = files_lines(FILES, terminal=True, timestamps=True, width=width)
    assert max(map(cells, lines)) <= width
    for word in (
        "11-window0-127e58e5-0.parquet",
        "superseded",
        "125,000",
        "1.2 MB",
        "2025-08-14 16:45:33 UTC",
    ):
        assert word in told(lines)


def test_piped_files_are_one_line_each_in_full_without_a_head() -> None:
    lines = files_lines(FILES, terminal=False, timestamps=True)
    assert [line.split("\t")[-1] for line in lines] == [file.uri for file in FILES.files]
    assert all(line.startswith("superseded\t12\t125000\t1234567\t2025-08-14T") for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_watermark_fits_and_keeps_every_word(width: int) -> None:
    whole = watermark_lines(mark(), False)
    lines = fold(whole, width)
    assert max(map(cells, lines)) <= width
    assert told(lines) == told(whole)
    painted = "    Status                  \x1b[32msuccess\x1b[0m"
    assert fold([painted], 40) == [painted]
    assert fold(whole, None) == whole and fold(whole, 200) == whole


def test_a_plan_is_folded_behind_its_labels() -> None:
    window = "  Window    after 2025-01-01 00:00:00, up to 2026-11-17 11:38:49.467146 (id 100000)"
    assert fold([window], 60) == [
        "  Window    after 2025-01-01 00:00:00, up to 2026-11-17",
        "            11:38:49.467146 (id 100000)",
    ]


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_a_watermark_that_was_set_by_hand_is_marked_at_every_width(width: int | None) -> None:
    manual = mark(metadata={"manual_watermark": True})
    lines = list_lines([manual, TABLES[1]], warehouse="DuckDB", width=width)
    assert told(lines).count("*") == 2 and "* set by hand" in told(lines)
    assert "*" not in told(list_lines(TABLES, warehouse="DuckDB", width=width))
