"""The warehouse: whether it can be reached, opened and written to by a load, and what a load would find there."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from floodmark.config import Config, WarehouseSpec
from floodmark.doctor.check import EMBEDDED, Check, Section
from floodmark.doctor.reach import nearby, reach
from floodmark.doctor.source import bastion
from floodmark.errors import FloodmarkError
from floodmark.s3_place import place
from floodmark.units import counted, size
from floodmark.warehouse import LEDGER, quote
from floodmark.warehouse.redshift_facts import DatabaseFacts, look, region, transport
from floodmark.warehouse.redshift_rights import Rights, assuming, table_grants, taking_over

SECTION = Section("warehouse")
LOCK_SECONDS = 3.0
ANSWER_SECONDS = 6.0
LITTLE_SPACE = 1 << 30
_REDSHIFT = ("log-in", "schema", "temp tables", "tables", "isolation", "IAM role", "sessions", "ledger")


def examine_warehouse(config: Config) -> Iterator[Check]:
    """DuckDB or Redshift."""
    if config.warehouse.path is not None:
        yield from _duckdb(config.warehouse.path, config.warehouse.schema)
    else:
        yield from _redshift(config)


# ---------------------------------------------------------------- DuckDB


def _duckdb(path: Path, schema: str) -> Iterator[Check]:
    folder = path.parent
    if not folder.is_dir():
        yield SECTION.failure("folder", f"there is no folder {folder}", "create it, or change warehouse.url")
        yield from SECTION.skipped(("file", "ledger"), "see folder")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield SECTION.failure(
            "folder", f"no permission to write in {folder}", "allow it to this user, or change warehouse.url"
        )
        yield from SECTION.skipped(("file", "ledger"), "see folder")
        return
    free = shutil.disk_usage(folder).free
    if free < LITTLE_SPACE:
        yield SECTION.warning(
            "folder", f"{folder}: only {size(free)} free", "make room for loads and their spill"
        )
    else:
        yield SECTION.ok("folder", f"{folder}, {size(free)} free")
    if not path.exists():
        yield SECTION.ok("file", f"{path.name} is not there yet: the first load makes it")
        return
    from floodmark.warehouse import duckdb_facts

    try:
        with EMBEDDED:
            facts = duckdb_facts.look(path, schema, LOCK_SECONDS)
    except FloodmarkError as error:
        yield SECTION.failed("file", error)
        yield from SECTION.skipped("ledger", "see file")
        return
    yield SECTION.ok(
        "file", f"{path.name}, {size(path.stat().st_size)}, can be written; DuckDB {facts.version}"
    )
    if path.stat().st_mode & stat.S_IROTH:
        yield SECTION.warning("rights", f"{path}: other users can read its rows", f"chmod 600 {path}")
    yield _ledger(facts.commits)


def _ledger(commits: int | None) -> Check:
    if commits is None:
        return SECTION.ok("ledger", "none yet: the first load makes it")
    return SECTION.ok("ledger", f"{counted(commits, 'commit')} loaded")


# ---------------------------------------------------------------- Redshift


def _redshift(config: Config) -> Iterator[Check]:
    spec = config.warehouse
    for check in _way(spec):
        yield check
        if check.status == "failure":
            yield from SECTION.skipped(_REDSHIFT, f"see {check.name}")
            return
    try:
        facts = look(transport(spec, ANSWER_SECONDS), spec.schema, _targets(config), spec.iam_role)
    except FloodmarkError as error:
        step = "TLS" if "TLS" in error.message else "log-in"
        yield SECTION.failed(step, error)
        yield from SECTION.skipped([name for name in _REDSHIFT if name != step], f"see {step}")
        return
    yield _encryption(spec)
    yield from judged(facts, spec)
    if config.store.endpoint is None:
        yield regions(region(spec), place(config.store.url, None).region)


def _way(spec: WarehouseSpec) -> Iterator[Check]:
    if spec.transport == "data_api" or spec.host is None or spec.port is None:
        yield SECTION.ok("port", "through AWS's Data API")
    elif spec.ssh is not None:
        yield from bastion(SECTION, spec.ssh, spec.host, spec.port)
    else:
        yield from reach(SECTION, spec.host, spec.port)


def _encryption(spec: WarehouseSpec) -> Check:
    mode = spec.tls.mode if spec.tls else "verify_identity"
    if spec.transport == "data_api":
        return SECTION.ok("TLS", "https to AWS")
    if mode == "disabled":
        if nearby(spec.host or "") or spec.ssh is not None:
            return SECTION.ok("TLS", "not encrypted, by configuration")
        return SECTION.warning(
            "TLS",
            f"passwords and rows travel to {spec.host} in plain text",
            "leave warehouse.tls.mode: disabled out",
        )
    checked = "authority and host name" if mode == "verify_identity" else "authority"
    return SECTION.ok("TLS", f"encrypted; certificate verified ({checked})")


def _targets(config: Config) -> tuple[str, ...]:
    """The targets of the tables that the configuration names."""
    named = [name for name in config.tables if not re.search(r"[*?\[]", name)]
    return tuple(config.options(name).target or name.partition(".")[2] or name for name in named)


def judged(facts: DatabaseFacts, spec: WarehouseSpec) -> Iterator[Check]:
    """The database's facts as checks."""
    yield SECTION.ok("log-in", f"as {facts.user}; {facts.version}")
    yield _schema(facts.rights)
    if facts.rights.temp_grant is None:
        yield SECTION.ok("temp tables", "may be created")
    else:
        yield SECTION.failure(
            "temp tables",
            f"{facts.user} may not create temporary tables in {facts.rights.database}, and each load needs one",
            facts.rights.temp_grant,
        )
    yield from _tables(facts.rights)
    yield isolation(facts.isolation)
    yield iam_role(spec.iam_role, facts.default_role)
    if facts.assume_role is not None:
        yield _assume_role(facts, spec)
    yield _sessions(facts)
    if any(table.name == LEDGER and table.missing for table in facts.rights.tables):
        yield from SECTION.skipped("ledger", "see tables")
    else:
        yield _ledger(facts.commits)


