"""SQL for the source, as text."""

import pytest

from floodmark.source.sql import unsteady


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("status <> 9", ()),
        ("created_at > NOW() - INTERVAL 30 DAY", ("NOW",)),
        ("day = curdate ( )", ("CURDATE",)),
        ("at < CURRENT_TIMESTAMP", ("CURRENT_TIMESTAMP",)),
        ("at < UNIX_TIMESTAMP()", ("UNIX_TIMESTAMP",)),
        ("UNIX_TIMESTAMP(at) > 5", ()),
        ("note <> 'now() select @x' -- rand()\n AND `select` = 1", ()),
        ("id IN (SELECT id FROM other)", ("a subquery",)),
        ("RAND() < 0.5 OR id > @least", ("RAND", "a variable")),
        ("`shop`.`is_open`(id)", ("a stored function",)),
        ("orders.status IN ('a') AND UPPER(note) = 'A' AND now = 1", ()),
        ("mail LIKE '%@shop.com'", ()),
    ],
)
def test_a_condition_that_changes_without_the_row_is_named(condition: str, why: tuple[str, ...]) -> None:
    assert unsteady(condition) == why
