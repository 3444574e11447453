"""The warehouse: whether it can be reached, opened and written to by a load, and what a load would find there."""

from __future__ import annotations

import os
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
from floodmark.warehouse.redshift_facts import DatabaseFacts, look, region, transport

SECTION = Section("warehouse")
LOCK_SECONDS = 3.0
ANSWER_SECONDS = 6.0
LITTLE_SPACE = 1 << 30
_REDSHIFT = ("log-in", "schema", "temp tables", "isolation", "IAM role", "ledger")


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
        facts = look(transport(spec, ANSWER_SECONDS), spec.schema)
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


def judged(facts: DatabaseFacts, spec: WarehouseSpec) -> Iterator[Check]:
    """The database's facts as checks."""
    yield SECTION.ok("log-in", f"as {facts.user}; {facts.version}")
    yield _schema(facts, spec.schema)
    if facts.temp:
        yield SECTION.ok("temp tables", "may be created")
    else:
        yield SECTION.failure(
            "temp tables",
            f"{facts.user} may not create temporary tables in {spec.database}, and each load needs one",
            f"GRANT TEMP ON DATABASE {spec.database} TO {facts.user}",
        )
    yield _isolation(facts.isolation)
    yield iam_role(spec.iam_role, facts.default_role)
    yield _ledger(facts.commits)


def _schema(facts: DatabaseFacts, schema: str) -> Check:
    if not facts.schema_exists:
        if facts.create_schema:
            return SECTION.ok("schema", f"{schema} is not there yet: the first load makes it")
        return SECTION.failure(
            "schema",
            f"there is no schema {schema}, and {facts.user} may not create it",
            f"CREATE SCHEMA {schema} AUTHORIZATION {facts.user}",
        )
    if facts.use_schema and facts.create_in_schema:
        return SECTION.ok("schema", f"{schema}: tables may be created")
    return SECTION.failure(
        "schema",
        f"{facts.user} may not create tables in schema {schema}",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {facts.user}",
    )


def _isolation(level: str | None) -> Check:
    if level is None:
        return SECTION.ok("isolation", "not shown to this user; loads are right under either level")
    if "serial" in level.lower():
        return SECTION.ok(
            "isolation", "SERIALIZABLE: loads that meet are tried again; SNAPSHOT would spare that"
        )
    return SECTION.ok("isolation", "SNAPSHOT")


def iam_role(configured: str | None, default: str | None) -> Check:
    """What COPY reads the bucket with; only a COPY can prove that it may."""
    if configured is not None:
        if configured.lower() != "default" and not all(
            part.strip().startswith("arn:aws") and ":role/" in part for part in configured.split(",")
        ):
            return SECTION.failure(
                "IAM role",
                "warehouse.iam_role is no role's ARN",
                "write arn:aws:iam::ACCOUNT:role/NAME, as the role's page shows it",
            )
        return SECTION.ok("IAM role", f"{configured}; whether it may read the bucket, the first load shows")
    if default is None:
        return SECTION.ok("IAM role", "the cluster's default one; whether there is one, the first load shows")
    if not default or default.lower() == "none":
        return SECTION.failure(
            "IAM role",
            "warehouse.iam_role is not set, and the cluster has no default role: COPY can't read the bucket",
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
