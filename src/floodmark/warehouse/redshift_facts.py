"""What a Redshift database says of itself to the user who loads: rights, isolation, ledger, default role. Looks only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from floodmark.config import WarehouseSpec
from floodmark.warehouse import LEDGER, TARGETS
from floodmark.warehouse.redshift_names import folded, literal, path
from floodmark.warehouse.redshift_rights import Rights, ask_rights, ask_tables
from floodmark.warehouse.redshift_steps import Failed, Limits, Row, Session, Transport


@dataclass(frozen=True)
class DatabaseFacts:
    """The facts; None: it did not say."""

    rights: Rights
    version: str
    isolation: str | None
    default_role: str | None
    commits: int | None  # in the ledger; None: there is no ledger yet
    assume_role: bool | None = None  # whether COPY may assume the role
    sees_others: bool | None = None  # whether the system views show sessions of other users

    @property
    def user(self) -> str:
        return self.rights.user


def transport(spec: WarehouseSpec, seconds: float) -> Transport:
    """A way into the database that gives up soon."""
    limits = Limits(connect=seconds, question=seconds, grace=1.0, attempts=1)
    if spec.transport == "data_api":
        from floodmark.warehouse.redshift_data_api import DataApiTransport

        return DataApiTransport(spec, limits)
    from floodmark.warehouse.redshift_socket import SocketTransport

    return SocketTransport(spec, limits)


def look(way: Transport, schema: str, targets: Sequence[str] = (), role: str | None = None) -> DatabaseFacts:
    """The facts, with the rights on targets that may be there; raises why there is no session, in our words."""
    try:
        session = way.open("floodmark doctor")
        try:
            return _asked(session, schema.lower(), targets, role)
        finally:
            session.close()
    except Failed as failed:
        raise failed.error from failed


def _asked(session: Session, schema: str, targets: Sequence[str], role: str | None) -> DatabaseFacts:
    [(version,)] = session.query("SELECT version()")
    names = {folded(target) for target in targets}
    rights = ask_rights(session, schema, sorted(names), ours=True)
    if filled := sorted(_filled(session, rights) - names):
        tables = ask_tables(session, schema, filled)
        rights = replace(rights, tables=(*rights.tables, *tables))
    default = _maybe(session, "SELECT default_iam_role()")
    return DatabaseFacts(
        rights=rights,
        version=_version(str(version)),
        isolation=_maybe(
            session,
            f"SELECT isolation_level FROM stv_db_isolation_level WHERE db_name = {literal(rights.database)}",
        ),
        default_role=default,
        commits=_commits(session, rights),
        assume_role=_assumes(session, default if role is None or role.lower() == "default" else role),
        sees_others=_sees_others(session),
    )


def _filled(session: Session, rights: Rights) -> set[str]:
    """The targets that some pipeline fills, as far as the user may know."""
    if not _readable(rights, TARGETS):
        return set()
    rows = session.query(f'SELECT DISTINCT "target" FROM {path(rights.schema, TARGETS)}')
    return {folded(str(target)) for (target,) in rows}


def _readable(rights: Rights, name: str) -> bool:
    return any(table.name == name and "SELECT" not in table.missing for table in rights.tables)


def _assumes(session: Session, role: str | None) -> bool | None:
    """Whether COPY may assume the role; a chain is granted as one."""
    if not role or not role.startswith("arn:"):
        return None
    said = _maybe(session, f"SELECT has_assumerole_privilege({literal(role)}, 'copy')")
    return None if said is None else said.lower() in ("true", "t", "1")


def _sees_others(session: Session) -> bool | None:
    rows = _rows(session, "SELECT superuser, syslog_access FROM svv_user_info WHERE user_name = current_user")
    if not rows:
        return None
    superuser, access = rows[0]
    return bool(superuser) or str(access).strip().upper() == "UNRESTRICTED"


def _maybe(session: Session, question: str) -> str | None:
    """The one answer; None where this database, or this user, has none."""
    rows = _rows(session, question)
    return None if rows is None else str(rows[0][0] if rows[0][0] is not None else "").strip()


def _rows(session: Session, question: str) -> list[Row] | None:
    """The answer; None where this database, or this user, has none."""
    try:
        return session.query(question) or None
    except Failed as failed:
        if failed.lost:
            raise
        return None


def _commits(session: Session, rights: Rights) -> int | None:
    if not _readable(rights, LEDGER):
        return None
    found = _maybe(session, f"SELECT count(*) FROM {path(rights.schema, LEDGER)}")
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
