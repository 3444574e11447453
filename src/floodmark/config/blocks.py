"""The schema of the configuration file: its blocks, keys and values, with all mistakes reported at once.

Every mistake has the dotted path of its key (`tables.shop.orders.cursr`) and says what to write instead. None
quotes a value, except the path of a missing file. Paths are resolved against the file's folder here, so that
the rest of the program sees only absolute ones.
"""

from __future__ import annotations

import errno
import os
import re
import select
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from floodmark.config.messages import said
from floodmark.config.values import Url, VariableError, duration, expand, role, timestamp, url, zone
from floodmark.config.yaml import MOST_CHARACTERS, TooMuch, Tree, dotted, parse
from floodmark.model.errors import ConfigError, Mistake, Mistakes
from floodmark.model.plausible import MOST_ROWS
from floodmark.model.table import Mode

# Variables in these are expanded after the URL has been split, so that a password can't change its structure.
_URLS = (("source", "url"), ("warehouse", "url"))
PIPE_SECONDS = 10  # for a configuration printed by another program, as in --config <(…)
MOST_BYTES = 4 * (MOST_CHARACTERS + 1)  # enough to tell that a file has too many characters


def _path(text: Any, info: ValidationInfo) -> Any:
    base: Path = (info.context or {})["base"]
    return base / Path(text).expanduser() if isinstance(text, str) and text else text


