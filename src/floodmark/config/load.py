"""The configuration: what a file may say, declared once, as the frozen values that the program runs on.

A section is a dataclass: its fields are the keys, their types say what may be written there, and their defaults are
the defaults. Instead of the fields marked `_url`, a file has one key `url`. All mistakes are reported at once, each
with the dotted path of its key (`tables.shop.orders.cursr`) and what to write instead; none quotes a value, except
the path of a missing file. Paths are resolved against the file's folder.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    AliasPath,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from floodmark.config import values
from floodmark.config.file import MOST_CHARACTERS, URLS, Contents, Tree, parse, read
from floodmark.model.errors import ConfigError, Mistake, Mistakes
from floodmark.model.json import adapter
from floodmark.model.run import MOST_ROWS
from floodmark.model.table import Mode
from floodmark.model.warehouse import WAREHOUSES, Capabilities, Descriptor

DEFAULT_FILE = "floodmark.yaml"
# The default of `start` in s3-redshift-backup-tool, and in Floodmark's own stores of version 0.1.0.
OLDER_START = "2025-01-01 00:00:00"
INIT_HINT = "run: floodmark init --source mysql://user@host:3306/database"


def _url(part: str) -> Any:
    """A field that is a part of the section's `url`."""
    return Field(validation_alias=AliasPath("url", part))


# What may be written. A validator's second argument has the folder that paths are relative to.
Text = Annotated[str, AfterValidator(values.text)]
FilePath = Annotated[
    Path,
    BeforeValidator(lambda value, info: values.absolute(value, info.context)),
    AfterValidator(values.existing),
]
StoreUrl = Annotated[str, BeforeValidator(lambda value, info: values.store_url(value, info.context))]
WebAddress = Annotated[Text, AfterValidator(values.web_address)]
Receiver = Annotated[Text, AfterValidator(values.receiver)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Count = Annotated[int, Field(ge=1)]
OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
NoneIsEmpty = BeforeValidator(lambda value: () if value is None else value)
Columns = Annotated[tuple[Text, ...], OneOrMore]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[
    float, BeforeValidator(lambda value: values.duration(value) if isinstance(value, str) else value)
]
Behind = Annotated[Duration, Field(ge=1, allow_inf_nan=False)]
# `zero_dates: null` is a policy, not a missing value.
NullIsText = BeforeValidator(lambda value: "null" if value is None else value)
# Options that only a cursor gives a meaning. Where a more specific entry says `changes: binlog`, they don't apply.
BY_CURSOR = ("cursor", "start")
AlertKind = Literal["failed", "behind", "differs", "schema", "recovered"]


@dataclass(frozen=True)
class Tls:
    """How a connection is encrypted, and how the server is verified."""

    mode: Literal["disabled", "required", "verify_ca", "verify_identity"] = "verify_identity"
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None

    @model_validator(mode="after")
    def _pair(self) -> Tls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")
        return self


@dataclass(frozen=True)
class Ssh:
    """A bastion host for reaching a service."""

    host: Text
    port: Port = 22
    user: Text | None = None
    key: FilePath | None = None
    known_hosts: FilePath | None = None


@dataclass(frozen=True)
class PauseWhen:
    """When a run pauses reading to spare the source."""

    replica_lag: Duration | None = None
    threads_running: Count | None = None


@dataclass(frozen=True)
class SourceSpec:
    """The MySQL server. Pickled to Spark tasks; its repr hides the password."""

    host: Annotated[str, _url("host")]
    port: Annotated[int, _url("port")]
    user: Annotated[str, _url("user")]
    password: Annotated[str, _url("password")] = field(repr=False)
    database: Annotated[str | None, _url("database")] = None
    tls: Tls | None = None
    ssh: Ssh | None = None
    max_connections: Count = 8
    socket: Annotated[str | None, _url("socket")] = None
    pause_when: PauseWhen | None = None
    cleartext_password: bool = False  # for servers that require the password in clear text
    hash_on_server: bool = False  # whether a comparison lets MySQL hash its rows instead of fetching them

    @model_validator(mode="after")
    def _only_to_the_right_one(self) -> SourceSpec:
        if self.cleartext_password and (self.tls is None or self.tls.mode != "verify_identity"):
            raise ValueError("cleartext_password needs tls: {mode: verify_identity}")
        return self


@dataclass(frozen=True)
class PlaceSpec:
    """A bucket or a folder, and how to reach it. Pickled to Spark tasks; its repr hides secrets."""

    url: StoreUrl  # s3://bucket/prefix, or an absolute folder
    endpoint: Annotated[Text, AfterValidator(lambda text: values.endpoint(text).rstrip("/"))] | None = None
    region: Text | None = None
    access_key_id: Text | None = None
    secret_access_key: Text | None = field(default=None, repr=False)

    @model_validator(mode="after")
    def _fits(self) -> PlaceSpec:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key go together")
        if not self.url.startswith("s3://") and (self.endpoint or self.access_key_id):
            raise ValueError("endpoint and keys apply only to s3://bucket/prefix, but url is a folder")
        return self


@dataclass(frozen=True)
class CopiesTo(PlaceSpec):
    """A further place for watermark copies and, if enabled, the commit log."""

    log: bool = False

    @property
    def store(self) -> StoreSpec:
        return StoreSpec(**{part.name: getattr(self, part.name) for part in fields(PlaceSpec)})

    def reached_like(self, store: StoreSpec) -> CopiesTo:
        """This place, with the store's endpoint, keys and region unless it has its own."""
        if not (self.url.startswith("s3://") and store.url.startswith("s3://")):
            return self
        keys = self.access_key_id, self.secret_access_key
        if self.endpoint is None and self.access_key_id is None:  # never to another server
            keys = store.access_key_id, store.secret_access_key
        region = self.region or store.region
        return CopiesTo(self.url, self.endpoint or store.endpoint, region, *keys, log=self.log)


@dataclass(frozen=True)
class StoreSpec(PlaceSpec):
    """Where the store is."""

    url: Annotated[StoreUrl, Field(validate_default=True)] = "./lake"
    copies_to: Annotated[
        tuple[Annotated[CopiesTo, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)], ...],
        OneOrMore,
    ] = ()

    @model_validator(mode="after")
    def _apart(self) -> StoreSpec:
        places = [place.url.rstrip("/") + "/" for place in (self, *self.copies_to)]
        for n, one in enumerate(places):
            if any(one.startswith(other) or other.startswith(one) for other in places[n + 1 :]):
                raise ValueError("copies_to has a place inside the store or inside another place")
        return self


