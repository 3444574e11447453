"""`init`: writes a commented floodmark.yaml with the tables of the source.

The password appears neither in the file nor on the screen: it stays in a variable. If the source can't be read, nothing
is written, unless with --offline. An existing file is overwritten only with --force.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from floodmark.config.load import SourceSpec, TableOptions, source_from
from floodmark.config.values import expand
from floodmark.host.temp import whole_file
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted
from floodmark.model.names import OUR_TABLES, reserved
from floodmark.model.notes import Kind, Note, clause, not_followed
from floodmark.model.secrets import of_url
from floodmark.model.text import counted
from floodmark.model.warehouse import UNLIMITED
from floodmark.setup.doctor.source import check_table
from floodmark.source import ranges as edges
from floodmark.source.binlog.fitness import Fitness, fitness, log_facts, verdict
from floodmark.source.describe import discover_with_notes, list_tables, proposed_cursor
from floodmark.source.server import trust_in
from floodmark.source.session import Session

VARIABLE = "MYSQL_PASSWORD"
EXAMPLE = f"mysql://reader:${{{VARIABLE}}}@127.0.0.1:3306/mydatabase"
CONNECT_SECONDS = 5
SECONDS = 20.0  # after this, the remaining tables are listed without a closer look


@dataclass(frozen=True)
class InitialSource:
    """A source as the user gave it: what to connect to, and what to write to the file."""

    spec: SourceSpec
    written: str  # the URL for the file, without a password
    variable: str | None  # to be exported before the file can be used


@dataclass(frozen=True)
class ListedTable:
    """One table of the source."""

    table: str
    reading: str | None = None  # None: not examined
    remarks: tuple[str, ...] = ()
    error: str | None = None  # why it can't be copied
    target: str | None = None  # if its own name is taken or reserved
    cursor: str | None = None  # a column that may be a better cursor than the one discovered
    not_followed: tuple[Kind, ...] = ()  # changes that never reach the target, because of the defaults


@dataclass(frozen=True)
class Initial:
    """What was written, and what remains to be done."""

    path: Path
    source: str | None  # where the tables come from; None: no source was given
    tables: tuple[ListedTable, ...]
    export: str | None  # the variable that needs the password; None: it is set, or none is needed
    offline: bool = False  # whether the source was not asked
    log: Fitness | None = None  # the source's binary log; None: not asked

    def as_json(self) -> dict[str, Any]:
        tables = [asdict(found) for found in self.tables]
        log = self.log.as_json() if self.log else None
        return {"ok": True, "path": str(self.path), "tables": tables, "export": self.export, "binlog": log}

    def lines(self) -> list[str]:
        """What the user sees."""
        if self.source is None:
            what = ""
        elif self.offline:
            what = ", without tables (--offline)"
        else:
            remarks = sum(bool(found.remarks or found.error) for found in self.tables)
            what = f", with {counted(len(self.tables), 'table')} of {self.source}"
            what += f"; see the remarks on {remarks} of them in the file" if remarks else ""
        command = "floodmark doctor"
        if self.path != Path("floodmark.yaml").absolute():
            command = f"floodmark --config {self.path} doctor"
        steps = ["edit source.url in it"] if self.source is None else []
        if self.export is not None:
            export = f"read -rs {self.export} && export {self.export}"
            steps.append(f"put the password in the environment: {export}")
        steps.append(command)
        log = [f"Binary log: not used; it {verdict(self.log)} (see the file)"] if self.log else []
        next_steps = (f"{'Next' if not n else 'Then'}: {step}" for n, step in enumerate(steps))
        return [f"Wrote {self.path}{what}", *log, *next_steps]


def initial(path: Path, url: str | None, force: bool, offline: bool = False) -> Initial:
    """Reads the source's tables, if a source is given, and writes the file; nothing if the source can't be read."""
    if path.exists() and not force:
        raise _refused(path)
    if url is None:
        _write(path, text(EXAMPLE, (), None), force)
        return Initial(path, None, (), None if VARIABLE in os.environ else VARIABLE)
    given = understood(url)
    where = given.spec.socket or f"{given.spec.host}:{given.spec.port}"
    where += f"/{given.spec.database}" if given.spec.database else ""
    tables: tuple[ListedTable, ...] = ()
    log = None
    if offline:
        given = given if given.variable or given.spec.password else _with_variable(given)
    else:
        tables, log = _read(given)
    _write(path, text(given.written, tables, None if offline else f"{where}, {date.today()}", log), force)
    known = given.variable is None or os.environ.get(given.variable) == given.spec.password
    return Initial(path, where, tables, None if known else given.variable, offline, log)


def _read(given: InitialSource) -> tuple[tuple[ListedTable, ...], Fitness | None]:
    """The source's tables and its binary log; ConfigError if it can't be reached or doesn't let us in."""
    try:
        with _session(given.spec) as session:
            tables = tuple(_tables(session, given.spec.database))
            return tables, _log(session, {found.table.partition(".")[0] for found in tables})
    except Interrupted:
        raise
    except FloodmarkError as error:
        hints = [error.hint] if error.hint else []
        if not given.spec.password:
            export = f"read -rs {VARIABLE} && export {VARIABLE}"
            hints = [f"no password was given, and {VARIABLE} is not set: {export}"]
        hints.append("--offline writes the file without asking the source")
        raise ConfigError(f"{error.message}; nothing was written", hint="; ".join(hints)) from None