def _schema(rights: Rights) -> Check:
    schema, grant = rights.schema, rights.schema_grant
    if not rights.schema_exists:
        if grant is None:
            return SECTION.ok("schema", f"{schema} is not there yet: the first load makes it")
        return SECTION.failure(
            "schema", f"there is no schema {schema}, and {rights.user} may not create it", grant
        )
    if grant is None:
        return SECTION.ok("schema", f"{schema}: tables may be created")
    return SECTION.failure("schema", f"{rights.user} may not create tables in schema {schema}", grant)


def _tables(rights: Rights) -> Iterator[Check]:
    """Targets and our own tables, where they are there."""
    if not rights.use_schema:
        yield from SECTION.skipped("tables", "see schema")
        return
    lacking = [table for table in rights.tables if table.missing]
    if lacking:
        named = "; ".join(f"{', '.join(table.missing)} on {table.name}" for table in lacking[:5])
        more = f"; and {counted(len(lacking) - 5, 'more table')}" if len(lacking) > 5 else ""
        yield SECTION.failure(
            "tables",
            f"{rights.user} lacks {named}{more}",
            "; ".join(table_grants(rights.schema, rights.tables, rights.user)),
        )
    elif rights.tables:
        yield SECTION.ok("tables", f"{counted(len(rights.tables), 'table')} may be read and written")
    foreign = [table for table in rights.tables if not table.owned and not rights.superuser]
    if foreign:
        named = ", ".join(f"{table.name} ({table.owner})" for table in foreign[:5])
        yield SECTION.warning(
            "owners",
            f"{counted(len(foreign), 'table')} of other owners: rows can be loaded, columns perhaps not be changed: {named}",
            "; ".join(taking_over(rights.schema, table.name, rights.user) for table in foreign[:5]),
        )


def _assume_role(facts: DatabaseFacts, spec: WarehouseSpec) -> Check:
    if facts.assume_role:
        return SECTION.ok("ASSUMEROLE", f"{facts.user} may COPY with the role")
    return SECTION.failure(
        "ASSUMEROLE",
        f"{facts.user} may not COPY with the role {spec.iam_role or facts.default_role}",
        assuming(spec.iam_role or "default", facts.user),
    )


def _sessions(facts: DatabaseFacts) -> Check:
    """Who keeps a lock is said only to those whom Redshift shows it."""
    if facts.sees_others:
        return SECTION.ok("sessions", "those of other users are shown: whoever keeps a lock can be named")
    known = "not shown" if facts.sees_others is False else "perhaps not shown"
    return SECTION.ok(
        "sessions",
        f"those of other users are {known}; to have whoever keeps a lock named: "
        f"ALTER USER {quote(facts.user)} SYSLOG ACCESS UNRESTRICTED",
    )


def isolation(level: str | None) -> Check:
    """How transactions see each other; loads are right under either level."""
    if level is None:
        return SECTION.ok("isolation", "not shown to this user; loads are right under either level")
    if "serial" in level.lower():
        return SECTION.warning(
            "isolation",
            "SERIALIZABLE: loads of several targets don't conflict, but a transaction of yours that reads and writes "
            "what a load does may end one of the two with error 1023; the load is then tried again",
            "ALTER DATABASE … ISOLATION LEVEL SNAPSHOT, the default of new clusters",
        )
    return SECTION.ok("isolation", "SNAPSHOT")


def iam_role(configured: str | None, default: str | None) -> Check:
    """What COPY reads the bucket with; only a COPY can prove that it may."""
    if configured is not None and configured.lower() != "default":
        return SECTION.ok("IAM role", f"{configured}; whether it may read the bucket, the first load shows")
    if default is None:
        return SECTION.ok("IAM role", "the cluster's default one; whether there is one, the first load shows")
    if not default or default.lower() == "none":
        return SECTION.failure(
            "IAM role",
            "warehouse.iam_role names no role, and the cluster has no default one: COPY can't read the bucket",
            "set warehouse.iam_role, or give the cluster a default role",
        )
    return SECTION.ok("IAM role", f"the cluster's default one, {default}")


def regions(cluster: str | None, bucket: str | None) -> Check:
    """COPY of Parquet can't name another Region than the cluster's own."""
    if cluster and bucket and cluster != bucket:
        return SECTION.failure(
            "region",
            f"the warehouse is in {cluster} and the bucket in {bucket}: COPY of Parquet can't cross Regions",
            f"use a bucket in {cluster}",
        )
    if cluster and bucket:
        return SECTION.ok("region", f"{cluster}, as the bucket")
    return SECTION.ok("region", "not known; bucket and warehouse must be in the same one")
