"""COPY … FROM 's3://…' MANIFEST FORMAT AS PARQUET, run on the caller's own backend and so in its transaction.

All files or none, as on Redshift. Only the options that Redshift allows with Parquet are accepted; every other
one is refused, not ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from floodmark.model.errors import FloodmarkError
from tests.support.redshift import wire
from tests.support.redshift.errors import internal_error, spectrum_error
from tests.support.redshift.plans import Context
from tests.support.redshift.postgres import literal
from tests.support.redshift.rights import DEFAULT_ROLE
from tests.support.redshift.spectrum import File, LoadError, Target, lines, open_file
from tests.support.redshift.tokens import Token, closing, quote, split, sql_of, syntax_error, word_set
from tests.support.redshift.wire import SqlError

_REFUSED = word_set(
    """REGION MAXERROR ACCEPTANYDATE IGNOREALLERRORS COMPUPDATE TRUNCATECOLUMNS NOLOAD DATEFORMAT TIMEFORMAT NULL
    BLANKSASNULL EMPTYASNULL ROUNDEC ESCAPE ENCODING GZIP BZIP2 ZSTD LZOP ENCRYPTED CREDENTIALS ACCESS_KEY_ID
    SECRET_ACCESS_KEY SESSION_TOKEN DELIMITER FIXEDWIDTH IGNOREHEADER IGNOREBLANKLINES REMOVEQUOTES TRIMBLANKS
    COMPROWS SSH READRATIO MASTER_SYMMETRIC_KEY QUOTE"""
)
_ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_AHEAD = 4  # files fetched at a time


@dataclass
class Copy:
    """A parsed COPY."""

    table: str
    columns: list[str]
    source: str
    role: str | None = None
    manifest: bool = False
    parquet: bool = False
    to_json: bool = False
    fill: bool = False
    seen: set[str] = field(default_factory=set)


class _Reader:
    """Reads tokens one by one."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise syntax_error(None)
        self.at += 1
        return token

    def maybe(self, *words: str) -> Token | None:
        token = self.peek()
        if token is not None and (token.up in words):
            self.at += 1
            return token
        return None

    def string(self) -> str:
        token = self.take()
        if token.kind != "string":
            raise syntax_error(token)
        return token.value


def read_copy(tokens: Sequence[Token]) -> Copy:
    """Parse a COPY; `tokens` begins with COPY."""
    reader = _Reader(tokens)
    reader.take()
    name = [reader.take()]
    while (dot := reader.peek()) is not None and dot.text == ".":
        name += [reader.take(), reader.take()]
    columns: list[str] = []
    if (token := reader.peek()) is not None and token.text == "(":
        end = closing(tokens, reader.at)
        columns = [part[0].name for part in split(tokens[reader.at + 1 : end], ",") if part]
        reader.at = end + 1
    if reader.take().up != "FROM":
        raise syntax_error(tokens[reader.at - 1])
    source = reader.peek()
    if source is None or source.kind != "string":
        raise syntax_error(source)
    copy = Copy(sql_of(name), columns, reader.string())
    if not copy.source.startswith("s3://"):
        raise SqlError("0A000", "the stand-in's COPY reads from s3:// only")
    while reader.peek() is not None:
        _option(reader, copy)
    if not copy.parquet:
        raise SqlError("0A000", "the stand-in's COPY reads FORMAT AS PARQUET only")
    for word in sorted(copy.seen & _REFUSED):
        raise SqlError("0A000", f"{word} argument is not supported for PARQUET based COPY")
    if copy.role is None:
        raise SqlError("XX000", "Invalid credentials: COPY needs IAM_ROLE")
    return copy


def _option(reader: _Reader, copy: Copy) -> None:
    token = reader.take()
    up = token.up
    if up in copy.seen:
        raise SqlError("42601", "conflicting or redundant options")
    copy.seen.add(up)
    match up:
        case "IAM_ROLE":
            copy.role = DEFAULT_ROLE if reader.maybe("DEFAULT") else _chain(reader.string())
        case "MANIFEST":
            copy.manifest = True
        case "FORMAT" | "PARQUET":
            if up == "FORMAT":
                reader.maybe("AS")
                copy.parquet = reader.take().up == "PARQUET"
            else:
                copy.parquet = True
        case "SERIALIZETOJSON":
            copy.to_json = True
        case "FILLRECORD":
            copy.fill = True
        case "EXPLICIT_IDS":
            pass
        case "STATUPDATE":
            reader.maybe("ON", "OFF", "TRUE", "FALSE")
        case "ACCEPTINVCHARS":
            reader.maybe("AS")
            if (following := reader.peek()) is not None and following.kind == "string":
                reader.take()
        case "MAXERROR":
            reader.maybe("AS")
            if reader.take().text == "0":
                copy.seen.discard("MAXERROR")
        case _ if up in _REFUSED:
            reader.maybe("AS")
            following = reader.peek()
            if following is not None and (
                following.kind in ("string", "number") or following.up in ("ON", "OFF")
            ):
                reader.take()
        case _:
            raise syntax_error(token)


