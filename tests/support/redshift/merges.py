"""MERGE as Redshift has it: both WHEN clauses, no conditions on them, no alias for the target; or REMOVE DUPLICATES."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.redshift.plans import Context, Plan
from tests.support.redshift.postgres import literal
from tests.support.redshift.refusals import expression
from tests.support.redshift.tokens import Token, find, says, sql_of, syntax_error
from tests.support.redshift.wire import SqlError


def _name_end(tokens: Sequence[Token], at: int) -> int:
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == ".":
        end += 2
    return end


def merge(sql: str, tokens: Sequence[Token]) -> Plan:
    """The plan of a MERGE."""
    if not says(tokens, 1, "INTO") or len(tokens) < 6:
        raise syntax_error(tokens[1] if len(tokens) > 1 else None)
    end = _name_end(tokens, 2)
    target = "".join(t.text for t in tokens[2:end])
    if not says(tokens, end, "USING"):
        raise syntax_error(tokens[end] if end < len(tokens) else None)  # an alias, for example
    on = next(find(tokens, "ON"), None)
    if on is None:
        raise syntax_error(None)
    if says(tokens, len(tokens) - 2, "REMOVE", "DUPLICATES"):
        source, condition = tokens[end + 1 : on], tokens[on + 1 : -2]
        return Plan(sql, run=_remover(target, sql_of(source), sql_of(expression(condition))), writes=target)
    matched = list(find(tokens, "WHEN", "MATCHED"))
    absent = list(find(tokens, "WHEN", "NOT", "MATCHED"))
    if len(matched) != 1 or len(absent) != 1:
        raise SqlError("42601", "MERGE requires one WHEN MATCHED and one WHEN NOT MATCHED clause")
    for at in (matched[0] + 2, absent[0] + 3):
        if not says(tokens, at, "THEN"):
            raise syntax_error(tokens[at] if at < len(tokens) else None)
    return Plan(sql, sql_of(expression(tokens)), writes=target)


def _remover(target: str, source: str, condition: str) -> Callable[[Context], str]:
    table = source.split(" AS ")[0]

    def run(context: Context) -> str:
        counts = [
            context.backend.query(
                "SELECT count(*) FROM pg_catalog.pg_attribute WHERE attnum > 0 AND NOT attisdropped "
                f"AND attrelid = {literal(name)}::pg_catalog.regclass"
            )[0][0]
            for name in (target, table.split()[0])
        ]
        if counts[0] != counts[1]:
            raise SqlError(
                "42601", "Target relation and source relation must have the same number of columns"
            )
        steps = (
            f"DELETE FROM {target} USING {source} WHERE {condition}",
            f"INSERT INTO {target} SELECT * FROM {table}",
        )
        block = context.in_block
        for step in steps if block else ("BEGIN", *steps, "COMMIT"):
            try:
                context.backend.query(step)
            except SqlError:
                if not block:
                    context.backend.query("ROLLBACK")
                raise
        return "MERGE"

    return run
