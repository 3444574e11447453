"""The SQL in the warehouse's modules, piece by piece, to find pieces that are never sent."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType

from floodmark.load.redshift import catalog as redshift_catalog
from floodmark.load.redshift import ledger as redshift_ledger
from floodmark.load.redshift import merge as redshift_merge
from floodmark.load.redshift import shape as redshift_shape

MODULES = (redshift_catalog, redshift_ledger, redshift_merge, redshift_shape)
NEVER_SENT = {
    "CREATE SCHEMA IF NOT EXISTS {}",  # the probes' schema exists
    "ALTER TABLE {} ALTER SORTKEY NONE",  # for the user to run
    "ALTER SORTKEY (…)",  # the same
    "COPY loaded",  # part of a message
}


def unsent(statements: Iterable[str]) -> set[str]:
    """The pieces that none of the statements contains, with their modules."""
    sent = {statement.replace("\n", " ") for statement in statements}
    return {
        f"{module.__name__.rpartition('.')[2]}: {written}"
        for module in MODULES
        for written in _pieces(module)
        if written not in NEVER_SENT
        and not any(_contains(statement, written.replace("\n", " ")) for statement in sent)
    }


def _contains(statement: str, written: str) -> bool:
    """Whether the parts of a piece come in a statement in their order, with anything between them."""
    at = 0
    for part in written.split("{}"):
        if (found := statement.find(part, at)) < 0:
            return False
        at = found + len(part)
    return True


def _pieces(module: ModuleType) -> Iterator[str]:
    """Each piece as written, with {} for values."""
    for node in _texts(ast.parse(inspect.getsource(module))):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        known = [_known(part, module) for part in parts]
        written = "".join("{}" if text is None else text for text in known)
        if re.search(r"\b[A-Z]{3,}\b", written):
            yield written


def _known(part: ast.expr, module: ModuleType) -> str | None:
    """The text of an f-string part, if it is constant: a literal, or a constant of the module, quoted or not."""
    match part:
        case ast.Constant():
            return str(part.value)
        case ast.FormattedValue(value=ast.Name(id=name)):
            found = getattr(module, name, None)
            return found if isinstance(found, str) else None
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="quote"), args=[ast.Name(id=name)])):
            found = getattr(module, name, None)
            return f'"{found}"' if isinstance(found, str) else None
    return None


def _texts(node: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """The strings that are neither docstrings nor parts of errors."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Expr(value=ast.Constant()) | ast.Call(func=ast.Name(id="DataError" | "ConfigError")):
                pass
            case ast.JoinedStr():
                yield child
                for part in child.values:
                    yield from _texts(part) if isinstance(part, ast.FormattedValue) else ()
            case ast.Constant(value=str()):
                yield child
            case _:
                yield from _texts(child)