def _chain(roles: str) -> str:
    """One role, or a chain of roles without spaces; the default role is a keyword, not a string."""
    if not all(_ROLE.fullmatch(role) for role in roles.split(",")):
        words = (
            "Invalid credentials. Must be of the format: credentials 'aws_iam_role=...' or "
            "'aws_access_key_id=...;aws_secret_access_key=...[;token=...]'"
        )
        raise internal_error(words, 8001, "")
    return roles


def run_copy(copy: Copy, context: Context) -> str:
    """Load the files; returns the command tag."""
    query = context.query
    _assume(copy.role or DEFAULT_ROLE, context)
    started = datetime.now(UTC).replace(tzinfo=None)
    targets = _targets(copy, context)
    entries = _manifest(copy, context) if copy.manifest else _listed(copy, context)
    loaded = _Loaded()
    context.copy_count, context.copy_id, context.copied = 0, query, True
    table, columns = copy.table, ", ".join(quote(t.name) for t in targets)
    try:
        with ThreadPoolExecutor(_AHEAD) as pool:
            rows = context.backend.copy(
                f"COPY {table} ({columns}) FROM STDIN",
                _chunks(copy, entries, targets, context, pool, loaded),
            )
    except LoadError as failure:
        _record_error(context, copy, query, started, failure.row)
        raise failure.error from None
    context.copy_count, context.copied = rows, True
    context.tell_count()
    context.tell_id()
    _record(context, copy, query, started, rows, loaded)
    name = copy.table.split(".")[-1].strip().strip('"')
    words = f"Load into table '{name}' completed, {rows} record(s) loaded successfully."
    context.backend.notice(wire.info(words))
    return "COPY"


def _assume(roles: str, context: Context) -> None:
    """Refuse roles not granted to the user exactly as written here (ASSUMEROLE), or that IAM lets nobody assume."""
    granted = context.backend.query(f"SELECT pg_catalog.has_assumerole_privilege({literal(roles)}, 'copy')")
    if granted != [[b"t"]]:
        words = f'User {context.user} does not have ASSUMEROLE permission on IAM role "{roles}" for COPY'
        raise SqlError("42501", words)
    if roles == DEFAULT_ROLE:
        ((arn,),) = context.backend.query("SELECT pg_catalog.default_iam_role()")
        roles = (arn or b"").decode()
    for role in filter(lambda role: context.services.faults.denies(role=role), roles.split(",")):
        user = f"arn:aws:redshift:us-east-1:123456789012:dbuser:stand-in/{context.user}"
        words = f"User {user} is not authorized to assume IAM Role {role}"
        raise internal_error(words, 8001, f"IAM Role={role}", context.query)


@dataclass
class _Loaded:
    files: list[tuple[str, int]] = field(default_factory=list)  # url and rows
    bytes: int = 0


