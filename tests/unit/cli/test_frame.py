"""Progress on a terminal, drawn from values at every width."""

from __future__ import annotations

import pytest

from floodmark.cli.frame import Picture, Running, Stage, compact, frame, said_wait
from floodmark.model.run import Step, Wait
from floodmark.model.text import cells, shortened, shortened_alike

LONG = "settlement.settlement_normal_delivery_detail"
BOTH = Running(
    LONG,
    (Stage("extract", 800_000, 1_250_000, 2.6), Stage("load", 300_000, 1_250_000, 3.1)),
)
HELD = Running(
    "shop.held",
    (Stage("plan", 0, None, 12.0),),
    Wait("open_work", "transaction of connection 12 (app@web1), open for 40 s"),
    12.3,
)


def drawn(picture: Picture, width: int, height: int = 50) -> list[str]:
    return ["".join(text for text, _ in line) for line in frame(picture, width, height)]


@pytest.mark.parametrize("width", [*range(39, 130), 200, 400])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_missing(width: int) -> None:
    running = (BOTH, HELD, Running("s.t", (Stage("extract", 9_999_999_999, 99_999_999_999, 99_999.0),)))
    whole = (Stage("extract", 1_300, 1_250, 1.0), Stage("load", 10**12, None, 1e6))
    lines = drawn(Picture(running, 60, 12, 1, 66.0, whole), width)
    assert max(map(cells, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for told in (
        "settlement_normal_delivery_detail",
        "64%",
        "24%",
        "connection 12",
        "12 of 60 tables done",
        "1 failed",
    ):
        assert told in text
    [extract] = [line for line in lines if "64%" in line]
    for told in (
        "━",
        "800",
        "1.2" if width < 120 else "1,250,000",
        "/s",
        "1 s left" if width >= 120 else "1s left" if width >= 76 else "1s",
    ):
        assert told in extract


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            39,
            [
                "…ment.settlement_normal_delivery_detail",
                " extract ━──  64% 800k/1.2M 308k/s 1s",
                " load    ───  24% 300k/1.2M  97k/s 10s",
                "0 s",
            ],
        ),
        (
            79,
            [
                "settlement.settlement_normal_delivery_detail",
                "                        extract ━━━━━━────  64% 800k/1.25M   308k/s 1s left",
                "                        load    ━━────────  24% 300k/1.25M  96.8k/s 10s left",
                "0 s",
            ],
        ),
    ],
)
def test_a_table_has_a_bar_for_each_stage(width: int, expected: list[str]) -> None:
    assert drawn(Picture((BOTH,)), width) == expected


def test_names_are_shortened_from_the_left_and_the_tables_own_part_stays_whole() -> None:
    assert shortened("shop.orders", 11) == "shop.orders"
    assert shortened("shop.orders", 10) == "…op.orders"
    assert shortened("shop.orders", 8) == "orders"
    assert shortened("shop.orders", 5) is None
    assert shortened("店.注文テーブル", 14) == "注文テーブル"  # two columns for each letter
    own = "x" * 64
    lines = drawn(Picture((Running(f"shop.{own}", (Stage("extract", 1, 2, 1.0),)),)), 39)
    assert "".join(lines[:2]) == own


def test_names_of_one_list_are_shortened_alike() -> None:
    names = ["shop.orders", "shop.countries", "settlement_archive.details"]
    assert shortened_alike(names, 30) == names
    assert shortened_alike(names, 12) == ["orders", "countries", "…ive.details"]
    assert shortened_alike(names, 8) == ["orders", None, "details"]


def test_tables_that_wait_for_the_same_thing_share_a_line() -> None:
    spark, lock = Wait("spark"), Wait("lock", "process 7")
    waiting = tuple(Running(f"shop.t{n}", (), spark, 20.0 + n) for n in range(8))
    lines = drawn(Picture((*waiting, Running("shop.held", (), lock, 3.0)), 60, 0, 0, 25.0), 79)
    assert lines == [
        "8 tables waiting 27 s for Spark to start",
        "shop.held   waiting 3 s for a lock in the warehouse, held by process 7",
        "0 of 60 tables done, 9 running, 51 to go, 25 s",
    ]
    assert drawn(Picture(waiting[:2], 60), 79)[0] == "shop.t0     waiting 20 s for Spark to start"


def test_of_sixty_tables_the_running_ones_are_shown_as_far_as_there_is_room_and_the_rest_is_counted() -> None:
    running = tuple(Running(f"shop.t{n}", (Stage("extract", 5, 10, 1.0),)) for n in range(8))
    lines = drawn(Picture(running, 60, 20, 2, 5.0, (Stage("extract", 40, None, 5.0),)), 79, 8)
    assert len(lines) < 8
    assert "… and 4 more tables running" in lines
    assert lines[-1] == "20 of 60 tables done, 2 failed, 8 running, 32 to go, 5 s"