@dataclass(frozen=True)
class Iam:
    """AWS IAM instead of a password, for a provisioned cluster or a serverless workgroup."""

    cluster: Text | None = None
    workgroup: Text | None = None
    region: Text | None = None
    profile: Text | None = None
    secret_arn: Text | None = None  # for the Data API: the database user's secret in Secrets Manager

    @model_validator(mode="after")
    def _one(self) -> Iam:
        if (self.cluster is None) == (self.workgroup is None):
            raise ValueError("needs either cluster (provisioned) or workgroup (serverless)")
        return self


@dataclass(frozen=True)
class WarehouseSpec:
    """The warehouse: a file (`path`) or a database (`host` etc.), of one of WAREHOUSES."""

    kind: Annotated[str, _url("kind")]
    schema: Text
    path: Annotated[Path | None, _url("path")] = None
    host: Annotated[str | None, _url("host")] = None
    port: Annotated[int | None, _url("port")] = None
    user: Annotated[str | None, _url("user")] = None
    password: Annotated[str | None, _url("password")] = field(default=None, repr=False)
    database: Annotated[str | None, _url("database")] = None
    iam_role: Annotated[Text, AfterValidator(values.role)] | None = None
    iam: Iam | None = None
    transport: Literal["socket", "data_api"] = "socket"
    # Seconds allowed per statement of a load; None: the default.
    statement_timeout: Annotated[Duration, AfterValidator(values.statement_timeout)] | None = None
    large_strings: bool = False  # Redshift's enable_large_strings_opt_in
    freshness: bool = False  # whether runs keep floodmark_freshness
    ssh: Ssh | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _fits(self) -> WarehouseSpec:
        for scheme, other in WAREHOUSES.items():
            foreign = [name for name in other.options if name not in self.descriptor.options]
            if any(getattr(self, name) not in (None, False, "socket") for name in foreign):
                ours = f"{self.can.label} {'file' if self.path else 'database'}"
                raise ValueError(f"{', '.join(foreign)} apply only to {scheme}://, but url is a {ours}")
        if self.transport == "data_api" and self.ssh:
            raise ValueError("transport: data_api connects to AWS directly; remove ssh")
        if self.transport == "data_api" and self.iam is None:
            raise ValueError("transport: data_api needs iam: {cluster: …} or iam: {workgroup: …}")
        if self.iam and self.password:
            raise ValueError("iam replaces the password; remove it from url")
        if self.iam and self.transport == "socket" and self.tls and self.tls.mode == "disabled":
            raise ValueError("iam needs TLS; remove tls.mode: disabled")
        return self

    @property
    def label(self) -> str:
        """Identifies the warehouse, without secrets."""
        if self.path is not None:
            return f"{self.kind}:///{self.path}"
        return f"{self.kind}://{self.host}:{self.port}/{self.database}"

    @property
    def descriptor(self) -> Descriptor:
        return WAREHOUSES[self.kind]

    @property
    def can(self) -> Capabilities:
        """What a warehouse of this kind can do and hold."""
        return (self.large_strings and self.descriptor.large) or self.descriptor.can


