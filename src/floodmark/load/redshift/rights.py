"""Which rights a Redshift user lacks, and the statements that grant them.

A load needs SELECT, INSERT, UPDATE and DELETE on its target and on our own tables, and ownership where it
changes columns. Redshift's error names one table at most, so we query all rights at once and report them with
the statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from floodmark.load.protocol import quote
from floodmark.load.redshift.errors import NoRights
from floodmark.load.redshift.names import literal, path
from floodmark.load.redshift.steps import Failed, RedshiftSession, Transport
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
        except Failed:
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
