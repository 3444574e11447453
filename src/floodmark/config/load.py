"""The configuration file: YAML in, frozen specs out, all mistakes reported at once with their dotted paths.

Scalars stay text until their field decides the type, so `on`, `010` and `2025-01-01` mean what is written.
`${NAME}` is replaced after parsing and only within its own value: a secret can't change the structure of the
YAML or of a URL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from floodmark.config.blocks import (
    ALERTS,
    AlertKind,
    CopiesBlock,
    FileBlock,
    SshBlock,
    TableBlock,
    TlsBlock,
    read,
)
from floodmark.config.values import Url
from floodmark.model.errors import ConfigError, Mistake, Mistakes
from floodmark.model.table import Mode

DEFAULT_FILE = "floodmark.yaml"
# The default of `start` in s3-redshift-backup-tool, and in Floodmark's own stores of version 0.1.0.
OLDER_START = "2025-01-01 00:00:00"
INIT_HINT = "run: floodmark init --source mysql://user@host:3306/database"


@dataclass(frozen=True)
class Tls:
    """How a connection is encrypted, and how the server is verified."""

    mode: Literal["disabled", "required", "verify_ca", "verify_identity"]
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Ssh:
    """A bastion host for reaching a service."""

    host: str
    port: int = 22
    user: str | None = None
    key: Path | None = None
    known_hosts: Path | None = None


@dataclass(frozen=True)
class PauseWhen:
    """When a run pauses reading to spare the source."""

    replica_lag: float | None = None  # seconds
    threads_running: int | None = None


@dataclass(frozen=True)
class SourceSpec:
    """The MySQL server. Pickled to Spark tasks; its repr hides the password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str | None = None
    tls: Tls | None = None
    ssh: Ssh | None = None
    max_connections: int = 8
    socket: str | None = None
    pause_when: PauseWhen | None = None
    cleartext_password: bool = False
    hash_on_server: bool = False  # whether a comparison lets MySQL hash its rows instead of fetching them


@dataclass(frozen=True)
class CopiesTo:
    """A further place for watermark copies and, if enabled, the commit log."""

    store: StoreSpec
    log: bool = False


@dataclass(frozen=True)
class StoreSpec:
    """Where the store is. Pickled to Spark tasks; its repr hides secrets."""

    url: str  # s3://bucket/prefix, or an absolute folder
    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    copies_to: tuple[CopiesTo, ...] = ()


@dataclass(frozen=True)
class Iam:
    """AWS IAM instead of a password, for a provisioned cluster or a serverless workgroup."""

    cluster: str | None = None
    workgroup: str | None = None
    region: str | None = None
    profile: str | None = None
    secret_arn: str | None = None  # for the Data API: the database user's secret in Secrets Manager


@dataclass(frozen=True)
class WarehouseSpec:
    """The warehouse: a DuckDB file (`path`) or a Redshift database (`host` etc.)."""

    kind: Literal["duckdb", "redshift"]
    schema: str
    path: Path | None = None
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    iam_role: str | None = None
    tls: Tls | None = None
    ssh: Ssh | None = None
    iam: Iam | None = None
    transport: Literal["socket", "data_api"] = "socket"
    statement_timeout: float | None = None  # seconds allowed per statement of a load; None: the default
    large_strings: bool = False  # Redshift's enable_large_strings_opt_in
    freshness: bool = False  # whether runs keep floodmark_freshness

    @property
    def label(self) -> str:
        """Identifies the warehouse, without secrets."""
        if self.kind == "duckdb":
            return f"duckdb:///{self.path}"
        return f"redshift://{self.host}:{self.port}/{self.database}"

    @property
    def holds(self) -> str:
        """Which values the warehouse can hold, which determines what `overflow` changes."""
        if self.kind == "duckdb":
            return "any"
        return "redshift with large strings" if self.large_strings else "redshift"


