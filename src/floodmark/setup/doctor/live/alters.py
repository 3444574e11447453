"""Table changes: what Redshift alters in place, what it refuses, and with which error."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, refused, taken, tried

_GROUP = "alters"


def _after(
    before: Sequence[str],
    statement: str,
    judge: Callable[[list[tuple[object, ...]] | Refusal], Answer],
    *,
    block: bool = False,
) -> Callable[[Live], Answer]:
    """A statement that runs after some setup; `{}` is a name unique to this probe."""

    def ask(live: Live) -> Answer:
        name, view = (live.path(f"{kind}_{secrets.token_hex(4)}") for kind in ("table", "view"))
        with live.session("socket" if block else live.first) as session:
            for sql in before:
                if isinstance(made := tried(session, sql.format(name, view=view)), Refusal):
                    raise Unknown(str(made))
            if block:
                session.query("BEGIN")
            found = tried(session, statement.format(name, view=view))
            if block:
                session.query("ROLLBACK")
        return judge(found)

    return ask


_TABLE = "CREATE TABLE {} (id BIGINT, c VARCHAR(10), n INTEGER)"
_VIEW = "CREATE VIEW {view} AS SELECT c FROM {}"
_WIDEN = "ALTER TABLE {} ALTER COLUMN c TYPE VARCHAR(20)"


def _probe(name: str, question: str, assumed: str, ask: Callable[[Live], Answer]) -> Probe:
    return Probe(_GROUP, name, question, assumed, ask)


PROBES = (
    _probe("widen", "Can a VARCHAR be made longer?", "accepted", _after((_TABLE,), _WIDEN, taken)),
    _probe(
        "widen in a transaction",
        "Can a VARCHAR be made longer inside a transaction?",
        "refused: cannot run inside a transaction block",
        _after((_TABLE,), _WIDEN, lambda found: refused(found, "transaction block"), block=True),
    ),
    _probe(
        "same size",
        "What happens if a VARCHAR already has the new length?",
        "refused (0A000): target column size should be different",
        _after(
            (_TABLE,),
            "ALTER TABLE {} ALTER COLUMN c TYPE VARCHAR(10)",
            lambda found: refused(found, "target column size should be different"),
        ),
    ),
    _probe(
        "widen a number",
        "Can an INTEGER become a BIGINT in place?",
        "refused: VARCHAR sizes only",
        _after((_TABLE,), "ALTER TABLE {} ALTER COLUMN n TYPE BIGINT", refused),
    ),
    _probe(
        "widen under a view",
        "Can a VARCHAR be made longer under a view?",
        "refused: the view depends on it",
        _after((_TABLE, _VIEW), _WIDEN, lambda found: refused(found, "depend|view|rule")),
    ),
    _probe(
        "drop under a view",
        "Can a column be dropped under a view?",
        "refused (2BP01): the view depends on it",
        _after(
            (_TABLE, _VIEW), "ALTER TABLE {} DROP COLUMN c", lambda found: refused(found, "depend", "2BP01")
        ),
    ),
    _probe(
        "drop under a late view",
        "Can a column be dropped under a view WITH NO SCHEMA BINDING?",
        "accepted",
        _after((_TABLE, _VIEW + " WITH NO SCHEMA BINDING"), "ALTER TABLE {} DROP COLUMN c", taken),
    ),
    _probe(
        "drop under AUTO",
        "Can the first column of a table with DISTSTYLE AUTO and SORTKEY AUTO be dropped?",
        "accepted",
        _after((_TABLE,), "ALTER TABLE {} DROP COLUMN id", taken),
    ),
    _probe(
        "drop a DISTKEY",
        "Can a DISTKEY column be dropped?",
        "refused",
        _after((f"{_TABLE} DISTSTYLE KEY DISTKEY (id)",), "ALTER TABLE {} DROP COLUMN id", refused),
    ),
    _probe(
        "two columns",
        "Can one ALTER add two columns?",
        "refused: one column per statement",
        _after((_TABLE,), "ALTER TABLE {} ADD COLUMN a INTEGER, ADD COLUMN b INTEGER", refused),
    ),
    _probe(
        "add in a transaction",
        "Can a column be added inside a transaction?",
        "accepted",
        _after((_TABLE,), "ALTER TABLE {} ADD COLUMN a INTEGER DEFAULT 7", taken, block=True),
    ),
    _probe(
        "rename in a transaction",
        "Can a table be renamed inside a transaction?",
        "accepted",
        _after((_TABLE,), "ALTER TABLE {} RENAME TO renamed_by_a_probe", taken, block=True),
    ),
    _probe(
        "VARBYTE as a key",
        "Can a VARBYTE column be a DISTKEY?",
        "refused",
        _after((), "CREATE TABLE {} (k VARBYTE(16)) DISTSTYLE KEY DISTKEY (k)", refused),
    ),
)
