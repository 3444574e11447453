"""What a Redshift database says about itself, which rights its user lacks, and the statements that grant them.

A load needs SELECT, INSERT, UPDATE and DELETE on its target and on our own tables, and ownership where it
changes columns. Redshift's error names one table at most, so we query all rights at once and report them with
the statements. Nothing here changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from floodmark.config.load import WarehouseSpec
from floodmark.load.protocol import LEDGER, TARGETS, quote
from floodmark.load.redshift.catalog import folded, literal, path
from floodmark.load.redshift.shape import keys_query
from floodmark.load.redshift.steps import NoRights, RedshiftSession, Row, StatementFailed, Transport
from floodmark.model.errors import ConfigError
from floodmark.model.names import OUR_TABLES

NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE")
DEFAULT_ROLE = "default-aws-iam-role"  # as SVV_IAM_PRIVILEGES calls it
MANY = 20  # at most this many tables are named in a GRANT
_OWNED = re.compile(r"must be owner of (?:relation|table) (\S+)")
_ASSUMED = re.compile(
    r"""does not have ASSUMEROLE permission on IAM role "([^"]+)" for (\w+)""", re.IGNORECASE
)


@dataclass(frozen=True)
class TableRights:
    """What the user may do with an existing table."""

    name: str
    owner: str
    owned: bool  # by the user
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Rights:
    """What the user may do; `grants` is what a load still needs."""

    user: str
    database: str
    schema: str
    schema_exists: bool
    use_schema: bool
    create_in_schema: bool
    create_schema: bool
    temp: bool
    superuser: bool = False
    tables: tuple[TableRights, ...] = ()

    @property
    def grants(self) -> tuple[str, ...]:
        """The statements that grant what is missing, for someone who may run them."""
        first = [grant for grant in (self.schema_grant, self.temp_grant) if grant]
        return (*first, *table_grants(self.schema, self.tables, self.user))

    @property
    def schema_grant(self) -> str | None:
        who = quote(self.user)
        if not self.schema_exists:
            return None if self.create_schema else f"CREATE SCHEMA {quote(self.schema)} AUTHORIZATION {who}"
        lacking = [w for w, has in (("USAGE", self.use_schema), ("CREATE", self.create_in_schema)) if not has]
        return f"GRANT {', '.join(lacking)} ON SCHEMA {quote(self.schema)} TO {who}" if lacking else None

    @property
    def temp_grant(self) -> str | None:
        return None if self.temp else f"GRANT TEMP ON DATABASE {quote(self.database)} TO {quote(self.user)}"


def table_grants(schema: str, tables: Sequence[TableRights], user: str) -> tuple[str, ...]:
    """One GRANT for all tables that lack the same rights; for very many tables, one for the whole schema."""
    if sum(1 for table in tables if table.missing) > MANY:
        return (f"GRANT {', '.join(NEEDED)} ON ALL TABLES IN SCHEMA {quote(schema)} TO {quote(user)}",)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for table in tables:
        if table.missing:
            lacking.setdefault(table.missing, []).append(path(schema, table.name))
    return tuple(
        f"GRANT {', '.join(missing)} ON TABLE {', '.join(names)} TO {quote(user)}"
        for missing, names in lacking.items()
    )


def taking_over(schema: str, table: str, user: str) -> str:
    """The statement that makes the user the table's owner, who may change its columns."""
    return f"ALTER TABLE {path(schema, table)} OWNER TO {quote(user)}"


def assuming(role: str, user: str) -> str:
    """The statement that lets the user COPY with a role, or with a chain of them."""
    named = "default" if role.lower() in ("default", DEFAULT_ROLE) else literal(role)
    return f"GRANT ASSUMEROLE ON {named} TO {quote(user)} FOR COPY"


def _tables_query(schema: str, names: Sequence[str], *, ours: bool) -> str:
    """The query for the rights on some tables; `ours`: and on every table with our prefix.

    It reads only the catalog, which is on the leader node.
    """
    asked = ", ".join(
        f"has_table_privilege('\"' || n.nspname || '\".\"' || c.relname || '\"', '{right}')"
        for right in NEEDED
    )
    which = [f"c.relname IN ({', '.join(literal(name) for name in names)})"] if names else []
    which += [f"SUBSTRING(c.relname, 1, {len(OUR_TABLES)}) = {literal(OUR_TABLES)}"] if ours else []
    return (
        f"SELECT c.relname, pg_get_userbyid(c.relowner), current_user, {asked} FROM pg_class AS c "
        f"JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = {literal(schema)} AND c.relkind = 'r' "
        f"AND ({' OR '.join(which) or '1 = 0'}) ORDER BY c.relname"
    )


def ask_rights(
    session: RedshiftSession, schema: str, names: Sequence[str] = (), *, ours: bool = False
) -> Rights:
    """What the user of a session may do in a schema, and with some of its tables."""
    [(user, database, superuser)] = session.query(
        "SELECT current_user, current_database(), (SELECT usesuper FROM pg_user WHERE usename = current_user)"
    )
    where = literal(str(database))
    [(temp, create_schema)] = session.query(
        f"SELECT has_database_privilege({where}, 'TEMP'), has_database_privilege({where}, 'CREATE')"
    )
    found = session.query(
        "SELECT has_schema_privilege(nspname, 'USAGE'), has_schema_privilege(nspname, 'CREATE') "
        f"FROM pg_namespace WHERE nspname = {literal(schema)}"
    )
    use, create = found[0] if found else (False, False)
    return Rights(
        user=str(user),
        database=str(database),
        schema=schema,
        schema_exists=bool(found),
        use_schema=bool(use),
        create_in_schema=bool(create),
        create_schema=bool(create_schema),
        temp=bool(temp),
        superuser=bool(superuser),
        tables=ask_tables(session, schema, names, ours=ours) if use else (),
    )


def ask_tables(
    session: RedshiftSession, schema: str, names: Sequence[str], *, ours: bool = False
) -> tuple[TableRights, ...]:
    """The rights on those of the named tables that exist."""
    found = []
    for name, owner, user, *may in session.query(_tables_query(schema, names, ours=ours)):
        missing = tuple(right for right, has in zip(NEEDED, may, strict=True) if not has)
        found.append(TableRights(str(name), str(owner), str(owner) == str(user), missing))
    return tuple(found)


@contextmanager
def naming_rights(transport: Transport, schema: str, names: Sequence[str]) -> Iterator[None]:
    """If Redshift refuses for lack of a right, report all that are missing, with the statements to run."""
    try:
        yield
    except NoRights as refused:
        try:
            with closing(transport.open()) as session:
                rights = ask_rights(session, schema.lower(), names)
        except StatementFailed:
            raise refused from None
        raise explained(refused, rights) from refused


def explained(refused: NoRights, rights: Rights) -> ConfigError:
    """The refusal with the statements to run; unchanged if nothing is found missing."""
    owned = _OWNED.search(refused.refusal)
    run = [*rights.grants]
    what = [f"{', '.join(t.missing)} on {t.name}" for t in rights.tables if t.missing]
    if owned:
        name = owned[1].strip('"')
        run.append(taking_over(rights.schema, name, rights.user))
        what.append(f"ownership of {name}")
    if assumed := _ASSUMED.search(refused.refusal):
        run.append(assuming(assumed[1], rights.user))
    if not run:
        return refused
    said = f" (no {'; no '.join(what)})" if what else ""
    return NoRights(f"{refused.message}{said}", hint=f"run as a superuser or the owner: {'; '.join(run)}")


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
    except StatementFailed as failed:
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
    except StatementFailed as failed:
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