def _targets(copy: Copy, context: Context) -> list[Target]:
    """The columns to load into, in order."""
    found = context.backend.query(
        "SELECT pg_catalog.rs_name(attname), attname, pg_catalog.rs_type(atttypid, atttypmod), attnotnull, attidentity "
        f"FROM pg_catalog.pg_attribute WHERE attrelid = {literal(copy.table)}::pg_catalog.regclass "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    ((longest,),) = context.backend.query("SELECT pg_catalog.rs_longest_string()")
    known = {}
    for _, short, kind, not_null, identity in found:
        name, type_ = (short or b"").decode(), (kind or b"").decode()
        if type_ == "super":
            type_ = f"super({(longest or b'').decode()})"
        known[name] = Target(name, type_, not_null == b"t" and identity == b"")
    for name in copy.columns:
        if name not in known:
            raise SqlError("42703", f'column "{name}" of relation "{copy.table}" does not exist')
    return [known[name] for name in copy.columns] if copy.columns else list(known.values())


def _get(context: Context, url: str) -> bytes | None:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    try:
        return context.services.bucket(bucket).get(key)
    except FloodmarkError as error:
        raise internal_error("S3ServiceException", 8001, f"{error}") from None


def _read_file(context: Context, url: str) -> bytes | None:
    """A file as Spectrum reads it."""
    if context.services.faults.denies(url=url):
        words = "HTTP response error code: 403 Message: AccessDenied Access Denied"
        raise spectrum_error(
            15001, f"S3 Query Exception (Fetch). Task failed due to an internal error. {words} {url}"
        )
    return _get(context, url)


def _manifest(copy: Copy, context: Context) -> list[tuple[str, bool, int | None]]:
    """The manifest's entries: url, whether it must exist, its size."""
    # Redshift gives the same error for a manifest that is missing, is a prefix, or can't be read.
    denied = context.services.faults.denies(url=copy.source)
    data = None if denied or copy.source.endswith("/") else _get(context, copy.source)
    if data is None:
        words = "COPY with MANIFEST parameter requires full path of an S3 object."
        raise internal_error(words, 8001, copy.source, context.query)
    try:
        document = json.loads(data)
        entries = document["entries"]
        parsed = [(entry["url"], bool(entry.get("mandatory", False)), entry.get("meta")) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise internal_error(
            "Invalid JSON format in manifest file", 8001, f"{copy.source}: {error}"
        ) from None
    found: list[tuple[str, bool, int | None]] = []
    for url, mandatory, meta in parsed:
        if not isinstance(meta, dict) or not isinstance(meta.get("content_length"), int):
            missing = "meta" if not isinstance(meta, dict) else "content_length"
            raise internal_error(f"File entry does not have '{missing}' key.", 15003, f"{copy.source}: {url}")
        if not isinstance(url, str) or not url.startswith("s3://"):
            raise internal_error("Invalid url in manifest file", 8001, f"{copy.source}: {url}")
        found.append((url, mandatory, meta["content_length"]))
    return found


def _listed(copy: Copy, context: Context) -> list[tuple[str, bool, int | None]]:
    """The objects whose key starts with the prefix in FROM."""
    bucket, _, prefix = copy.source.removeprefix("s3://").partition("/")
    if context.services.faults.denies(url=copy.source):
        words = "S3ServiceException:Access Denied,Status 403,Error AccessDenied,Rid 1,ExtRid 2,CanRetry 1"
        raise internal_error(words, 8001, f"Failed to list {copy.source}", context.query)
    objects = context.services.bucket(bucket).list(prefix)
    return [(f"s3://{bucket}/{item.path}", True, None) for item in objects]


def _chunks(
    copy: Copy,
    entries: Sequence[tuple[str, bool, int | None]],
    targets: Sequence[Target],
    context: Context,
    pool: ThreadPoolExecutor,
    loaded: _Loaded,
) -> Iterator[bytes]:
    """The rows of all files, with a few files read ahead."""
    coming: list[Future[bytes | None]] = []
    asked = 0
    for url, mandatory, size in entries:
        while asked < len(entries) and len(coming) < _AHEAD:
            coming.append(pool.submit(_read_file, context, entries[asked][0]))
            asked += 1
        data = coming.pop(0).result()
        if data is None:
            if mandatory:
                words = "Mandatory url is not present in manifest file."
                raise internal_error(words, 8001, f"url: {url} in manifest file: {copy.source}")
            continue
        if size is not None and size != len(data):
            words = f"HTTP response error code: 416 Message: InvalidRange The requested range is not satisfiable, {url}"
            raise spectrum_error(
                15001, f"S3 Query Exception (Fetch), {words}: content_length {size}, size {len(data)}"
            )
        file = File(url, data)
        parquet = open_file(file, targets, to_json=copy.to_json, fill=copy.fill)
        yield from lines(file, parquet, targets)
        loaded.files.append((url, parquet.metadata.num_rows))
        loaded.bytes += len(data)
    if not loaded.files:
        raise internal_error(
            f"The specified S3 prefix '{copy.source}' does not exist", 8001, "no file to load"
        )


def _record_error(
    context: Context, copy: Copy, query: int, started: datetime, row: dict[str, object]
) -> None:
    about: dict[str, object] = {
        "user_name": context.user, "slice": 0, "tbl": 0, "starttime": started, "session": context.backend.pid, "query": query,
    }  # fmt: skip
    context.services.record(context.database, "rs_load_errors", {**about, **row})


def _record(context: Context, copy: Copy, query: int, started: datetime, rows: int, loaded: _Loaded) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    services, database = context.services, context.database
    services.record(database, "rs_loads", {
        "user_name": context.user, "query_id": query, "session_id": context.backend.pid, "database_name": database,
        "status": "completed", "table_name": copy.table, "start_time": started, "end_time": now,
        "duration": int((now - started).total_seconds() * 1e6), "data_source": copy.source, "file_format": "PARQUET",
        "loaded_rows": rows, "loaded_bytes": loaded.bytes, "source_file_count": len(loaded.files),
        "source_file_bytes": loaded.bytes, "file_count_scanned": len(loaded.files),
        "file_bytes_scanned": loaded.bytes, "error_count": 0, "copy_job_id": -1,
    })  # fmt: skip
    services.record(database, "rs_load_commits", *({
        "user_name": context.user, "query": query, "slice": 0, "filename": url[:256], "lines_scanned": count, "errors": 0,
        "curtime": now, "status": 1, "file_format": "Parquet", "is_partial": 0, "start_offset": 0, "copy_job_id": -1,
    } for url, count in loaded.files))  # fmt: skip
