"""The second query: suspect rows looked up by key on both sides, as the servers print them.

The source prints the columns of those rows only that the warehouse has too: of the others, it is enough that they exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from floodmark.load import canonical
from floodmark.model.canonical import Entry, Membership, Printed, Scope, key_of
from floodmark.model.position import Key, Position
from floodmark.model.types import comparison
from floodmark.services import Services
from floodmark.source import canonical as source_sql
from floodmark.source.ranges import every_row
from floodmark.source.session import Row, Session
from floodmark.verify.warehouse import WarehouseRows

# Suspects per query to either side.
AT_ONCE = 2000


@dataclass(frozen=True)
class Differences:
    """The confirmed disagreements of both sides, in the order of their keys, and what was compared."""

    missing: tuple[Key, ...] = ()  # promised by the watermark but not in the warehouse
    # In the warehouse but not at the source or not matching `where`; or there twice.
    extra: tuple[Key, ...] = ()
    different: tuple[tuple[Key, tuple[str, ...]], ...] = ()  # with the columns that differ
    # Of all these, those that have no place in the change order at the source: maybe different only since the last sync.
    loose: frozenset[Key] = frozenset()
    nowhere: tuple[Printed, ...] = ()  # the keys that neither side has
    outside: tuple[Key, ...] = ()  # of the extra rows, those that the source has, outside `where`
    left_out: int = 0  # rows after the watermark, and those that an update has moved out of `where` since
    rows_source: int = 0  # compared, on either side
    rows_warehouse: int = 0
    changed: int = 0  # rows that have changed at the source since the target was brought up to date
    compared_with: Literal["source", "snapshot"] = "source"  # the latter if the source has changed since
    agree: bool = True  # False: checksums differ, but no key can be named
    notes: tuple[str, ...] = ()
    low: Position | None = None  # rows after this position were compared; None: from the first
    high: Position | None = None  # up to this one; None: to the last

    @property
    def rows(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.different)

    def __bool__(self) -> bool:
        return bool(self.rows) or not self.agree

    def without(self, changed: Collection[Key]) -> Differences:
        """What is left if the rows with these keys differ because they have changed since."""
        extra = sum(key in changed for key in self.extra)
        missing = sum(key in changed for key in self.missing)
        return replace(
            self,
            rows_source=self.rows_source - (len(changed) - extra),
            rows_warehouse=self.rows_warehouse - (len(changed) - missing),
            missing=tuple(key for key in self.missing if key not in changed),
            extra=tuple(key for key in self.extra if key not in changed),
            different=tuple(one for one in self.different if one[0] not in changed),
            loose=frozenset(key for key in self.loose if key not in changed),
            outside=tuple(key for key in self.outside if key not in changed),
            changed=self.changed + len(changed),
        )


def look_up(services: Services, scope: Scope, keys: Sequence[Printed]) -> Differences:
    """How the rows with these keys differ now."""
    nowhere: list[Printed] = []
    missing: list[Key] = []
    extra: list[Key] = []
    different: dict[Key, tuple[str, ...]] = {}
    loose: set[Key] = set()
    for at in range(0, len(keys), AT_ONCE):
        with services.reading("verify", scope.table) as session:
            # Before any query: a key that no source row can have ends the comparison.
            some = {key: key_of(scope, key) for key in keys[at : at + AT_ONCE]}
            theirs = _in_warehouse(services, scope, list(some))
            mine = _at_source(session, scope, some, theirs)
            for key, named in some.items():
                row, stored = mine.get(key), theirs.get(key, [])
                if row is None:
                    row = _equal_to_mysql(session, scope, key)
                    if row is not None and row.compared and stored:
                        # MySQL considers the keys equal though spelled differently: the row exists but is out
                        # of date.
                        named = key_of(scope, row.key)
                        different[named] = _columns(scope, row, stored[0])
                        loose |= {named} if row.place == "loose" else set()
                        continue
                if row is None and not stored:
                    nowhere.append(key)
                elif row is None:
                    extra.append(named)
                elif not row.compared:
                    continue
                elif not stored:
                    missing.append(named)
                elif any(s.hash != row.hash for s in stored):
                    different[named] = _columns(scope, row, next(s for s in stored if s.hash != row.hash))
                elif len(stored) > 1:
                    different[named] = ()
                if row is not None and row.place == "loose":
                    loose.add(named)
    outside = _outside_where(services, scope, extra)
    # An update has moved these out of `where` since the watermark: the next sync removes them.
    left_out = [key for key in extra if outside.get(key) == "beyond"]
    extra = [key for key in extra if outside.get(key) != "beyond"]
    loose |= {key for key in extra if outside.get(key) == "loose"}
    return Differences(
        tuple(sorted((k for k in missing if k not in different), key=_place)),
        tuple(sorted(extra, key=_place)),
        tuple(sorted(different.items(), key=lambda item: _place(item[0]))),
        frozenset(loose & {*missing, *different, *extra}),
        tuple(nowhere),
        tuple(key for key in extra if key in outside),
        len(left_out),
    )


def _outside_where(services: Services, scope: Scope, keys: Sequence[Key]) -> dict[Key, Membership]:
    """Those of the keys whose rows the source has, but outside `where`, and their places in the change order."""
    if not keys or not scope.table.recipe.where:
        return {}
    every = replace(scope, table=every_row(scope.table))
    parts = (source_sql.places(every, keys[at : at + AT_ONCE]) for at in range(0, len(keys), AT_ONCE))
    with services.reading("verify", scope.table) as session:
        found = [_entry(every, row) for question in parts for row in session.rows(question)]
    return {key_of(every, e.key): e.place for e in found}


def _place(key: Key) -> list[tuple[bool, bool, int | str | None]]:
    """A sort key for keys, as far as they have an order."""
    return [(v is not None, isinstance(v, str), v) for v in key]


def _columns(scope: Scope, row: Entry, stored: Entry) -> tuple[str, ...]:
    """The columns that differ; the source returns elements, the warehouse their hashes."""
    pairs = zip(scope.forms, row.columns, stored.columns, strict=True)
    return tuple(f.field.name for f, mine, theirs in pairs if canonical.element_hash(mine) != theirs)


def _at_source(
    session: Session, scope: Scope, keys: Mapping[Printed, Key], stored: Collection[Printed]
) -> dict[Printed, Entry]:
    """The rows with these keys; without hash and columns those whose keys are not stored."""
    found: dict[Printed, Entry] = {}
    for question, some in (
        (source_sql.places, [named for key, named in keys.items() if key not in stored]),
        (source_sql.rows, [named for key, named in keys.items() if key in stored]),
    ):
        if some:
            rows = [_entry(scope, row) for row in session.rows(question(scope, some))]
            # A key may find a row with another spelling of it, which has columns only if the second query finds it too.
            found |= {e.key: e for e in rows if e.columns or e.key not in stored}
    return found


def _equal_to_mysql(session: Session, scope: Scope, key: Printed) -> Entry | None:
    """The row whose key MySQL considers equal although its bytes differ."""
    if all(comparison(form.column) == "bytes" for form in scope.keys):
        return None
    found = session.rows(source_sql.rows(scope, [key_of(scope, key)]))
    return _entry(scope, found[0]) if found else None


def _entry(scope: Scope, row: Row) -> Entry:
    """A row of `source.canonical.rows`."""
    place, hash_, *cells = [None if cell is None else cell.decode() for cell in row]
    keys = len(scope.table.key)
    return Entry(
        tuple(cells[:keys]), hash_ or "", tuple(c or "" for c in cells[keys:]), cast(Membership, place)
    )


def _in_warehouse(services: Services, scope: Scope, keys: Sequence[Printed]) -> dict[Printed, list[Entry]]:
    found: dict[Printed, list[Entry]] = {}
    for hashed, *cells in WarehouseRows(services.warehouse(), scope).ask(
        lambda place: canonical.rows(place, scope, keys)
    ):
        texts = [None if cell is None else str(cell) for cell in cells]
        key = tuple(texts[: len(scope.keys)])
        columns = tuple(text or "" for text in texts[len(scope.keys) :])
        found.setdefault(key, []).append(Entry(key, str(hashed), columns))
    return found