def _file(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _by_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def _source_url(template: Any) -> Any:
    if not isinstance(template, str):
        raise ValueError("must be text")
    form = "write mysql://user:password@host:3306/database"
    try:
        found = url(template)
    except VariableError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; {form}") from None
    if found.scheme not in ("mysql", "mariadb"):
        raise ValueError(f"is not a MySQL URL; {form}")
    if not found.user:
        raise ValueError(f"has no user; {form}")
    if set(found.query) - {"socket"}:
        raise ValueError(
            "has options after ?; only socket is allowed there, the others are keys of the source block"
        )
    if not found.host and "socket" not in found.query:
        raise ValueError(f"has no host; {form}")
    if "/" in found.path:
        raise ValueError(f"has more than one database; {form}")
    return found


def _warehouse_url(template: Any, info: ValidationInfo) -> Any:
    """A Url for Redshift, the file's absolute path for DuckDB."""
    if not isinstance(template, str):
        raise ValueError("must be text")
    form = "write duckdb:///warehouse.duckdb or redshift://user:password@host:5439/database"
    if re.match(r"duckdb:", template) or re.fullmatch(r"\$\{[^}]*\}", template):
        place = expand(template)
        if place.startswith("duckdb:"):
            name = place.removeprefix("duckdb:///")
            if name == place or name in ("", "/", ":memory:") or name.endswith("/"):
                raise ValueError("has no file; write three slashes and a path: duckdb:///warehouse.duckdb")
            return _path(name, info)
    try:
        found = url(template)
    except VariableError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; {form}") from None
    if found.scheme != "redshift":
        raise ValueError(f"is neither DuckDB nor Redshift; {form}")
    if not (found.user and found.host and found.path) or "/" in found.path or found.query:
        raise ValueError(
            "must have a user, a host and a database; write redshift://user:password@host:5439/database"
        )
    return found


def _store_url(text: Any, info: ValidationInfo) -> Any:
    """`s3://bucket/prefix`, or the absolute path of a folder."""
    if not isinstance(text, str):
        raise ValueError("must be text")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return str(_path(_text(text), info))
    if scheme == "file" and rest.startswith("/"):
        return url(text).path.join(("/", ""))
    if scheme != "s3":
        raise ValueError("must be s3://bucket/prefix or a folder")
    if not rest.partition("/")[0] or ".." in rest.split("/") or re.search(r"[?#\s@]|//", rest):
        raise ValueError("must be a bucket with an optional prefix: s3://bucket/prefix")
    return text.rstrip("/")


def _endpoint(text: str) -> str:
    if not re.fullmatch(r"https?://[^/@?#\s]+/?", text):
        raise ValueError("must be http://host:port or https://host:port")
    return text.rstrip("/")


def _web_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#\s]+[^\s]*", text):
        raise ValueError("must be http://… or https://…")
    return text


def _receiver(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://\S+", text):
        raise ValueError("must be an Apprise URL, such as mailto://user:password@host or slack://…")
    return text


Text = Annotated[str, AfterValidator(_text)]
File = Annotated[Path, BeforeValidator(_path), AfterValidator(_file)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Columns = Annotated[tuple[Text, ...], BeforeValidator(_one_or_more)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[float, BeforeValidator(lambda v: duration(v) if isinstance(v, str) else v)]


def _null(value: Any) -> Any:
    return "null" if value is None else value  # `zero_dates: null` is a policy, not a missing value


def _none(value: Any) -> Any:
    return () if value is None else value


class Block(BaseModel):
    """A mapping that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TlsBlock(Block):
    mode: Literal["disabled", "required", "verify_ca", "verify_identity"] = "verify_identity"
    ca: File | None = None
    cert: File | None = None
    key: File | None = None

    @model_validator(mode="after")
    def _pair(self) -> TlsBlock:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")
        return self


class SshBlock(Block):
    host: Text
    port: Port = 22
    user: Text | None = None
    key: File | None = None
    known_hosts: File | None = None


class PauseBlock(Block):
    replica_lag: Duration | None = None
    threads_running: Annotated[int, Field(ge=1)] | None = None


class SourceBlock(Block):
    url: Annotated[Url, BeforeValidator(_source_url)]
    tls: TlsBlock | None = None
    ssh: SshBlock | None = None
    max_connections: Annotated[int, Field(ge=1)] = 8
    pause_when: PauseBlock | None = None
    cleartext_password: bool = False  # for servers that require the password in clear text
    hash_on_server: bool = False  # verify: MySQL hashes rows, so that they need not travel

    @model_validator(mode="after")
    def _only_to_the_right_one(self) -> SourceBlock:
        if self.cleartext_password and (self.tls is None or self.tls.mode != "verify_identity"):
            raise ValueError("cleartext_password needs tls: {mode: verify_identity}")
        return self


class PlaceBlock(Block):
    """A bucket or a folder, and how to reach it."""

    url: Annotated[str, BeforeValidator(_store_url)]
    endpoint: Annotated[Text, AfterValidator(_endpoint)] | None = None
    region: Text | None = None
    access_key_id: Text | None = None
    secret_access_key: Text | None = None

    @model_validator(mode="after")
    def _fits(self) -> PlaceBlock:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key go together")
        if not self.url.startswith("s3://") and (self.endpoint or self.access_key_id):
            raise ValueError("endpoint and keys apply only to s3://bucket/prefix, but url is a folder")
        return self


class CopiesBlock(PlaceBlock):
    """A further place for watermark copies."""

    log: bool = False


class StoreBlock(PlaceBlock):
    url: Annotated[str, BeforeValidator(_store_url)] = Field("./lake", validate_default=True)
    copies_to: Annotated[
        tuple[Annotated[CopiesBlock, BeforeValidator(_by_url)], ...], BeforeValidator(_one_or_more)
    ] = ()

    @model_validator(mode="after")
    def _apart(self) -> StoreBlock:
        places = [self.url, *(place.url for place in self.copies_to)]
        for n, one in enumerate(places):
            for other in places[n + 1 :]:
                if (one.rstrip("/") + "/").startswith(other.rstrip("/") + "/") or (
                    other.rstrip("/") + "/"
                ).startswith(one.rstrip("/") + "/"):
                    raise ValueError("copies_to has a place inside the store or inside another place")
        return self


class IamBlock(Block):
    cluster: Text | None = None
    workgroup: Text | None = None
    region: Text | None = None
    profile: Text | None = None
    secret_arn: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> IamBlock:
        if (self.cluster is None) == (self.workgroup is None):
            raise ValueError("needs either cluster (provisioned) or workgroup (serverless)")
        return self


def _statement_timeout(seconds: float) -> float:
    if not 60 <= seconds <= 86_400:
        raise ValueError("must be between 1m and 24h, the longest that Redshift lets a statement run")
    return seconds


class WarehouseBlock(Block):
    url: Annotated[Url | Path, BeforeValidator(_warehouse_url)] = Field(
        "duckdb:///warehouse.duckdb",
        validate_default=True,
    )
    schema_: Text | None = Field(None, alias="schema")
    iam_role: Annotated[Text, AfterValidator(role)] | None = None
    iam: IamBlock | None = None
    transport: Literal["socket", "data_api"] = "socket"
    statement_timeout: Annotated[Duration, AfterValidator(_statement_timeout)] | None = None
    large_strings: bool = False
    freshness: bool = False
    ssh: SshBlock | None = None
    tls: TlsBlock | None = None

    @model_validator(mode="after")
    def _fits(self) -> WarehouseBlock:
        if not isinstance(self.url, Url):
            names = ("iam", "ssh", "transport", "statement_timeout", "large_strings")
            if any(getattr(self, name) not in (None, False, "socket") for name in names):
                raise ValueError(f"{', '.join(names)} apply only to redshift://, but url is a DuckDB file")
            return self
        if self.transport == "data_api" and self.ssh:
            raise ValueError("transport: data_api connects to AWS directly; remove ssh")
        if self.transport == "data_api" and self.iam is None:
            raise ValueError("transport: data_api needs iam: {cluster: …} or iam: {workgroup: …}")
        if self.iam and self.url.password:
            raise ValueError("iam replaces the password; remove it from url")
        if self.iam and self.transport == "socket" and self.tls and self.tls.mode == "disabled":
            raise ValueError("iam needs TLS; remove tls.mode: disabled")
        return self


class SparkBlock(Block):
    master: Text = "local[*]"
    conf: dict[str, str] = {}


AlertKind = Literal["failed", "behind", "differs", "schema", "recovered"]
ALERTS: tuple[AlertKind, ...] = ("failed", "behind", "differs", "schema", "recovered")


class AlertsBlock(Block):
    heartbeat: Annotated[Text, AfterValidator(_web_address)] | None = None
    webhook: Annotated[Text, AfterValidator(_web_address)] | None = None
    to: Annotated[
        tuple[Annotated[Text, AfterValidator(_receiver)], ...],
        BeforeValidator(_one_or_more),
        BeforeValidator(_none),
    ] = ()
    behind: Annotated[Duration, Field(ge=1, allow_inf_nan=False)] = 900.0
    on: Annotated[tuple[AlertKind, ...], BeforeValidator(_one_or_more)] = ALERTS


class TableBlock(Block):
    """The keys of a table, and of `defaults`; keys not given stay unset."""

    cursor: Text | None = None
    cursor_timezone: Annotated[str, AfterValidator(zone)] = "server"
    key: Annotated[Columns, Field(min_length=1)] | None = None
    target: Text | None = None
    mode: Mode | None = None
    where: Text | None = None
    exclude: Annotated[Columns, BeforeValidator(_none)] = ()
    dist_key: Text | None = None
    sort_key: Annotated[Columns, BeforeValidator(_none)] = ()
    renames: Annotated[dict[Text, Text], BeforeValidator(lambda v: v or {})] = {}
    schema_changes: Literal["follow", "ask"] = "follow"
    deletes: Literal["ignore", "hard", "soft"] = "ignore"
    cascades: Literal["ignore", "follow"] = "ignore"
    deletes_every: Duration = 0.0
    keep_files: Duration | None = None
    zero_dates: Annotated[Literal["error", "null", "keep"], BeforeValidator(_null)] = "error"
    overflow: Annotated[Literal["error", "truncate", "null"], BeforeValidator(_null)] = "error"
    start: Annotated[str, AfterValidator(timestamp)] | None = None
    slice_rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 1
    settle_seconds: Seconds = 0.0
    overlap_seconds: Annotated[Seconds | None, BeforeValidator(lambda v: None if v == "auto" else v)] = None
    keep_copies: Duration = 0.0
    behind: Annotated[Duration, Field(ge=1, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _needed(self) -> TableBlock:
        if set(self.exclude) & {self.cursor, *(self.key or ())}:
            raise ValueError("exclude lists the key or the cursor, which are always read")
        return self


class DefaultsBlock(TableBlock):
    """The keys of a table, and one that is about all of them."""

    new_tables: Literal["report", "ignore"] = "report"


class FileBlock(Block):
    source: SourceBlock
    store: StoreBlock = Field({}, validate_default=True)
    warehouse: WarehouseBlock = Field({}, validate_default=True)
    spark: SparkBlock = SparkBlock()
    defaults: DefaultsBlock = DefaultsBlock()
    tables: dict[str, TableBlock] = {}
    alerts: AlertsBlock | None = None


def read(path: Path) -> FileBlock:
    """The file's blocks; raises one ConfigError that lists every mistake."""
    try:
        tree, mistakes = parse(_content(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"can't read {path}: {error.strerror}", hint="check --config and the file's permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
    except TooMuch as error:
        raise ConfigError(f"{path} {error}", hint="is it the right file? See --config") from None
    except ValueError as error:
        raise ConfigError(
            f"{path}, {error}",
            hint="indent with spaces, not tabs; quote values that contain : # { or }, and ${NAME} inside braces",
        ) from None
    if tree in (None, ""):
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} has no keys", hint="it needs at least source: {url: mysql://…}")
    filled: list[tuple[str, ...]] = []
    plain = _prepared(tree, mistakes, filled)
    try:
        block = FileBlock.model_validate(plain, context={"base": _base(path)})
    except ValidationError as error:
        for item in error.errors(include_url=False, include_context=True):
            loc = tuple(str(part) for part in item["loc"])
            if loc not in filled:
                what = said(item, loc, FileBlock)
                variable = _not_set(item.get("ctx", {}).get("error"))
                mistakes.append(Mistake(dotted(loc) or "the file", what, variable))
    if mistakes:
        raise Mistakes(path, mistakes)
    return block


def _base(path: Path) -> Path:
    """The folder that the file's paths are relative to; for /dev/stdin and the like, the current one."""
    whole = path.absolute()
    piped = whole == Path("/dev/stdin") or whole.parent == Path("/dev/fd") or whole.parts[1:2] == ("proc",)
    return Path.cwd() if piped else whole.parent


def _content(path: Path) -> bytes:
    """The file's bytes, up to the limit; times out on a pipe that nothing is written to."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        news = select.poll()
        news.register(file, select.POLLIN)
        found = bytearray()
        while len(found) < MOST_BYTES:
            if not news.poll(PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe that sent nothing for {PIPE_SECONDS} s")
            part = os.read(file.fileno(), 1 << 20)
            if not part:
                break
            found += part
    return bytes(found[:MOST_BYTES])


def _not_set(error: Any) -> str | None:
    """The missing environment variable, if that is the cause."""
    return error.missing[0] if isinstance(error, VariableError) and error.missing else None


def _prepared(
    tree: dict[str, Tree], mistakes: list[Mistake], failed: list[tuple[str, ...]]
) -> dict[str, Any]:
    """The tree with variables expanded and empty blocks as {}; `failed` collects the paths that failed."""

    def walk(node: Tree, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {key: walk(value, (*path, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(item, (*path, str(n))) for n, item in enumerate(node)]
        if node in (None, "") and _is_block(path):
            return {}
        if isinstance(node, str) and path not in _URLS:
            try:
                return expand(node)
            except ValueError as error:
                mistakes.append(Mistake(dotted(path), str(error), _not_set(error)))
                failed.append(path)
        return node

    return walk({"source": {}, **tree}, ())  # type: ignore[no-any-return]


def _is_block(path: tuple[str, ...]) -> bool:
    return len(path) == 1 or path == ("spark", "conf") or (len(path) == 2 and path[0] == "tables")
