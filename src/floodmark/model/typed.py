"""The base of all that commands and the library return: an immutable document with typed fields, and as rows for notebooks.

A result has the fields that it was made with, in that order: `as_json()` is what `--json` prints. A field that it lacks is
None, or empty if it is a list. It is also a read-only mapping: the library returned dictionaries before, and
`report["tables"]` still works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError
from functools import cache, reduce
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NewType,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from floodmark.model.errors import ConfigError
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    import pandas
    import pyarrow

Moment = NewType("Moment", str)  # a clock time: UTC, with Z

MOST_SHOWN = 200  # rows of a table in a notebook
ARROW = {str: "string", int: "int64", float: "float64", bool: "bool_"}


class _Null(tuple[Any, ...]):
    """A list that is null in the document."""


NULL = _Null()


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
class Result(Mapping[str, Any]):
    """A document; subclasses name its fields."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The typed form of a document that was read, or that others still make as a dictionary."""
        values = dict(document)
        for name, field, hint in _unlike(cls):
            if name in values:
                if field != name:
                    values = {field if key == name else key: one for key, one in values.items()}
                values[field] = _typed(hint, values[field])
        return cls(**values)

    def but(self, **changed: Any) -> Self:
        """The same with other or further fields."""
        return type(self)(**vars(self) | changed)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that it has, by their names."""
        return vars(self)

    def as_json(self) -> dict[str, Any]:
        """What the command prints with `--json`."""
        return {name: self[name] for name in self}

    def __getitem__(self, name: str) -> Any:
        given, reserved = self.given, f"{name}_"  # from_: a name that Python reserves
        return plain(given[reserved if reserved in given else name])

    def __iter__(self) -> Iterator[str]:
        return (name.rstrip("_") for name in self.given)

    def __len__(self) -> int:
        return len(self.given)

    def __getattr__(self, name: str) -> Any:
        if name not in _hints(type(self)):
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        return () if get_origin(_hints(type(self))[name]) is tuple else None

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )

    def _repr_html_(self) -> str:
        return html_table(_cells(self))


def plain(value: Any) -> Any:
    """A value as JSON has it, to change at will."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, _Null):
        return None
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value.as_json() if hasattr(value, "as_json") else value


class RowsResult(Result):
    """A document whose main part is a list: a row each, for notebooks."""

    ROWS: ClassVar[str] = "tables"

    @property
    def entries(self) -> tuple[Result, ...]:
        """The rows."""
        return tuple(getattr(self, self.ROWS))

    @property
    def _columns(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        return _columns(get_args(_hints(type(self))[self.ROWS])[0])

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table: single values, one column each, clock times as timestamps."""
        import pyarrow

        def kind(hint: Any) -> Any:
            return pyarrow.timestamp("us", "UTC") if hint is Moment else getattr(pyarrow, ARROW[hint])()

        cells = [_cells(row) for row in self.entries]
        values = {
            name: [parse_moment(row[name]) if hint is Moment and row[name] else row[name] for row in cells]
            for name, (_, hint) in self._columns.items()
        }
        schema = pyarrow.schema([(name, kind(hint)) for name, (_, hint) in self._columns.items()])
        return pyarrow.table(values, schema=schema)

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
        shown = [_cells(row) for row in self.entries[:MOST_SHOWN]]
        head = "".join(f"<th>{_cell(name)}</th>" for name in self._columns)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(v)}</td>' for v in row.values())}</tr>" for row in shown)
        more = len(self.entries) - len(shown)
        foot = f"<p>and {more:,} more</p>" if more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"


@cache
def _hints(kind: type[Result]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}


@cache
def _bare(hint: Any) -> Any:
    """The type without None."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return hint


def _is_result(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Result)


@cache
def _unlike(kind: type[Result]) -> tuple[tuple[str, str, Any], ...]:
    """The fields that differ from a document's, in their type or name: its name, the field's, and its type."""
    return tuple(
        (name.rstrip("_"), name, hint)
        for name, hint in _hints(kind).items()
        if name.endswith("_") or get_origin(_bare(hint)) is tuple or _is_result(_bare(hint))
    )


def _typed(hint: Any, value: Any) -> Any:
    kind = _bare(hint)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return NULL if value is None else tuple(map(inner.of, value) if _is_result(inner) else value)
    return kind.of(value) if value is not None and _is_result(kind) else value


@cache
def _columns(kind: type[Result]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The columns of a row: its single values, and those of its parts with the part's name in front; where they are, and their types."""
    found: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name, hint in _hints(kind).items():
        bare = _bare(hint)
        if _is_result(bare):
            found |= {
                f"{name}_{inner}": ((name, *path), one) for inner, (path, one) in _columns(bare).items()
            }
        elif bare in (*ARROW, Moment):
            found[name] = ((name,), bare)
    return found


def _cells(row: Result) -> dict[str, Any]:
    def at(path: tuple[str, ...]) -> Any:
        return reduce(lambda part, name: None if part is None else getattr(part, name), path, row)

    return {name: at(path) for name, (path, _) in _columns(type(row)).items()}


def html_table(values: Mapping[str, Any]) -> str:
    """Names and values for a notebook."""
    lines = (f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in values.items())
    return f"<table>{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    """A value as HTML: names and messages may hold anything."""
    from html import escape

    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