@dataclass(frozen=True)
class SparkSpec:
    """Where tasks run, and Spark's own settings."""

    master: Text = "local[*]"
    conf: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class AlertSpec:
    """Who gets which alerts. The addresses are secrets: anyone who has one can send alerts in our name."""

    heartbeat: WebAddress | None = field(default=None, repr=False)
    webhook: WebAddress | None = field(default=None, repr=False)
    to: Annotated[tuple[Receiver, ...], OneOrMore, NoneIsEmpty] = field(default=(), repr=False)
    behind: Behind = 900.0
    on: Annotated[tuple[AlertKind, ...], OneOrMore] = ("failed", "behind", "differs", "schema", "recovered")


@dataclass(frozen=True)
class TableKeys:
    """What a file may say about a table, or about all of them in `defaults`."""

    changes: Literal["cursor", "binlog"] = "cursor"
    cursor: Text | None = None
    cursor_timezone: Annotated[str, AfterValidator(values.zone)] = "server"
    key: Annotated[Columns, Field(min_length=1)] | None = None
    target: Text | None = None
    mode: Mode | None = None
    where: Text | None = None
    exclude: Annotated[Columns, NoneIsEmpty] = ()
    dist_key: Text | None = None
    sort_key: Annotated[Columns, NoneIsEmpty] = ()
    # old name of a source column -> new name
    renames: Annotated[dict[Text, Text], BeforeValidator(lambda v: v or {})] = field(default_factory=dict)
    schema_changes: Literal["follow", "ask"] = "follow"
    deletes: Literal["ignore", "hard", "soft"] = "ignore"
    cascades: Literal["ignore", "follow"] = "ignore"
    deletes_every: Duration = 86_400.0
    keep_files: Duration | None = None  # None: forever
    zero_dates: Annotated[Literal["error", "null", "keep"], NullIsText] = "error"
    overflow: Annotated[Literal["error", "truncate", "null"], NullIsText] = "error"
    start: Annotated[str, AfterValidator(values.timestamp)] | None = None  # None: from the first row
    slice_rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 250_000
    settle_seconds: Seconds = 2.0
    # None: auto
    overlap_seconds: Annotated[Seconds | None, BeforeValidator(lambda v: None if v == "auto" else v)] = None
    keep_copies: Duration = 604_800.0
    behind: Behind | None = None  # lag allowed before an alert is sent; None: as in `alerts`

    @model_validator(mode="after")
    def _needed(self) -> TableKeys:
        if set(self.exclude) & {self.cursor, *(self.key or ())}:
            raise ValueError("exclude lists the key or the cursor, which are always read")
        if (conflict := self.conflict) is not None:
            raise ValueError(f"{conflict}; remove one of them")
        return self

    @property
    def conflict(self) -> str | None:
        """What can't be combined with following the binary log."""
        if self.changes != "binlog":
            return None
        if self.mode == "append":
            return "changes: binlog merges rows by key, and mode: append does not"
        given = next((name for name in BY_CURSOR if getattr(self, name) is not None), None)
        return None if given is None else f"changes: binlog reads no cursor, so {given} means nothing"


@dataclass(frozen=True)
class DefaultKeys(TableKeys):
    """The keys of a table, and one that is about all of them."""

    new_tables: Literal["report", "ignore"] = "report"  # tables of the source that `tables` does not list


@dataclass(frozen=True)
class TableOptions(TableKeys):
    """The options of one table: the defaults, overridden by matching patterns, then by its own entry."""

    holds: str | None = field(default=None, compare=False)  # from the warehouse, not the file
    # Where the rows of an older tool begin: at `start`, or at that tool's default if the file doesn't say.
    older_start: str | None = field(default=OLDER_START, compare=False)


