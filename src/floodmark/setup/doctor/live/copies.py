"""COPY: with each kind of role, and with manifests and files that are deliberately wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from floodmark.services.warehouse.redshift.errors import load_error_queries
from floodmark.services.warehouse.redshift.names import literal
from floodmark.services.warehouse.redshift.steps import Failed, RedshiftSession
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, refused, tried

_ROLES = "roles"
_FAULTS = "manifests"


def _ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def _copied(live: Live, role: str) -> Answer:
    """A COPY of three rows with a role."""
    manifest = live.manifest(live.put(_ids(1, 2, 3)).entry())
    with live.session(live.first) as session:
        session.execute(f"CREATE TABLE IF NOT EXISTS {live.path('roles')} (id BIGINT)")
        before = live.count(session, "roles")
        found = tried(session, live.copy("roles", manifest, role), live.scale.statement)
        if isinstance(found, Refusal):
            return Answer(False, str(found), found.as_json())
        rows = live.count(session, "roles") - before
    return Answer(rows == 3, f"{rows} rows of 3 loaded")


def _arn(live: Live) -> Answer:
    role = live.spec.iam_role or "default"
    if role.lower() == "default" or "," in role:
        raise Unknown("warehouse.iam_role is not the ARN of a single role")
    return _copied(live, live.role)


def _chain(live: Live) -> Answer:
    if "," not in (live.spec.iam_role or ""):
        raise Unknown("warehouse.iam_role is not a chain of roles")
    return _copied(live, live.role)


def _default(live: Live) -> Answer:
    answer = _copied(live, "IAM_ROLE default")
    code = answer.details.get("sqlstate")
    if answer.as_assumed or live.role == "IAM_ROLE default":
        return answer
    # The cluster may have no default role, or one without access to the bucket.
    return Answer(code != "42601", f"the syntax is accepted; {answer.found}", answer.details)


def _quoted_default(live: Live) -> Answer:
    answer = _copied(live, "IAM_ROLE 'default'")
    return Answer(not answer.as_assumed, answer.found, answer.details)


# ---------------------------------------------------------------- faults


def _load_errors(session: RedshiftSession, seconds: float) -> list[dict[str, Any]]:
    """What the system views show for this session's last load; they may lag by some seconds."""
    until = time.monotonic() + seconds
    while not (found := _noted(session)) and time.monotonic() < until:
        time.sleep(min(0.5, seconds / 4))
    return found


def _noted(session: RedshiftSession) -> list[dict[str, Any]]:
    for view, query in zip(
        ("sys_load_error_detail", "stl_load_errors"), load_error_queries(session.pid or 0), strict=True
    ):
        try:
            found = session.query(query)
        except Failed as failed:
            if failed.lost:
                raise
            continue
        if found:
            names = ("file", "line", "column", "type", "code", "reason")
            return [
                {"view": view, **{n: str(v).strip() for n, v in zip(names, row, strict=True)}}
                for row in found
            ]
    return []


def _faulty(
    columns: str, manifest: Callable[[Live], str], words: str, rest: str = ""
) -> Callable[[Live], Answer]:
    """A COPY that we expect to fail with these words and to load nothing."""

    def ask(live: Live) -> Answer:
        source = manifest(live)
        with live.session(live.first) as session:
            session.execute(f"DROP TABLE IF EXISTS {live.path('faulty')}")
            session.execute(f"CREATE TABLE {live.path('faulty')} ({columns})")
            found = tried(session, live.copy("faulty", source) + rest, live.scale.statement)
            noted = _load_errors(session, live.scale.wait) if isinstance(found, Refusal) else []
            rows = live.count(session, "faulty")
        answer = refused(found, words)
        read_well = isinstance(found, Refusal) and found.kind == "DataError"
        said = answer.found + (
            "" if read_well or not isinstance(found, Refusal) else f" (read as {found.kind})"
        )
        return Answer(
            answer.as_assumed and rows == 0 and read_well,
            said + (f"; {rows} rows loaded" if rows else ""),
            {**answer.details, "rows": rows, "load_errors": noted},
        )

    return ask


def _missing(live: Live) -> str:
    there, gone = live.put(_ids(1)), live.put(_ids(2))
    live.store.delete(["files/" + gone.uri.rsplit("/", 1)[1]])
    return live.manifest(there.entry(), gone.entry())


def _length(by: int) -> Callable[[Live], str]:
    def manifest(live: Live) -> str:
        file = live.put(_ids(1, 2, 3))
        return live.manifest(file.entry(meta={"content_length": file.bytes + by}))

    return manifest


