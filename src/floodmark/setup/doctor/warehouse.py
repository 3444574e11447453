"""Checks the warehouse: whether a load can reach, open and write it, and what it would find there."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import closing

from floodmark.config.load import Config, WarehouseSpec
from floodmark.load.protocol import LEDGER, open_warehouse, quote
from floodmark.load.redshift.facts import (
    DatabaseFacts,
    Rights,
    assuming,
    look,
    region,
    table_grants,
    taking_over,
)
from floodmark.load.redshift.warehouse import transport
from floodmark.model.errors import FloodmarkError
from floodmark.model.text import counted, size
from floodmark.model.warehouse import named
from floodmark.setup.doctor.check import Check, Section, bastion, nearby, reach
from floodmark.setup.doctor.store import bucket_head

SECTION = Section("warehouse")
LOCK_SECONDS = 3.0
ANSWER_SECONDS = 6.0
MANY_COMMITS = 100_000  # in a ledger; fewer are read at once without a sort key too
_REDSHIFT = ("log-in", "schema", "temp tables", "tables", "isolation", "IAM role", "sessions", "ledger")


def examine_warehouse(config: Config, file_lock: threading.Lock) -> Iterator[Check]:
    """As the warehouse's descriptor says; without that, whether the ledger can be read. A file is open only under the lock."""
    examines = config.warehouse.descriptor.examines
    yield from named(examines)(config, file_lock) if examines else _examine(config)


def _examine(config: Config) -> Iterator[Check]:
    try:
        with closing(open_warehouse(config.warehouse, seconds=ANSWER_SECONDS)) as warehouse:
            yield _ledger(sum(one.commits for one in warehouse.ledger_sums(lambda: True)) or None)
    except FloodmarkError as error:
        yield SECTION.failed("ledger", error)


# ---------------------------------------------------------------- DuckDB


def examine_duckdb(config: Config, file_lock: threading.Lock) -> Iterator[Check]:
    """Whether the file can be written, and what is in it."""
    yield from SECTION.in_order(_duckdb(config.warehouse, file_lock), ("file", "ledger"))


def _duckdb(spec: WarehouseSpec, file_lock: threading.Lock) -> Iterator[Check]:
    path, schema = spec.path, spec.schema
    assert path is not None
    folder = path.parent
    if not folder.is_dir():
        yield SECTION.failure("folder", f"there is no folder {folder}", "create it, or change warehouse.url")
    if not os.access(folder, os.W_OK | os.X_OK):
        hint = "grant it to this user, or change warehouse.url"
        yield SECTION.failure("folder", f"no permission to write to {folder}", hint)
    yield SECTION.space("folder", folder, str(folder), "free some space for loads and their temporary files")
    if not path.exists():
        yield SECTION.ok("file", f"{path.name} does not exist yet: the first load creates it")
        return
    from floodmark.load.duckdb import ledger as duckdb_ledger

    try:
        with file_lock:
            version, commits = duckdb_ledger.look(path, schema, LOCK_SECONDS)
    except FloodmarkError as error:
        yield SECTION.failed("file", error)
        return
    yield SECTION.ok("file", f"{path.name}, {size(path.stat().st_size)}, writable; DuckDB {version}")
    if path.stat().st_mode & stat.S_IROTH:
        yield SECTION.warning("rights", f"{path}: other users can read its rows", f"chmod 600 {path}")
    yield _ledger(commits)


def _ledger(commits: int | None) -> Check:
    if commits is None:
        return SECTION.ok("ledger", "none yet: the first load creates it")
    return SECTION.ok("ledger", f"{counted(commits, 'commit')} loaded")


# ---------------------------------------------------------------- Redshift


def examine_redshift(config: Config, file_lock: threading.Lock) -> Iterator[Check]:
    """Whether the database can be reached, and what our user may do there."""
    facts = list[DatabaseFacts]()
    if (yield from SECTION.in_order(_way(config, facts), _REDSHIFT)) is not None:
        return
    yield _encryption(config.warehouse)
    yield from check_database(facts[0], config.warehouse)
    if config.store.endpoint is None:
        yield regions(region(config.warehouse), bucket_head(config.store.url, None).region)


