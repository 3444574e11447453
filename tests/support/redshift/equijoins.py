"""DELETE … USING and UPDATE … FROM: Redshift requires the target to be joined to the other tables by an equality.

Pure: looks at tokens. An unqualified column could belong to any table; it gets the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.support.redshift.leader import relations
from tests.support.redshift.tokens import Token, closing, word_set
from tests.support.redshift.wire import SqlError

REFUSAL = "Target table must be part of an equijoin predicate"
_OUTER = word_set("LEFT RIGHT FULL")


def refuse_other_joins(tokens: Sequence[Token]) -> None:
    """Raise if the target is joined in any other way."""
    outside = list(_outside(tokens))
    words = {token.up: at for at, token in reversed(outside)}  # the first position of each
    start = words.get("USING" if tokens[0].up == "DELETE" else "FROM")
    if start is None:
        return
    where = words.get("WHERE", len(tokens))
    sources = tokens[start:where]
    name, names = _target(tokens)
    refused = SqlError("0A000", REFUSAL)
    if any(token.up in _OUTER for at, token in outside if start < at < where):
        raise refused
    if any(relation.name == name for relation in relations(sources)):
        raise SqlError("0A000", "the stand-in does not join the target of an UPDATE or DELETE with itself")
    if not any(_joins(term, names) for term in _terms(tokens[where + 1 :])):
        raise refused


def _outside(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """The tokens outside of all parentheses."""
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind == "op":
            depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            yield at, token


def _target(tokens: Sequence[Token]) -> tuple[str, frozenset[str]]:
    """The target's name, and all the qualifiers that columns may use for it."""
    at = 2 if tokens[1].up == "FROM" else 1
    while at + 2 < len(tokens) and tokens[at + 1].text == ".":
        at += 2
    name = tokens[at].name
    after = at + 2 if at + 1 < len(tokens) and tokens[at + 1].up == "AS" else at + 1
    alias = tokens[after] if after < len(tokens) else None
    if alias is not None and alias.named and alias.up not in ("USING", "SET", "WHERE"):
        return name, frozenset({name, alias.name})
    return name, frozenset({name})


def _terms(condition: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The AND-ed terms of a condition."""
    while condition and condition[0].text == "(" and closing(condition, 0) == len(condition) - 1:
        condition = condition[1:-1]
    outside = list(_outside(condition))
    if any(token.up == "OR" for _, token in outside):
        return
    cuts = [-1, *(at for at, token in outside if token.up == "AND"), len(condition)]
    if len(cuts) == 2:
        yield condition
        return
    for start, end in pairwise(cuts):
        yield from _terms(condition[start + 1 : end])


def _joins(term: Sequence[Token], target: frozenset[str]) -> bool:
    """Whether the term equates something of the target with something of the other tables."""
    equals = [at for at, token in _outside(term) if token.kind == "op" and token.text == "="]
    if len(equals) != 1:
        return False
    one, other = (_owners(side, target) for side in (term[: equals[0]], term[equals[0] + 1 :]))
    return any(
        bool(mine and theirs) and "other" not in mine and "target" not in theirs
        for mine, theirs in ((one, other), (other, one))
    )


def _owners(side: Sequence[Token], target: frozenset[str]) -> frozenset[str]:
    """Whose columns one side of an equality uses."""
    found = set()
    for at, token in enumerate(side):
        before = side[at - 1].text if at else ""
        following = side[at + 1].text if at + 1 < len(side) else ""
        typed = before == "::" or (at > 0 and side[at - 1].up == "AS") or following.startswith("'")
        if not token.named or typed or following in (".", "("):
            continue
        if before == ".":
            found.add("target" if side[at - 2].name in target else "other")
        elif token.up not in ("AS", "NULL", "TRUE", "FALSE", "PRECISION"):
            found.add("unknown")
    return frozenset(found)
