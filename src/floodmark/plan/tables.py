"""Which tables a command means: by the names given, the configuration, the source, and the stored state.

If the source no longer shows a table that was synced before, either it was dropped or a privilege was lost.
We can't tell which, so every run reports it until someone retires it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial

from floodmark.config.load import Config
from floodmark.log.log import Log, tables
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.run import TableReport
from floodmark.model.text import counted
from floodmark.source.describe import Unseen, list_tables, resolve
from floodmark.source.session import Session
from floodmark.store.store import Store

# New tables that a note names.
NAMED = 10
# Tables that are looked up one by one; of more, all of the source's are listed at once.
ASKED_EACH = 20


def is_pattern(name: str) -> bool:
    """Whether a name in the configuration stands for several tables."""
    return any(c in name for c in "*?[")


class NoTable(ConfigError):
    """The source shows no table at all."""


class StoredTables:
    """The store's tables, listed on first use."""

    def __init__(self, config: Config, store: Store, names: tuple[str, ...] | None = None) -> None:
        self._config = config
        self._store = store
        self._names = names
        self.new: tuple[str, ...] = ()  # tables of the source that nobody has listed or synced
        self.left_out: tuple[str, ...] = ()  # configured, retired, and no longer at the source

    def names(self) -> tuple[str, ...]:
        """All tables that have state."""
        if self._names is None:
            self._names = tuple(tables(self._store))
        return self._names

    def seems_new(self, name: str) -> bool:
        """Whether the tables were listed, and this one was not among them."""
        return self._names is not None and name not in self._names

    def retired(self, name: str) -> bool:
        """Whether `--all` no longer includes the table; its schema may be omitted, as in the configuration.

        A pattern is retired once all tables that match it are.
        """
        name = self._full(name)
        if name not in self.names() and is_pattern(name):
            fitting = self._fitting(name)
            return bool(fitting) and all(map(self.retired, fitting))
        try:
            return name in self.names() and Log(self._store, name).read().retired
        except DataError:  # a damaged log is reported by the code that needs it
            return False

    def known(self, names: Sequence[str], all_tables: bool) -> list[str]:
        """The tables that the user means, as far as can be known while the source is unreachable."""
        named = map(self._full, self._config.tables if all_tables else names)
        found = dict.fromkeys(name for name in named if "." in name and not is_pattern(name))
        if all_tables:
            found |= dict.fromkeys(filter(self._meant, self.names()))
        return list(found)

    def resolve(
        self, opened: Callable[[str], AbstractContextManager[Session]], names: Sequence[str], all_tables: bool
    ) -> tuple[list[str], list[TableReport]]:
        """The full names of the tables that the user means, and a report for each name without a table."""
        config, database = self._config, self._config.source.database
        with opened("plan") as session:
            shown = cache(partial(list_tables, session, database))
            found, unknown = self._found(session, shown, names, all_tables)
            if all_tables and config.tables and config.new_tables != "ignore":
                known = {*found, *(one.table for one in unknown)}
                others = [name for name in shown() if name not in known]
                self.new = tuple(name for name in others if name not in self.names())
        for number, one in enumerate(unknown):
            if one.error is not None:
                error = self.explained(one.error, one.table)
                unknown[number] = replace(one, error=error, table=error.table or one.table)
        if all_tables:
            gone = self.gone([*found, *(one.table for one in unknown)])
            unknown = [*self.not_retired(unknown), *gone]
        if not found and not unknown:
            where, user = f"in {database}" if database else "on the server", config.source.user
            raise NoTable(
                f"{user} sees no table {where}",
                hint=f"GRANT SELECT ON … TO '{user}'@'…', or correct the database in source.url",
            )
        return found, unknown

    def _found(
        self, session: Session, shown: Callable[[], list[str]], names: Sequence[str], all_tables: bool
    ) -> tuple[list[str], list[TableReport]]:
        """The same as far as the source and the configuration tell; `shown` lists the source's tables."""
        config, source = self._config, self._config.source
        found = dict.fromkeys(shown() if all_tables and not config.tables else ())
        unknown: list[TableReport] = []
        listed = frozenset(shown()) if all_tables and len(config.tables) > ASKED_EACH else frozenset()
        for name in config.tables if all_tables else names:
            full = self._full(name)
            if full in listed and full.count(".") == 1 and f"{source.database}.{full}" not in listed:
                found[full] = None
                continue
            if not (all_tables and is_pattern(name)):
                try:
                    found[resolve(session, name, source.database)] = None
                except ConfigError as error:  # the other tables still get their turn
                    unknown.append(TableReport(name, error=error.of(name)))
                continue
            fitting = [table for table in shown() if fnmatchcase(table, name)]
            found |= dict.fromkeys(fitting)
            schemas = {table.partition(".")[0] for table in shown()}
            # Otherwise it only sets options, for any table that there may be.
            chooses = not config.entries.get(name) or not any(
                fnmatchcase(schema, name.partition(".")[0]) for schema in schemas
            )
            if not fitting and chooses:
                where = f" in {source.database}, the database of source.url" if source.database else ""
                refused = ConfigError(
                    f"{source.user} sees no table that matches the pattern{where}",
                    hint=f"correct it or remove it from `tables`, or GRANT SELECT ON … TO '{source.user}'@'…'",
                    table=name,
                )
                unknown.append(TableReport(name, error=refused))
        shared = _shared_targets(config, found)
        if all_tables and any(map(self.retired, shared)):
            found = {name: None for name in found if name not in shared or not self.retired(name)}
            shared = _shared_targets(config, found)
        return [name for name in found if name not in shared], [*unknown, *shared.values()]

    def not_retired(self, unknown: Iterable[TableReport]) -> Iterator[TableReport]:
        """Reports on configured tables and patterns that match nothing, without the retired ones."""
        for report in unknown:
            name = self._full(report.table)
            # `gone` reports each table of a pattern, unless it was retired.
            by_pattern = name not in self.names() and is_pattern(name) and bool(self._fitting(name))
            if (by_pattern or name in self.names()) and self.retired(name):
                self.left_out += (report.table,)
            elif not by_pattern:
                yield replace(report, table=name) if name in self.names() else report

    def explained(self, error: FloodmarkError, name: str) -> FloodmarkError:
        """The error about a name without a table; if it was synced before, what may have happened to it."""
        name = self._full(name)
        return self._lost(name) if isinstance(error, Unseen) and name in self.names() else error

    def gone(self, shown: Collection[str]) -> Iterator[TableReport]:
        """Tables that `--all` would include but the source no longer shows."""
        known = {self._full(name) for name in shown}
        for name in self.names():
            if name not in known and self._meant(name) and not self.retired(name):
                yield TableReport(name, error=self._lost(name))

    def _lost(self, name: str) -> ConfigError:
        user = self._config.source.user
        return ConfigError(
            f"the source no longer shows {name}, which was synced before: it was dropped or renamed, or {user} "
            "has lost the right to read it",
            hint=f"GRANT SELECT ON {name} TO '{user}'@'…'; if it was dropped on purpose: floodmark watermark retire -t {name}",
            table=name,
        )

    def _fitting(self, pattern: str) -> list[str]:
        """The tables with state that match a pattern."""
        return [name for name in self.names() if fnmatchcase(name, pattern)]

    def _full(self, name: str) -> str:
        database = self._config.source.database
        return f"{database}.{name}" if database and "." not in name else name

    def _meant(self, name: str) -> bool:
        """Whether `--all` includes an unnamed table: by a pattern, or because it includes every table."""
        if self._config.tables:
            return any(is_pattern(p) and fnmatchcase(name, p) for p in self._config.tables)
        database = self._config.source.database
        return database is None or name.startswith(f"{database}.")