def _way(config: Config, facts: list[DatabaseFacts]) -> Iterator[Check]:
    """Each step needs the one before; the last one gets the facts."""
    spec = config.warehouse
    if spec.transport == "data_api" or spec.host is None or spec.port is None:
        yield SECTION.ok("port", "through AWS's Data API")
    elif spec.ssh is not None:
        yield from bastion(SECTION, spec.ssh, spec.host, spec.port)
    else:
        yield from reach(SECTION, spec.host, spec.port)
    try:
        facts.append(look(transport(spec, ANSWER_SECONDS), spec.schema, _targets(config), spec.iam_role))
    except FloodmarkError as error:
        yield SECTION.log_in_failed(error)


def _encryption(spec: WarehouseSpec) -> Check:
    mode = spec.tls.mode if spec.tls else "verify_identity"
    if spec.transport == "data_api":
        return SECTION.ok("TLS", "https to AWS")
    if mode == "disabled":
        wrong = f"passwords and rows travel to {spec.host} in plain text"
        safe = nearby(spec.host or "") or spec.ssh is not None
        hint = "remove warehouse.tls.mode: disabled"
        return SECTION.check("TLS", "not encrypted, as configured", None if safe else wrong, hint)
    checked = "authority and host name" if mode == "verify_identity" else "authority"
    return SECTION.ok("TLS", f"encrypted; certificate verified ({checked})")


def _targets(config: Config) -> tuple[str, ...]:
    """The targets of the tables that the configuration names."""
    named = [name for name in config.tables if not re.search(r"[*?\[]", name)]
    return tuple(config.options(name).target or name.partition(".")[2] or name for name in named)


def check_database(facts: DatabaseFacts, spec: WarehouseSpec) -> Iterator[Check]:
    """The database's facts as checks."""
    rights, commits = facts.rights, facts.commits or 0
    yield SECTION.ok("log-in", f"as {facts.user}; {facts.version}")
    yield _schema(rights)
    without = f"{facts.user} may not create temporary tables in {rights.database}, and each load needs one"
    yield _granted("temp tables", "may be created", without, rights.temp_grant)
    yield from _tables(rights)
    yield isolation(facts.isolation)
    yield iam_role(spec.iam_role, facts.default_role)
    if facts.assume_role is not None:
        without = f"{facts.user} may not COPY with the role {spec.iam_role or facts.default_role}"
        grant = None if facts.assume_role else assuming(spec.iam_role or "default", facts.user)
        yield _granted("ASSUMEROLE", f"{facts.user} may COPY with the role", without, grant)
    yield _sessions(facts)
    ledger = quote(rights.schema, LEDGER)
    if any(table.name == LEDGER and table.missing for table in rights.tables):
        yield from SECTION.skipped("ledger", "see tables")
    elif facts.sorted_ledger is False and commits >= MANY_COMMITS:
        yield SECTION.warning(
            "ledger",
            f"{counted(commits, 'commit')} loaded; it was created by an earlier release without a sort key, so every load reads all of it",
            f"while nothing loads: ALTER TABLE {ledger} ALTER DISTSTYLE ALL; "
            f"ALTER TABLE {ledger} ALTER SORTKEY (log_id, epoch, n)",
        )
    else:
        yield _ledger(facts.commits)


def _granted(name: str, fine: str, without: str, grant: str | None) -> Check:
    """A privilege that is there, or the statement that grants it."""
    return SECTION.ok(name, fine) if grant is None else SECTION.failure(name, without, grant)