@dataclass(frozen=True)
class TableOptions:
    """The options of one table: the defaults, overridden by matching patterns, then by its own entry."""

    cursor: str | None = None
    cursor_timezone: str = "server"
    key: tuple[str, ...] | None = None
    target: str | None = None
    mode: Mode | None = None
    where: str | None = None
    exclude: tuple[str, ...] = ()
    dist_key: str | None = None
    sort_key: tuple[str, ...] = ()
    renames: dict[str, str] = field(default_factory=dict)  # old name of a source column -> new name
    schema_changes: Literal["follow", "ask"] = "follow"
    deletes: Literal["ignore", "hard", "soft"] = "ignore"
    cascades: Literal["ignore", "follow"] = "ignore"
    deletes_every: float = 86_400.0  # seconds, as are all durations
    keep_files: float | None = None  # None: forever
    zero_dates: Literal["error", "null", "keep"] = "error"
    overflow: Literal["error", "truncate", "null"] = "error"
    start: str | None = None  # None: from the first row
    slice_rows: int = 250_000
    settle_seconds: float = 2.0
    overlap_seconds: float | None = None  # None: auto
    keep_copies: float = 604_800.0
    behind: float | None = None  # lag allowed before an alert is sent; None: as in `alerts`
    holds: str | None = field(default=None, compare=False)  # from the warehouse, not the file
    # Where the rows of an older tool begin: at `start`, or at that tool's default if the file doesn't say.
    older_start: str | None = field(default=OLDER_START, compare=False)


@dataclass(frozen=True)
class AlertSpec:
    """Who gets which alerts. The addresses are secrets: anyone who has one can send alerts in our name."""

    heartbeat: str | None = field(default=None, repr=False)
    webhook: str | None = field(default=None, repr=False)
    to: tuple[str, ...] = field(default=(), repr=False)
    behind: float = 900.0
    on: tuple[AlertKind, ...] = ALERTS


@dataclass(frozen=True)
class Config:
    """One configuration file, validated and resolved."""

    path: Path
    source: SourceSpec
    store: StoreSpec
    warehouse: WarehouseSpec
    spark_master: str = "local[*]"
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    tables: tuple[str, ...] = ()  # schema.table or patterns, in the file's order
    defaults: dict[str, Any] = field(default_factory=dict, repr=False)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    alerts: AlertSpec | None = None
    new_tables: Literal["report", "ignore"] = "report"  # tables of the source that `tables` does not list

    def options(self, table: str) -> TableOptions:
        """The options of a table; later patterns in the file override earlier ones, an exact name all of them."""
        name = _qualified(table, self.source.database)
        merged = dict(self.defaults)
        for pattern, entry in self.entries.items():
            if pattern != name and fnmatchcase(name, pattern):
                merged.update(entry)
        merged.update(self.entries.get(name, {}))
        older = merged.get("start", OLDER_START)
        return TableOptions(**merged, holds=self.warehouse.holds, older_start=older)


def place(path: Path | None = None) -> Path:
    """The configuration file to use: `path`, else `$FLOODMARK_CONFIG`, else `./floodmark.yaml`."""
    named = path or (Path(os.environ["FLOODMARK_CONFIG"]) if os.environ.get("FLOODMARK_CONFIG") else None)
    return (named or Path(DEFAULT_FILE)).expanduser().absolute()


def load(path: Path | None = None) -> Config:
    """The configuration from `path`, else `$FLOODMARK_CONFIG`, else `./floodmark.yaml`."""
    file = place(path)
    if not file.exists():
        raise ConfigError(f"there is no configuration file {file}", hint=INIT_HINT)
    block = read(file)
    source, store, warehouse = _source(block), _store(block), _warehouse(block)
    mistakes = []
    if source.ssh and source.socket:
        said = "leads to a host, but source.url is a socket on this machine"
        mistakes.append(Mistake("source.ssh", said))
    if warehouse.kind == "redshift" and not store.url.startswith("s3://"):
        said = (
            "is a folder, but Redshift reads only from S3; use s3://bucket/prefix, in the warehouse's Region"
        )
        mistakes.append(Mistake("store.url", said))
    if mistakes:
        raise Mistakes(file, mistakes)
    return Config(
        path=file,
        source=source,
        store=store,
        warehouse=warehouse,
        spark_master=block.spark.master,
        spark_conf=dict(block.spark.conf),
        alerts=None if block.alerts is None else AlertSpec(**block.alerts.model_dump()),
        **_tables(file, block, source.database),
    )