def _session(spec: SourceSpec) -> Session:
    return Session(spec, connect_timeout=CONNECT_SECONDS, read_timeout=60, purpose="init")


def _log(session: Session, schemas: set[str]) -> Fitness | None:
    """Whether the source's binary log could be followed; None if that can't be found out."""
    try:
        facts = log_facts(session, trust_in(session), lambda: _session(session.spec))
    except Interrupted:
        raise
    except FloodmarkError:
        return None
    return fitness(facts, sorted(schemas))


# ---------------------------------------------------------------- the URL


def understood(url: str) -> InitialSource:
    """The URL split into what connects and what may be written: a password becomes a variable."""
    given = InitialSource(source_from(url), url, None)
    password = of_url(url)
    if re.fullmatch(r"\$\{[^}]*\}", url) or "${" in password.replace("$${", ""):
        used = re.findall(r"(?<!\$)\$\{(\w+)\}", url)
        return replace(given, variable=used[-1] if used else None)
    if not password and VARIABLE not in os.environ:
        return given
    if not password:
        given = replace(given, spec=replace(given.spec, password=expand(f"${{{VARIABLE}}}")))
    return _with_variable(given)


def _with_variable(given: InitialSource) -> InitialSource:
    """The same with a password from the variable."""
    scheme, _, rest = given.written.partition("://")
    login, at, place = rest.rpartition("@")
    written = f"{scheme}://{login.partition(':')[0]}:${{{VARIABLE}}}{at}{place}"
    return replace(given, written=written, variable=VARIABLE)


# ---------------------------------------------------------------- the tables


def _tables(session: Session, database: str | None) -> Iterator[ListedTable]:
    names = list_tables(session, database)
    taken = Counter(name.partition(".")[2].lower() for name in names)
    until = time.monotonic() + SECONDS
    for name in names:
        own = name.partition(".")[2].lower()
        target = name.replace(".", "_").lower() if taken[own] > 1 or reserved(own) else None
        if time.monotonic() < until:
            yield _table(session, name, database, target)
        else:
            yield ListedTable(name, target=target)


def _table(session: Session, name: str, database: str | None, target: str | None) -> ListedTable:
    try:
        options = TableOptions(target=target)
        discovered = discover_with_notes(session, name, options, database)
        table = discovered.table
        rows = edges.table_rows(session, table)
        left = not_followed(table, options.deletes)
        notes = tuple(note for note in discovered.notes if note.kind not in left)
        first, *others = check_table(replace(discovered, notes=notes), rows, UNLIMITED)
    except FloodmarkError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return ListedTable(name, target=target, error=" ".join(f"{error.message}{hint}".split()))
    likely, remarks = proposed_cursor(table), tuple(check.detail for check in others)
    cursor = likely.name if likely else None
    return ListedTable(name, first.detail, remarks, target=target, cursor=cursor, not_followed=left)


# ---------------------------------------------------------------- the file

