"""Small facts about Redshift's SQL that our statements rely on, or avoid."""

from __future__ import annotations

from collections.abc import Callable

from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, refused, taken, tried

_GROUP = "SQL"


def _furnished(live: Live) -> None:
    def make() -> bool:
        with live.session(live.first) as session:
            for name in ("one", "two"):
                session.execute(
                    f"CREATE TABLE {live.path(name)} (id BIGINT, c VARCHAR(65535), k VARBYTE(64))"
                )
                session.execute(f"INSERT INTO {live.path(name)} VALUES (1, 'a', NULL), (2, 'a ', NULL)")
        return True

    live.once("tables for SQL", make)


def _on(sql: str, judge: Callable[[list[tuple[object, ...]] | Refusal], Answer]) -> Callable[[Live], Answer]:
    """A statement on two small tables, `{one}` and `{two}`, with columns id, c and k."""

    def ask(live: Live) -> Answer:
        _furnished(live)
        with live.session(live.first) as session:
            return judge(tried(session, sql.format(one=live.path("one"), two=live.path("two"))))

    return ask


def _is(*want: object) -> Callable[[list[tuple[object, ...]] | Refusal], Answer]:
    def judge(found: list[tuple[object, ...]] | Refusal) -> Answer:
        if isinstance(found, Refusal):
            return Answer(False, str(found), found.as_json())
        cells = [str(cell) for cell in found[0]] if found else []
        return Answer(cells == [str(cell) for cell in want], ", ".join(cells) or "no rows")

    return judge


def _truncate(live: Live) -> Answer:
    with live.session() as session:
        session.execute(f"CREATE TABLE {live.path('cut')} (n BIGINT)")
        session.execute(f"CREATE TABLE {live.path('kept')} (n BIGINT)")
        session.query("BEGIN")
        session.query(f"INSERT INTO {live.path('kept')} VALUES (1)")
        found = tried(session, f"TRUNCATE {live.path('cut')}")
        tried(session, "ROLLBACK")
        if isinstance(found, Refusal):
            raise Unknown(str(found))
        rows = live.count(session, "kept")
    return Answer(rows == 1, f"{rows} rows remain of a transaction rolled back after TRUNCATE")


def _swap(live: Live) -> Answer:
    """Replace an old table with a new one in one transaction."""
    old, new = live.path("swapped"), live.path("swapped_new")
    with live.session() as session:
        session.execute(f"CREATE TABLE {old} (n BIGINT)")
        session.query("BEGIN")
        try:
            session.query(f"CREATE TABLE {new} (n BIGINT)")
            session.query(f"INSERT INTO {new} VALUES (1)")
            session.query(f"DROP TABLE {old}")
            found = tried(session, f"ALTER TABLE {new} RENAME TO swapped")
        finally:
            tried(session, "ROLLBACK" if isinstance(found, Refusal) else "COMMIT")
        if isinstance(found, Refusal):
            return Answer(False, str(found), found.as_json())
        rows = live.count(session, "swapped")
    return Answer(rows == 1, f"{rows} row in the table that took the name")


def _set_config(live: Live) -> Answer:
    with live.session() as session:
        found = tried(session, "SELECT set_config('statement_timeout', '123456', false)")
        if isinstance(found, Refusal):
            return Answer(False, str(found), found.as_json())
        said = str(session.query("SHOW statement_timeout")[0][0])
    return Answer(said in ("123456", "123456ms"), f"statement_timeout is {said}")


def _probe(name: str, question: str, assumed: str, ask: Callable[[Live], Answer]) -> Probe:
    return Probe(_GROUP, name, question, assumed, ask)


PROBES = (
    _probe(
        "trailing blanks",
        "Are 'a' and 'a ' equal, and no longer so with a character appended?",
        "2, 1",
        _on(
            "SELECT sum(CASE WHEN c = 'a' THEN 1 ELSE 0 END), sum(CASE WHEN c || '.' = 'a.' THEN 1 ELSE 0 END) FROM {one}",
            _is(2, 1),
        ),
    ),
    _probe(
        "DELETE USING",
        "Is DELETE … USING accepted with a join on equality?",
        "accepted",
        _on("DELETE FROM {one} USING {two} WHERE {one}.id = {two}.id AND {two}.id > 99", taken),
    ),
    _probe(
        "DELETE without equality",
        "Is DELETE … USING accepted with a join without equality?",
        "refused",
        _on("DELETE FROM {one} USING {two} WHERE {one}.id > {two}.id AND {two}.id > 99", refused),
    ),
    _probe(
        "VARBYTE partitions",
        "Can a window be partitioned by a VARBYTE?",
        "not documented; we partition by a hash in text",
        _on(
            "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY k ORDER BY id) AS p FROM {one}) AS r",
            lambda found: Answer(True, refused(found).found),
        ),
    ),
    _probe(
        "long strings",
        "Is a text of more than 65,535 bytes refused as a result of `||`?",
        "refused",
        _on("SELECT OCTET_LENGTH(c || REPEAT('x', 65535)) FROM {one}", refused),
    ),
    _probe(
        "large sums",
        "Does DECIMAL(38) hold a sum of hashes?",
        "accepted",
        _on(
            "SELECT sum(CAST(STRTOL('fffffffffffffff', 16) AS DECIMAL(38,0))) FROM {one}",
            _is(2 * (2**60 - 1)),
        ),
    ),
    _probe(
        "SHA2",
        "Does SHA2 return the same hash as Python?",
        "ba7816bf8f01cfea",
        _on("SELECT LOWER(SUBSTRING(SHA2('abc', 256), 1, 16))", _is("ba7816bf8f01cfea")),
    ),
    _probe(
        "substr",
        "Is substr, a leader-node function, refused next to a table?",
        "refused",
        _on("SELECT substr(c, 1, 1) FROM {one}", refused),
    ),
    _probe(
        "backslash",
        "Is a backslash in a literal an escape character?",
        "1",
        _on("SELECT OCTET_LENGTH('\\\\')", _is(1)),
    ),
    _probe(
        "set_config",
        "Does set_config set statement_timeout for the session?",
        "statement_timeout is 123456",
        _set_config,
    ),
    _probe("TRUNCATE", "Does TRUNCATE commit what came before it?", "1 rows remain", _truncate),
    _probe("swap", "Can a new table take an old one's name in one transaction?", "1 row", _swap),
)