def source_from(text: str) -> SourceSpec:
    """The source that a URL names, with defaults for the rest; ConfigError if the URL is invalid."""
    try:
        block = FileBlock.model_validate({"source": {"url": text}}, context={"base": Path.cwd()})
    except ValidationError as error:
        why = error.errors(include_url=False)[0].get("ctx", {}).get("error", "is not valid")
        raise ConfigError(
            f"the source's URL {why}", hint="for example: --source mysql://reader@127.0.0.1:3306/shop"
        ) from None
    return _source(block)


def _source(block: FileBlock) -> SourceSpec:
    found = block.source.url
    return SourceSpec(
        host=found.host or "localhost",
        port=found.port or 3306,
        user=found.user,
        password=found.password,
        database=found.path or None,
        tls=_tls(block.source.tls),
        ssh=_ssh(block.source.ssh),
        max_connections=block.source.max_connections,
        socket=found.query.get("socket"),
        cleartext_password=block.source.cleartext_password,
        hash_on_server=block.source.hash_on_server,
        pause_when=None
        if block.source.pause_when is None
        else PauseWhen(**block.source.pause_when.model_dump()),
    )


def _store(block: FileBlock) -> StoreSpec:
    given = block.store
    own = StoreSpec(**given.model_dump(exclude={"copies_to"}))
    places = tuple(CopiesTo(_reached_like(own, place), place.log) for place in given.copies_to)
    return replace(own, copies_to=places)


def _reached_like(store: StoreSpec, place: CopiesBlock) -> StoreSpec:
    """A further place, with the store's endpoint, keys and region unless it has its own."""
    spec = StoreSpec(**place.model_dump(exclude={"log"}))
    if not (spec.url.startswith("s3://") and store.url.startswith("s3://")):
        return spec
    if spec.endpoint is None:  # never send the store's keys to another server
        spec = replace(spec, endpoint=store.endpoint)
        if spec.access_key_id is None:
            spec = replace(spec, access_key_id=store.access_key_id, secret_access_key=store.secret_access_key)
    return replace(spec, region=spec.region or store.region)


def _warehouse(block: FileBlock) -> WarehouseSpec:
    given = block.warehouse
    more: dict[str, Any] = {"iam_role": given.iam_role, "tls": _tls(given.tls), "ssh": _ssh(given.ssh)}
    more["freshness"] = given.freshness
    if not isinstance(given.url, Url):
        return WarehouseSpec("duckdb", given.schema_ or "main", path=given.url, **more)
    return WarehouseSpec(
        "redshift",
        given.schema_ or "public",
        host=given.url.host,
        port=given.url.port or 5439,
        user=given.url.user,
        password=given.url.password,
        database=given.url.path,
        iam=None if given.iam is None else Iam(**given.iam.model_dump()),
        transport=given.transport,
        statement_timeout=given.statement_timeout,
        large_strings=given.large_strings,
        **more,
    )


def _tls(block: TlsBlock | None) -> Tls | None:
    return None if block is None else Tls(**block.model_dump())


def _ssh(block: SshBlock | None) -> Ssh | None:
    return None if block is None else Ssh(**block.model_dump())


def _tables(file: Path, block: FileBlock, database: str | None) -> dict[str, Any]:
    """The tables by full name, in the file's order."""
    entries: dict[str, dict[str, Any]] = {}
    mistakes = []
    for written, entry in block.tables.items():
        name = _qualified(written, database)
        if "." not in name and name != "*":
            said = "write schema.table, because source.url has no database"
            mistakes.append(Mistake(f"tables.{written}", said))
        if name in entries:
            mistakes.append(Mistake(f"tables.{written}", "given twice, with and without its schema"))
        entries[name] = _given(entry)
    if mistakes:
        raise Mistakes(file, mistakes)
    defaults = _given(block.defaults)
    new = defaults.pop("new_tables", "report")
    return {"tables": tuple(entries), "entries": entries, "defaults": defaults, "new_tables": new}


def _given(entry: TableBlock) -> dict[str, Any]:
    return entry.model_dump(exclude_unset=True)


def _qualified(name: str, database: str | None) -> str:
    return name if "." in name or database is None else f"{database}.{name}"