_HEAD = """\
# Floodmark copies MySQL tables into a warehouse, incrementally: every committed row, exactly once.
#   floodmark doctor        finds what would fail, and says what to do
#   floodmark sync --all    copies what is new; run it as often as you like
# Only source.url is required. Paths are relative to this file; ${{NAME}} is replaced by an environment variable.

source:
  url: {url}
  # tls: {{mode: verify_identity, ca: ca.pem}}         # disabled | required | verify_ca | verify_identity
  # ssh: {{host: bastion.example.com, user: me}}       # through a bastion whose host key is known
  # max_connections: 8                               # the most that Spark tasks open
{log}
store:                                               # holds the Parquet files and the commit log
  url: ./lake                                        # or s3://bucket/prefix
  # region: us-east-1
  # endpoint: http://127.0.0.1:8333                  # S3-compatible servers
  # access_key_id: ${{S3_KEY}}                         # default: AWS's variables, profile file or instance role
  # secret_access_key: ${{S3_SECRET}}
  # copies_to: [/var/lib/floodmark]                  # further copies of watermarks: s3://other-bucket/prefix, folders

warehouse:
  url: duckdb:///warehouse.duckdb                    # or redshift://loader:${{REDSHIFT_PASSWORD}}@host:5439/dev
  # schema: main                                     # Redshift: public
  # iam_role: arn:aws:iam::123456789012:role/loader  # lets Redshift read the bucket
  # statement_timeout: 12h                           # how long one statement of a load may take in Redshift

# spark: {{master: "local[*]"}}

defaults:                                            # takes any key of a table
  # start: "2025-01-01 00:00:00"                     # leave out rows whose cursor is not after this
  keep_files: 7d                                     # remove staged files that long after their load
"""
_NO_TABLES = """
# Without `tables`, `sync --all` copies every table of the source; with it, only those listed:
# tables:
#   {schema}.orders:
#     cursor: updated_at                             # the column that shows what has changed
#     key: [id]
#     mode: upsert                                   # upsert | append | full
"""
_TABLES = """
# Found at {where}. `sync --all` copies the tables listed here; without `tables`, every table.
# Every sync discovers how to read each one; keys such as cursor, key, mode, where or exclude override that.
tables:
"""
# What the defaults don't follow, as keys of a table, and what would.
_CHOICES: dict[Kind, tuple[str, str]] = {
    "deletes": ("deletes: ignore", "; hard or soft follows them"),
    "updates": ("mode: append", ""),
}


def text(url: str, tables: Sequence[ListedTable], where: str | None, log: Fitness | None = None) -> str:
    """The file."""
    head = _HEAD.format(url=_scalar(url), log="".join(f"  # {line}\n" for line in _about(log)))
    copied = [found for found in tables if found.error is None]
    if where is None or not copied:
        schema = re.sub(r"\W.*", "", url.rpartition("/")[2]) or "shop"
        return head + _NO_TABLES.format(schema=schema)
    return head + _TABLES.format(where=where) + "".join(_entry(found) for found in tables)


def _about(log: Fitness | None) -> Iterator[str]:
    """The source's binary log, in comments."""
    if log is None:
        return
    yield f"The binary log is not used; it {verdict(log)} (docs/binlog.md)" + (":" if log.said else "")
    for found in log.said:
        yield f"  ! {found.what} → {found.remedy}"


def _entry(found: ListedTable) -> str:
    if found.error is not None:
        return f"  # can't be copied: {found.error}\n  # {_scalar(found.table)}:\n"
    lines = [f"  # {found.reading}"] if found.reading else []
    lines += [f"  #   ! {remark}" for remark in found.remarks]
    lines.append(f"  {_scalar(found.table)}:")
    if found.target is not None:
        why = "another schema has a table of the same name"
        if reserved(found.table.partition(".")[2]):
            why = f"{OUR_TABLES}… is reserved for Floodmark's own tables"
        lines.append(f"    target: {_scalar(found.target)}  # {why}")
    for kind in found.not_followed:
        lines.append(f"    {_CHOICES[kind][0]}  # {clause(Note(kind))}{_CHOICES[kind][1]}")
    if found.cursor is not None:
        how = "uncomment this, and set mode: upsert, if every change of a row sets it"
        lines.append(f"    # cursor: {_scalar(found.cursor)}  # {how}")
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: str) -> str:
    """A text as a YAML scalar, quoted where necessary."""
    plain = re.fullmatch(r"[A-Za-z_][\w.$/:@{}?=%+&~-]*\w", value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def _refused(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} already exists and was not changed",
        hint="--force overwrites it; --output FILE writes another file",
    )


def _write(path: Path, content: str, force: bool) -> None:
    """Writes the whole file or nothing; without `force`, only if there is none."""
    try:
        with whole_file(path, force, "name a file in a folder that exists: --output FILE") as part:
            part.write_text(content, encoding="utf-8")
    except FileExistsError:
        raise _refused(path) from None
