"""What a Redshift database says about itself: rights, isolation, ledger, default role. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from floodmark.config.load import WarehouseSpec
from floodmark.load.protocol import LEDGER, TARGETS
from floodmark.load.redshift.ddl import keys_query
from floodmark.load.redshift.names import folded, literal, path
from floodmark.load.redshift.rights import DEFAULT_ROLE, Rights, ask_rights, ask_tables
from floodmark.load.redshift.steps import Failed, RedshiftSession, Row, Transport


@dataclass(frozen=True)
class DatabaseFacts:
    """The facts; None: the database did not say."""

    rights: Rights
    version: str
    isolation: str | None
    default_role: str | None
    commits: int | None  # in the ledger; None: there is no ledger yet
    assume_role: bool | None = None  # whether COPY may assume the role
    sees_others: bool | None = None  # whether the system views show other users' sessions
    sorted_ledger: bool | None = None  # whether a load finds its log's rows without reading all others

    @property
    def user(self) -> str:
        return self.rights.user


def look(way: Transport, schema: str, targets: Sequence[str] = (), role: str | None = None) -> DatabaseFacts:
    """The facts, with the rights on targets that may exist; raises our error if there is no session."""
    try:
        with closing(way.open("floodmark doctor")) as session:
            return _asked(session, schema.lower(), targets, role)
    except Failed as failed:
        raise failed.error from failed


def _asked(session: RedshiftSession, schema: str, targets: Sequence[str], role: str | None) -> DatabaseFacts:
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
        isolation=_isolation(session, rights.database),
        default_role=default,
        commits=_commits(session, rights),
        assume_role=_assumes(session, role, default),
        sees_others=_sees_others(session),
        sorted_ledger=_sorted_ledger(session, rights),
    )


def _isolation(session: RedshiftSession, database: str) -> str | None:
    """A database's isolation level, by a query that works everywhere, or by one for provisioned clusters."""
    name = literal(database)
    everywhere = f"SELECT database_isolation_level FROM svv_redshift_databases WHERE database_name = {name}"
    provisioned = f"SELECT isolation_level FROM stv_db_isolation_level WHERE db_name = {name}"
    return _maybe(session, everywhere) or _maybe(session, provisioned) or None


def _filled(session: RedshiftSession, rights: Rights) -> set[str]:
    """The targets that some pipeline fills, if the user may read them."""
    if not _readable(rights, TARGETS):
        return set()
    rows = session.query(f'SELECT DISTINCT "target" FROM {path(rights.schema, TARGETS)}')
    return {folded(str(target)) for (target,) in rows}


def _readable(rights: Rights, name: str) -> bool:
    return any(table.name == name and "SELECT" not in table.missing for table in rights.tables)


def _assumes(session: RedshiftSession, role: str | None, default: str | None) -> bool | None:
    """Whether COPY may assume the role; a chain is granted as one, the default role by name or by ARN."""
    if role is None or role.lower() == "default":
        role = default
        if _rows(
            session,
            f"SELECT command_type FROM svv_iam_privileges WHERE trim(iam_arn) = {literal(DEFAULT_ROLE)} "
            "AND trim(command_type) IN ('COPY', 'ALL')",
        ):
            return True
    if not role or not role.startswith("arn:"):
        return None
    said = _maybe(session, f"SELECT has_assumerole_privilege({literal(role)}, 'copy')")
    return None if said is None else said.lower() in ("true", "t", "1")


def _sees_others(session: RedshiftSession) -> bool | None:
    rows = _rows(session, "SELECT superuser, syslog_access FROM svv_user_info WHERE user_name = current_user")
    if not rows:
        return None
    superuser, access = rows[0]
    return bool(superuser) or str(access).strip().upper() == "UNRESTRICTED"


def _maybe(session: RedshiftSession, question: str) -> str | None:
    """The one value returned; None if this database, or this user, has none."""
    rows = _rows(session, question)
    return None if rows is None else str(rows[0][0] if rows[0][0] is not None else "").strip()


def _rows(session: RedshiftSession, question: str) -> list[Row] | None:
    """The rows returned; None if this database, or this user, has none."""
    try:
        return session.query(question) or None
    except Failed as failed:
        if failed.lost:
            raise
        return None


def _commits(session: RedshiftSession, rights: Rights) -> int | None:
    if not _readable(rights, LEDGER):
        return None
    found = _maybe(session, f"SELECT count(*) FROM {path(rights.schema, LEDGER)}")
    return None if found is None else int(found)


def _sorted_ledger(session: RedshiftSession, rights: Rights) -> bool | None:
    """Whether the ledger has its sort key; ledgers of the first release have none."""
    if not _readable(rights, LEDGER):
        return None
    keys = session.query(keys_query(rights.schema, LEDGER))
    return any(str(name) == "log_id" and int(place or 0) == 1 for name, _, place in keys)


def _version(text: str) -> str:
    found = re.search(r"Redshift [\w.]+", text)
    return found[0] if found else text[:60]


def region(spec: WarehouseSpec) -> str | None:
    """The warehouse's Region, by its configuration or its host's name."""
    if spec.iam is not None and spec.iam.region:
        return spec.iam.region
    found = re.search(
        r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.redshift(?:-serverless)?\.amazonaws\.com", spec.host or ""
    )
    return found[1] if found else None