def _no_length(live: Live) -> str:
    entry = live.put(_ids(1)).entry()
    del entry["meta"]
    return live.manifest(entry)


def _too_long(live: Live) -> str:
    return live.manifest(live.put(pa.table({"c": pa.array(["ab", "abcdef"])})).entry())


def _twice(live: Live) -> Answer:
    entry = live.put(_ids(1, 2)).entry()
    manifest = live.manifest(entry, entry)
    with live.session(live.first) as session:
        session.execute(f"CREATE TABLE {live.path('twice')} (id BIGINT)")
        found = tried(session, live.copy("twice", manifest), live.scale.statement)
        if isinstance(found, Refusal):
            return Answer(False, str(found), found.as_json())
        rows = live.count(session, "twice")
    return Answer(rows == 4, f"{rows} rows from two entries of one file with 2")


def _counted(live: Live) -> Answer:
    """What a transaction sees of its own COPY; our checks rely on it."""
    manifest = live.manifest(live.put(_ids(1, 2, 3)).entry())
    with live.session() as session:
        session.query("BEGIN")
        try:
            session.query("CREATE TEMP TABLE counted (id BIGINT)")
            session.query(
                f"COPY counted FROM {literal(manifest)} {live.role} MANIFEST FORMAT AS PARQUET STATUPDATE OFF"
            )
            found = session.query("SELECT count(*) FROM counted")[0][0]
        finally:
            session.query("ROLLBACK")
    return Answer(int(found) == 3, f"{found} after a COPY of 3 rows")


def _fault(
    name: str,
    question: str,
    assumed: str,
    columns: str,
    manifest: Callable[[Live], str],
    words: str,
) -> Probe:
    return Probe(
        _FAULTS,
        name,
        question,
        f"refused, nothing loaded: {assumed}",
        _faulty(columns, manifest, words),
    )


PROBES = (
    Probe(_ROLES, "ARN", "Does COPY accept the configured role's ARN?", "3 rows loaded", _arn),
    Probe(_ROLES, "chain", "Does COPY accept the configured chain of roles?", "3 rows loaded", _chain),
    Probe(
        _ROLES,
        "default",
        "Does COPY accept IAM_ROLE default, the keyword?",
        "the syntax is accepted",
        _default,
    ),
    Probe(
        _ROLES,
        "'default'",
        "Does COPY accept IAM_ROLE 'default', the string?",
        "refused: a string is an ARN",
        _quoted_default,
    ),
    _fault(
        "missing file",
        "How does COPY report that a mandatory file is missing?",
        "not found, or 8001",
        "id BIGINT",
        _missing,
        r"nosuchkey|404|mandatory url|not (found|exist)|does not exist|8001",
    ),
    _fault(
        "longer than the file",
        "How does COPY report a content_length that is one byte too long?",
        "416 InvalidRange, or another size",
        "id BIGINT",
        _length(1),
        r"invalidrange|416|content_length|size|length",
    ),
    _fault(
        "shorter than the file",
        "How does COPY report a content_length that is one byte too short?",
        "no valid footer, or another size",
        "id BIGINT",
        _length(-1),
        r"invalidrange|416|content_length|size|length|footer|magic|parquet",
    ),
    _fault(
        "no length",
        "How does COPY report an entry without meta?",
        "15003, File entry does not have 'meta' key",
        "id BIGINT",
        _no_length,
        r"meta|content_length|15003",
    ),
    _fault(
        "too few columns",
        "How does COPY report a file with fewer columns than the table?",
        "15007, Unmatched number of columns",
        "id BIGINT, n BIGINT",
        lambda live: live.manifest(live.put(_ids(1)).entry()),
        r"unmatched number of columns",
    ),
    _fault(
        "over-long text",
        "How does COPY report a text that is longer than its column?",
        "15001, longer than the length defined in the table",
        "c VARCHAR(3)",
        _too_long,
        r"longer than the length",
    ),
    _fault(
        "INT64 into INTEGER",
        "How does COPY report an integer that is wider than its column's type?",
        "15007, incompatible Parquet schema",
        "id INTEGER",
        lambda live: live.manifest(live.put(_ids(1)).entry()),
        r"incompatible parquet schema",
    ),
    Probe(_FAULTS, "listed twice", "Is a file that a manifest lists twice loaded twice?", "yes", _twice),
    Probe(
        _FAULTS,
        "rows counted",
        "Does a transaction see all rows of its own COPY?",
        "3",
        _counted,
    ),
)
