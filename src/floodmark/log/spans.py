"""Spans: compact sets of commit numbers, however long the log is. Pure.

A span includes both its first and its last number; the spans of a set are sorted and never adjoin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

from floodmark.model.commit import Span


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The set of all numbers in the spans."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def within(spans: Sequence[Span], n: int) -> bool:
    """Whether a number is in the set."""
    i = bisect_right(spans, (n, float("inf"))) - 1
    return i >= 0 and spans[i][1] >= n


def around(chosen: Collection[int], kept: Iterable[int], last: int) -> tuple[Span, ...]:
    """The chosen numbers in as few spans as possible: each extends to the nearest kept numbers on both sides.

    So claims between two commits don't split a span. No span goes beyond `last`.
    """
    found: list[Span] = []
    barriers = sorted({-1, *kept, last + 1})
    for n in chosen:
        i = bisect_left(barriers, n)
        found.append((barriers[i - 1] + 1, min(barriers[i] - 1, last)))
    return merged(found)