def said_new(names: Sequence[str]) -> str:
    """`2 tables of the source are not in `tables`, so they are not copied: shop.a, shop.b`."""
    many = len(names) > 1
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
    are, they = ("are", "they are") if many else ("is", "it is")
    return (
        f"{counted(len(names), 'table')} of the source {are} not in `tables`, so {they} not copied: {listed}"
    )


def full_name(config: Config, store: Store, name: str) -> str:
    """schema.table; the schema is optional if the URL names a database or only one schema has the table."""
    if "." in name:
        return name
    if config.source.database:
        return f"{config.source.database}.{name}"
    known = [t for t in tables(store) if t.partition(".")[2] == name]
    if len(known) == 1:
        return known[0]
    with Session(config.source, purpose="names") as session:
        return resolve(session, name, None)


def must_exist(config: Config, name: str, doubt: bool = True) -> None:
    """Refuses a table without state that doesn't exist; `doubt` accepts it if the source is unreachable."""
    try:
        with Session(config.source, purpose="names") as session:
            resolve(session, name, config.source.database)
    except FloodmarkError as error:
        if error.code == ConfigError.code or not doubt:
            raise error.of(name) from None


def _shared_targets(config: Config, names: Iterable[str]) -> dict[str, TableReport]:
    """Tables that would share a target: none of them is read, so that chance doesn't pick one."""
    by_target: dict[str, list[str]] = {}
    for name in names:
        table = name.partition(".")[2]
        # With more dots, only describing the table tells which part is the schema.
        if "." not in table:
            by_target.setdefault((config.options(name).target or table).lower(), []).append(name)
    return {
        name: TableReport(name, error=shared(target, next(n for n in sharing if n != name), name))
        for target, sharing in by_target.items()
        if len(sharing) > 1
        for name in sharing
    }


def shared(target: str, other: str, name: str) -> ConfigError:
    return ConfigError(
        f"{other} and {name} have the same target {target}",
        hint=f"set tables.{name}.target in the configuration",
        table=name,
    )
