"""What a Redshift database says of itself to the user who loads: rights, isolation, ledger, default role. Looks only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from floodmark.config import WarehouseSpec
from floodmark.warehouse import LEDGER
from floodmark.warehouse.redshift_ledger import LedgerTables
from floodmark.warehouse.redshift_names import literal, path
from floodmark.warehouse.redshift_steps import Failed, Limits, Session, Transport


@dataclass(frozen=True)
class DatabaseFacts:
    """The facts; None: it did not say."""

    user: str
    version: str
    schema_exists: bool
    use_schema: bool
    create_in_schema: bool
    create_schema: bool
    temp: bool
    isolation: str | None
    default_role: str | None
    commits: int | None  # in the ledger; None: there is no ledger yet


def transport(spec: WarehouseSpec, seconds: float) -> Transport:
    """A way into the database that gives up soon."""
    limits = Limits(connect=seconds, question=seconds, grace=1.0, attempts=1)
    if spec.transport == "data_api":
        from floodmark.warehouse.redshift_data_api import DataApiTransport

        return DataApiTransport(spec, limits)
    from floodmark.warehouse.redshift_socket import SocketTransport

    return SocketTransport(spec, limits)


def look(way: Transport, schema: str) -> DatabaseFacts:
    """The facts; raises why there is no session, in our words."""
    try:
        session = way.open("floodmark doctor")
        try:
            return _asked(session, schema.lower())
        finally:
            session.close()
    except Failed as failed:
        raise failed.error from failed


def _asked(session: Session, schema: str) -> DatabaseFacts:
    name = literal(schema)
    [(user, version, database)] = session.query("SELECT current_user, version(), current_database()")
    where = literal(str(database))
    there = bool(session.query(f"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = {name}"))
    right = session.query(
        f"SELECT has_database_privilege({where}, 'TEMP'), has_database_privilege({where}, 'CREATE')"
    )[0]
    use = create = False
    if there:
        use, create = session.query(
            f"SELECT has_schema_privilege({name}, 'USAGE'), has_schema_privilege({name}, 'CREATE')"
        )[0]
    return DatabaseFacts(
        user=str(user),
        version=_version(str(version)),
        schema_exists=there,
        use_schema=bool(use),
        create_in_schema=bool(create),
        create_schema=bool(right[1]),
        temp=bool(right[0]),
        isolation=_maybe(
            session, f"SELECT isolation_level FROM stv_db_isolation_level WHERE db_name = {where}"
        ),
        default_role=_maybe(session, "SELECT default_iam_role()"),
        commits=_commits(session, schema) if use else None,
    )


def _maybe(session: Session, question: str) -> str | None:
    """The answer; None where this database, or this user, has none."""
    try:
        rows = session.query(question)
    except Failed as failed:
        if failed.lost:
            raise
        return None
    return str(rows[0][0] or "").strip() if rows else None


def _commits(session: Session, schema: str) -> int | None:
    if LEDGER not in LedgerTables(schema).kinds(session, (LEDGER,)):
        return None
    found = _maybe(session, f"SELECT count(*) FROM {path(schema, LEDGER)}")
    return None if found is None else int(found)


def _version(text: str) -> str:
    found = re.search(r"Redshift [\w.]+", text)
    return found[0] if found else text[:60]


def region(spec: WarehouseSpec) -> str | None:
    """The Region that the warehouse is in, by its configuration or its host's name."""
    if spec.iam is not None and spec.iam.region:
        return spec.iam.region
    found = re.search(
        r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.redshift(?:-serverless)?\.amazonaws\.com", spec.host or ""
    )
    return found[1] if found else None
