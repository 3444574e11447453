"""A document with typed attributes, and as rows for notebooks: the base of all that the library returns.

A result keeps the document that it was made of, so that `as_json()` is exactly what `--json` prints. It is also
a read-only mapping of that document: the library returned dictionaries before, and `report["tables"]` still works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from html import escape
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from floodmark.model.errors import ConfigError
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    import pandas
    import pyarrow

Moment = NewType("Moment", str)  # a clock time: UTC, with Z
R = TypeVar("R", bound="Result")

MOST_SHOWN = 200  # rows of a table in a notebook
ARROW = {str: "string", int: "int64", float: "float64", bool: "bool"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Result(Mapping[str, Any]):
    """A document; subclasses name its fields."""

    document: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls: type[R], document: Mapping[str, Any]) -> R:
        """The typed form of a document; what it lacks is None, or empty."""
        values = {
            name: _typed(hint, document.get(name.rstrip("_")))  # from_: a name that Python reserves
            for name, hint in _hints(cls).items()
        }
        return cls(document=dict(document), **values)

    def as_json(self) -> dict[str, Any]:
        """What the command prints with `--json`."""
        return deepcopy(self.document)

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    def _repr_html_(self) -> str:
        values = _cells(self)
        lines = "".join(f"<tr><th>{_cell(name)}</th><td>{_cell(v)}</td></tr>" for name, v in values.items())
        return f"<table>{lines}</table>"


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows(Result):
    """A document whose main part is a list: a row each, for notebooks."""

    ROWS: ClassVar[str] = "tables"

    @property
    def entries(self) -> tuple[Result, ...]:
        """The rows."""
        return tuple(getattr(self, self.ROWS))

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table: single values, one column each, clock times as timestamps."""
        import pyarrow

        kind = _row(_hints(type(self))[self.ROWS])
        assert kind is not None, type(self)
        cells = [_cells(row) for row in self.entries]
        columns = {name: [_value(hint, row[name]) for row in cells] for name, hint in _columns(kind).items()}
        schema = pyarrow.schema(
            [pyarrow.field(name, _arrow(pyarrow, hint)) for name, hint in _columns(kind).items()]
        )
        return pyarrow.table(columns, schema=schema)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a DataFrame; ConfigError without pandas."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ConfigError(
                "to_pandas() needs pandas, which is not installed",
                hint="pip install 'floodmark[pandas]'; to_arrow() needs nothing more",
            ) from None
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        kind = _row(_hints(type(self))[self.ROWS])
        assert kind is not None, type(self)
        names = list(_columns(kind))
        shown = [_cells(row) for row in self.entries[:MOST_SHOWN]]
        head = "".join(f"<th>{_cell(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in names) + "</tr>" for row in shown
        )
        more = len(self.entries) - len(shown)
        foot = f"<p>and {more:,} more</p>" if more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"


@cache
def _hints(kind: type[Result]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.name != "document"}


def _bare(hint: Any) -> Any:
    """The type without None."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return hint


def _row(hint: Any) -> type[Result] | None:
    """X, for tuple[X, ...] of a result; else None."""
    if get_origin(hint) is tuple and isinstance(get_args(hint)[0], type):
        kind = get_args(hint)[0]
        return kind if issubclass(kind, Result) else None
    return None


def _plain_list(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _nested(hint: Any) -> type[Result] | None:
    kind = _bare(hint)
    return kind if isinstance(kind, type) and issubclass(kind, Result) else None


def _typed(hint: Any, value: Any) -> Any:
    if value is None:
        return () if _plain_list(hint) else None
    if (kind := _nested(hint)) is not None:
        return kind.of(value)
    if (kind := _row(hint)) is not None:
        return tuple(kind.of(each) for each in value)
    return tuple(value) if _plain_list(_bare(hint)) and isinstance(value, Sequence) else value


@cache
def _columns(kind: type[Result]) -> dict[str, Any]:
    """The columns of a row: its single values, and those of its parts with the part's name in front."""
    found: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if (part := _nested(hint)) is not None:
            found |= {f"{name}_{inner}": one for inner, one in _columns(part).items()}
        elif _bare(hint) in (*ARROW, Moment):
            found[name] = hint
    return found


def _cells(row: Result) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in _hints(type(row)).items():
        value = getattr(row, name)
        if (part := _nested(hint)) is not None:
            inner = _cells(value) if value is not None else dict.fromkeys(_columns(part))
            found |= {f"{name}_{each}": inner[each] for each in _columns(part)}
        elif _bare(hint) in (*ARROW, Moment):
            found[name] = value
    return found


def _value(hint: Any, value: Any) -> Any:
    return parse_moment(value) if value is not None and _bare(hint) is Moment else value


def _arrow(pyarrow: Any, hint: Any) -> Any:
    bare = _bare(hint)
    return pyarrow.timestamp("us", "UTC") if bare is Moment else pyarrow.type_for_alias(ARROW[bare])


def _cell(value: Any) -> str:
    """A value as HTML: names and messages may hold anything."""
    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
