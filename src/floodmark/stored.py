"""The tables that have state in the store, against those that a sync means and the source shows.

A table that was synced before and that the source no longer shows was dropped, or a privilege was lost: nobody can tell
which, so it is named until somebody retires it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from floodmark.config import Config
from floodmark.errors import ConfigError, DataError
from floodmark.report import TableReport
from floodmark.state import Log
from floodmark.state.log import tables
from floodmark.store import Store


def is_pattern(name: str) -> bool:
    """Whether a name of the configuration stands for several tables."""
    return any(c in name for c in "*?[")


class StoredTables:
    """The store's tables, listed when they are first asked for."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._store = store
        self._names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        """All tables that have state."""
        if self._names is None:
            self._names = tuple(tables(self._store))
        return self._names

    def retired(self, name: str) -> bool:
        """Whether a table is no longer meant by `--all`; its schema may be left out as in the configuration."""
        name = self._full(name)
        try:
            return name in self.names() and Log(self._store, name).read().retired
        except DataError:  # a damaged log: said by whoever needs it
            return False

    def known(self, names: Sequence[str], all_tables: bool) -> list[str]:
        """The tables that the user means, as far as that is known when the source is away."""
        named = map(self._full, self._config.tables if all_tables else names)
        found = dict.fromkeys(name for name in named if "." in name and not is_pattern(name))
        if all_tables:
            found |= dict.fromkeys(filter(self._meant, self.names()))
        return list(found)

    def not_retired(self, unknown: Iterable[TableReport]) -> Iterator[TableReport]:
        """Tables of the configuration that are not there, without those that were retired."""
        for report in unknown:
            name = self._full(report.table)
            if name not in self.names():
                yield report
            elif not self.retired(name):
                report.table = name
                if report.error is not None:
                    report.error.hint = "; ".join(filter(None, (report.error.hint, _retire(name))))
                yield report

    def gone(self, shown: Collection[str]) -> Iterator[TableReport]:
        """Tables that `--all` would mean, and that the source no longer shows."""
        user = self._config.source.user
        known = {self._full(name) for name in shown}
        for name in self.names():
            if name not in known and self._meant(name) and not self.retired(name):
                error = ConfigError(
                    f"the source no longer shows {name}, which was synced before: it was dropped or renamed, or {user} "
                    "has lost the right to read it",
                    hint=f"GRANT SELECT ON … TO '{user}'@'…'; {_retire(name)}",
                    table=name,
                )
                yield TableReport(name, error=error)

    def _full(self, name: str) -> str:
        database = self._config.source.database
        return f"{database}.{name}" if database and "." not in name else name

    def _meant(self, name: str) -> bool:
        """Whether `--all` means a table without its being named: by a pattern, or because all are meant."""
        if self._config.tables:
            return any(is_pattern(p) and fnmatchcase(name, p) for p in self._config.tables)
        database = self._config.source.database
        return database is None or name.startswith(f"{database}.")


def _retire(name: str) -> str:
    return f"if it is meant to be gone: floodmark watermark retire -t {name}"