@dataclass(frozen=True)
class Sections:
    """The sections of a file."""

    __pydantic_config__ = ConfigDict(extra="forbid", hide_input_in_errors=True)

    source: SourceSpec
    store: StoreSpec
    warehouse: WarehouseSpec
    spark: SparkSpec
    defaults: DefaultKeys = DefaultKeys()
    tables: dict[str, TableKeys] = field(default_factory=dict)
    alerts: AlertSpec | None = None


@dataclass(frozen=True)
class Config:
    """One configuration file, validated and resolved."""

    path: Path
    source: SourceSpec
    store: StoreSpec
    warehouse: WarehouseSpec
    spark: SparkSpec = SparkSpec()
    tables: tuple[str, ...] = ()  # schema.table or patterns, in the file's order
    defaults: dict[str, Any] = field(default_factory=dict, repr=False)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    alerts: AlertSpec | None = None
    new_tables: Literal["report", "ignore"] = DefaultKeys.new_tables

    @cached_property
    def _patterns(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        return tuple((p, e) for p, e in self.entries.items() if any(c in p for c in "*?["))

    def options(self, table: str) -> TableOptions:
        """The options of a table; later patterns in the file override earlier ones, an exact name all of them."""
        name = _qualified(table, self.source.database)
        fitting = (e for p, e in self._patterns if p != name and fnmatchcase(name, p))
        merged = dict[str, Any]()
        for entry in (self.defaults, *fitting, self.entries.get(name, {})):
            if entry.get("changes") == "binlog":
                merged = {key: value for key, value in merged.items() if key not in BY_CURSOR}
            merged.update(entry)
        if merged.get("changes") == "binlog":
            merged.setdefault("deletes", "hard")
        older = merged.get("start", OLDER_START)
        return TableOptions(**merged, holds=self.warehouse.can.holds, older_start=older)


def place(path: Path | None = None) -> Path:
    """The configuration file to use: `path`, else `$FLOODMARK_CONFIG`, else `./floodmark.yaml`."""
    named = path or (Path(os.environ["FLOODMARK_CONFIG"]) if os.environ.get("FLOODMARK_CONFIG") else None)
    return (named or Path(DEFAULT_FILE)).expanduser().absolute()


def load(path: Path | None = None) -> Config:
    """The configuration from `path`, else `$FLOODMARK_CONFIG`, else `./floodmark.yaml`."""
    file = place(path)
    if not file.exists():
        raise ConfigError(f"there is no configuration file {file}", hint=INIT_HINT)
    contents = read(file)
    mistakes = contents.mistakes
    try:
        sections: Sections = adapter(Sections).validate_python(contents.tree, context=contents.base)
    except ValidationError as error:
        mistakes.extend(_in_our_words(error, contents))
    if mistakes:
        raise Mistakes(file, mistakes)
    source, store, entries = sections.source, sections.store, dict[str, dict[str, Any]]()
    if source.ssh and source.socket:
        mistakes.append(Mistake("source.ssh", "leads to a host, but source.url is a socket on this machine"))
    if sections.warehouse.descriptor.s3 and not store.url.startswith("s3://"):
        reads = f"{sections.warehouse.can.label} reads only from S3"
        said = f"is a folder, but {reads}; use s3://bucket/prefix, in the warehouse's Region"
        mistakes.append(Mistake("store.url", said))
    for written, entry in sections.tables.items():
        name = _qualified(written, source.database)
        if "." not in name and name != "*":
            said = "write schema.table, because source.url has no database"
            mistakes.append(Mistake(f"tables.{written}", said))
        if name in entries:
            mistakes.append(Mistake(f"tables.{written}", "given twice, with and without its schema"))
        entries[name] = _given(entry, contents.tree["tables"][written])
    if mistakes:
        raise Mistakes(file, mistakes)
    defaults = _given(sections.defaults, contents.tree.get("defaults", ()))
    return Config(
        path=file,
        source=source,
        store=replace(store, copies_to=tuple(each.reached_like(store) for each in store.copies_to)),
        warehouse=sections.warehouse,
        spark=sections.spark,
        tables=tuple(entries),
        new_tables=defaults.pop("new_tables", DefaultKeys.new_tables),
        defaults=defaults,
        entries=entries,
        alerts=sections.alerts,
    )


def source_from(text: str) -> SourceSpec:
    """The source that a URL names, with defaults for the rest; ConfigError if the URL is invalid."""
    try:
        return SourceSpec(**values.source_url(text))
    except ValueError as error:
        raise ConfigError(
            f"the source's URL {error}", hint="for example: --source mysql://reader@127.0.0.1:3306/shop"
        ) from None


def _given(keys: TableKeys, written: Iterable[str]) -> dict[str, Any]:
    """The values of the keys that the file has, without the defaults of the others."""
    return {name: getattr(keys, name) for name in written}


def _qualified(name: str, database: str | None) -> str:
    return name if "." in name or database is None else f"{database}.{name}"


def glimpse(path: Path | None = None) -> tuple[list[str], StoreSpec | None]:
    """The tables and patterns of the file, with their schema, and its store, as far as they can be told: to complete names.

    A file with mistakes will do, and one whose passwords are not in the environment; without a file, nothing and None.
    """
    file = place(path)
    tree: Tree = None
    with suppress(OSError, ValueError):
        if file.is_file() and file.stat().st_size <= MOST_CHARACTERS:  # nothing that could block
            tree, _ = parse(file.read_text("utf-8-sig"))
    sections = tree if isinstance(tree, dict) else {}
    source, tables, store = (_block(sections.get(name)) for name in ("source", "tables", "store"))
    database = None
    if isinstance(url := source.get("url"), str):
        with suppress(ValueError):
            database = unquote(urlsplit(url).path.strip("/"))
    named = [_qualified(name, database if database and "$" not in database else None) for name in tables]
    store.pop("copies_to", None)
    with suppress(ValueError):  # pydantic's is one
        return named, adapter(StoreSpec).validate_python(store, context=file.parent) if sections else None
    return named, None


def _block(tree: Tree) -> dict[str, Tree]:
    return dict(tree) if isinstance(tree, dict) else {}


# ---------------------------------------------------------------- what is wrong, in our words

_SAID: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "string_type": lambda _: "must be text",
    "int_parsing": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a number",
    "greater_than_equal": lambda context: f"must be at least {context['ge']}",
    "less_than_equal": lambda context: f"must be at most {context['le']}",
    "too_short": lambda _: "must not be empty",
    "tuple_type": lambda _: "must be a list",
    "literal_error": lambda context: f"must be {context['expected']}".replace("'", ""),
    "value_error": lambda context: str(context["error"]),
    "dataclass_type": lambda _: "must be a block of keys and values",
    "dict_type": lambda _: "must be a block of keys and values",
}