def test_an_estimate_that_was_too_low_gives_no_percentage_and_a_finished_stage_is_done() -> None:
    low = Running("s.low", (Stage("extract", 1_300, 1_250, 2.0),))
    over = Running("s.over", (Stage("extract", 1_300, 1_250, 2.0, over=True), Stage("load", 0, 1_300, 1.0)))
    first, second, third, _ = drawn(Picture((low, over), 1), 79)
    assert "%" not in first and "1.30k" in first and "650/s" in first
    assert "100%" in second and second.endswith("done")
    assert "%" not in third and "0/1.30k" in third


@pytest.mark.parametrize("width", [39, 79, 119, 160])
def test_a_stage_without_rows_moves_all_the_same(width: int) -> None:
    def line(stage: Stage) -> str:
        [found] = [line for line in drawn(Picture((Running("s.t", (stage,)),)), width) if stage.name in line]
        return " ".join(found.split())

    assert "%" not in line(Stage("extract", 0, 1_300, 4.0)) and line(
        Stage("extract", 0, 1_300, 4.0)
    ).endswith("4 s")
    copying = line(Stage("load", 0, 1_300, 9.0, step=Step("copy", 3, 12), stepped=2.0))
    merging = line(Stage("load", 0, 1_300, 9.0, step=Step("merge"), stepped=7.0))
    assert "%" not in copying + merging
    assert "copying files, 3 of 12, 2 s" in copying if width >= 120 else copying.endswith("copy 3/12")
    assert "merging rows, 7 s" in merging if width >= 120 else merging.endswith("merge 7s")


@pytest.mark.parametrize("width", [39, 79, 119, 120, 160])
@pytest.mark.parametrize("step", [Step("copy", 10, 12), Step("merge"), Step("insert"), Step("commit")])
def test_a_step_does_not_change_the_length_of_a_bar(width: int, step: Step) -> None:
    def bar(step: Step | None) -> int:
        stage = Stage("load", 300_000, 1_250_000, 9.0, step=step, stepped=12.0)
        return sum(
            line.count("━") + line.count("─") for line in drawn(Picture((Running("s.t", (stage,)),)), width)
        )

    assert bar(step) == bar(None) > 0


def test_a_step_is_shown_next_to_the_rows_that_are_in() -> None:
    inserting = Stage("load", 800_000, 1_250_000, 9.0, step=Step("insert"), stepped=3.0)
    [line, _] = drawn(Picture((Running("s.t", (inserting,)),)), 160)
    assert "64%" in line and "800,000 of 1,250,000 rows" in line and line.endswith("inserting rows, 3 s")
    narrow = drawn(Picture((Running("s.t", (inserting,)),)), 39)
    assert max(map(cells, narrow)) <= 39 and "64%" in narrow[1] and narrow[1].endswith("insert 3s")


@pytest.mark.parametrize(
    ("on", "told"),
    [
        (Wait("settling"), "waiting 3 s for fresh rows to settle"),
        (Wait("open_work", "statement of connection 7 (me@here), open for 9 s"), "statement of connection 7"),
        (Wait("spark"), "Spark to start"),
        (Wait("turn"), "its turn to load"),
        (Wait("warehouse"), "the warehouse to answer"),
        (Wait("lock", "process 4711 (python)"), "held by process 4711 (python)"),
    ],
)
def test_a_wait_says_what_for_once_it_lasts(on: Wait, told: str) -> None:
    short = drawn(Picture((Running("s.t", (Stage("plan", 0, None, 1.0),), on, 0.4),)), 119)
    assert short[0].endswith("planning")
    assert told in drawn(Picture((Running("s.t", (), on, 3.0),)), 119)[0]
    assert told in drawn(Picture((), waits=on, waited=3.0), 119)[0]


@pytest.mark.parametrize(
    ("number", "three", "two"),
    [
        (0, "0", "0"),
        (999, "999", "999"),
        (1_250, "1.25k", "1.2k"),
        (999_999, "1.00M", "1.0M"),
        (12_500_000, "12.5M", "12M"),
    ],
)
def test_large_numbers_are_short(number: int, three: str, two: str) -> None:
    assert (compact(number), compact(number, 2)) == (three, two)


def test_only_redshift_can_be_a_paused_cluster() -> None:
    assert said_wait(Wait("warehouse", "duckdb"), 5) == "waiting 5 s for DuckDB to answer"
    assert "paused cluster" in said_wait(Wait("warehouse", "redshift"), 5)