def _schema(rights: Rights) -> Check:
    if rights.schema_exists:
        fine, what = f"{rights.schema}: tables may be created", f"create tables in schema {rights.schema}"
        return _granted("schema", fine, f"{rights.user} may not {what}", rights.schema_grant)
    fine = f"{rights.schema} does not exist yet: the first load creates it"
    without = f"there is no schema {rights.schema}, and {rights.user} may not create it"
    return _granted("schema", fine, without, rights.schema_grant)


def _tables(rights: Rights) -> Iterator[Check]:
    """Targets and our own tables, if they exist."""
    if not rights.use_schema:
        yield from SECTION.skipped("tables", "see schema")
        return
    lacking = [table for table in rights.tables if table.missing]
    if lacking:
        named = "; ".join(f"{', '.join(table.missing)} on {table.name}" for table in lacking[:5])
        more = f"; and {counted(len(lacking) - 5, 'more table')}" if len(lacking) > 5 else ""
        grants = "; ".join(table_grants(rights.schema, rights.tables, rights.user))
        yield SECTION.failure("tables", f"{rights.user} lacks {named}{more}", grants)
    elif rights.tables:
        yield SECTION.ok("tables", f"{counted(len(rights.tables), 'table')} can be read and written")
    foreign = [table for table in rights.tables if not table.owned and not rights.superuser]
    if foreign:
        named = ", ".join(f"{table.name} ({table.owner})" for table in foreign[:5])
        yield SECTION.warning(
            "owners",
            f"{counted(len(foreign), 'table')} with other owners: rows can be loaded, but columns perhaps not changed: {named}",
            "; ".join(taking_over(rights.schema, table.name, rights.user) for table in foreign[:5]),
        )


def _sessions(facts: DatabaseFacts) -> Check:
    """Redshift shows who holds a lock only to some users."""
    said = "other users' sessions are visible, so the holder of a lock can be named"
    if not facts.sees_others:
        known = "not visible" if facts.sees_others is False else "perhaps not visible"
        grant = f"ALTER USER {quote(facts.user)} SYSLOG ACCESS UNRESTRICTED"
        said = f"other users' sessions are {known}; to see who holds a lock: {grant}"
    return SECTION.ok("sessions", said)


def isolation(level: str | None) -> Check:
    """The isolation level; loads are correct under either."""
    if level is None:
        return SECTION.ok("isolation", "not visible to this user; loads are correct under either level")
    if "serial" in level.lower():
        return SECTION.warning(
            "isolation",
            "SERIALIZABLE: loads don't conflict with each other, but a transaction of yours that reads and writes the same "
            "tables as a load may make one of the two fail with error 1023; the load is then retried",
            "ALTER DATABASE … ISOLATION LEVEL SNAPSHOT, the default of new clusters",
        )
    return SECTION.ok("isolation", "SNAPSHOT")


def iam_role(configured: str | None, default: str | None) -> Check:
    """The role that COPY reads the bucket with; only a COPY can prove its rights."""
    if configured is not None and configured.lower() != "default":
        return SECTION.ok("IAM role", f"{configured}; the first load shows whether it can read the bucket")
    if default is None:
        return SECTION.ok("IAM role", "the cluster's default; the first load shows whether there is one")
    if not default or default.lower() == "none":
        return SECTION.failure(
            "IAM role",
            "warehouse.iam_role is not set, and the cluster has no default role: COPY can't read the bucket",
            "set warehouse.iam_role, or give the cluster a default role",
        )
    return SECTION.ok("IAM role", f"the cluster's default, {default}")


def regions(cluster: str | None, bucket: str | None) -> Check:
    """COPY of Parquet can't read from a Region other than the cluster's."""
    if cluster and bucket and cluster != bucket:
        return SECTION.failure(
            "region",
            f"the warehouse is in {cluster} and the bucket in {bucket}: COPY of Parquet can't cross Regions",
            f"use a bucket in {cluster}",
        )
    unknown = "unknown; bucket and warehouse must be in the same Region"
    return SECTION.ok("region", f"{cluster}, the same as the bucket's" if cluster and bucket else unknown)