def _in_our_words(error: ValidationError, contents: Contents) -> Iterator[Mistake]:
    """What to write instead, never the value that was written; without the values that are mistakes already."""
    failed = set(contents.failed)
    for item in error.errors(include_url=False):
        loc = tuple(map(str, item["loc"]))
        if loc[:2] in URLS:  # its parts are missing as one
            loc = loc[:2]
        if loc not in failed:
            yield Mistake(".".join(loc) or "the file", _said(item["type"], item.get("ctx", {}), loc))
        failed |= {loc} & set(URLS)


def _said(kind: str, context: dict[str, Any], loc: tuple[str, ...]) -> str:
    if kind == "unexpected_keyword_argument":
        known = _known(loc[:-1])
        close = difflib.get_close_matches(loc[-1], known, 1, 0.6)
        return "unknown key; " + (f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}")
    if kind in _SAID:
        return _SAID[kind](context)
    return "must be a number" if kind.startswith(("int_", "float_")) else "is not valid"


def _known(path: tuple[str, ...]) -> list[str]:
    """The known keys of the section at a path."""
    section: type = Sections
    for key in ("defaults",) if path[:1] == ("tables",) else path:
        if not key.isdigit():  # an index into a list, whose sections are all alike
            section = next(sections_in(keys(section)[key]))
    return list(keys(section))


def keys(section: type) -> dict[str, Any]:
    """The keys of a section with their types; `url` stands for the fields that are its parts."""
    known: dict[str, Any] = {}
    for name, hint in get_type_hints(section, include_extras=True).items():
        marks = (m.validation_alias for m in getattr(hint, "__metadata__", ()) if isinstance(m, FieldInfo))
        alias = next((mark for mark in marks if isinstance(mark, AliasPath)), None)
        known.setdefault(str(alias.path[0]) if alias else name, hint)
    return known


def sections_in(hint: Any) -> Iterator[type]:
    """The sections that a type has inside."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from sections_in(inner)
