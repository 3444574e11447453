"""The rule by which a warehouse counts rows for the next load gives the same result here and in SQL."""

from itertools import product

import duckdb

from floodmark.services.warehouse.decide import Counting


def test_the_row_count_that_the_next_load_expects_is_the_same_in_sql() -> None:
    rules = [
        Counting(),
        *(Counting(more) for more in (-3, 2)),
        *(Counting(least=least) for least in (0, 4)),
        *(Counting(expected - there, there=there, most=expected) for there, expected in ((5, 3), (9, 0))),
    ]
    with duckdb.connect() as link:
        for rule, after in product(rules, range(12)):
            found = link.execute(f"SELECT {rule.sql('n')} FROM (SELECT {after} AS n)").fetchone()
            assert found == (rule.of(after),)
