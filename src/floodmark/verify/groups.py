"""The search by groups: rows by the first digits of their keys' hashes, if the warehouse orders keys differently.

Both sides compute these hashes. Groups that differ are listed, and compared row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from floodmark.model.canonical import DIGITS, Digest, Printed, Span
from floodmark.verify import hashed
from floodmark.verify.gathered import Gathering
from floodmark.verify.portions import chunks, most_rows
from floodmark.verify.sides import IN_MEMORY, Sides, beside
from floodmark.verify.task import Digested

# Rows per group.
GROUP = 3000
# Bytes per answer with keys: the Data API's limit is 500 MB, and used to be 100 MB.
ANSWER = 80_000_000


@dataclass
class GroupSums:
    """The digests of groups on both sides, and the rows of the source that they leave out."""

    source: dict[str, Digest] = field(default_factory=dict)
    warehouse: dict[str, Digest] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)
    left_out: int = 0
    sample: list[Printed] = field(default_factory=list)

    def add(self, digested: Digested) -> None:
        """Adds what a task found, as it comes: there may be a million groups in each."""
        for prefix, digest in (digested.groups or {}).items():
            self.source[prefix] = self.source.get(prefix, Digest()) + digest
        self.beyond += digested.beyond
        self.left_out += digested.left_out
        self.sample += digested.sample


class GroupSearch:
    """One search through one table, group by group."""

    def __init__(self, sides: Sides, gathering: Gathering) -> None:
        self._sides = sides
        self._gathering = gathering

    def go(self, spans: Sequence[Span], digits: int) -> None:
        """Searches the ranges, with groups by so many digits."""
        found = self._gathering.found
        seen = self._group_sums(spans, digits)
        found.sample += seen.sample
        found.source = sum(seen.source.values(), Digest())
        found.warehouse = sum(seen.warehouse.values(), Digest())
        found.beyond = seen.left_out
        self._gathering.tell()
        unexplained = self._list_groups(spans, sorted(self._differing_groups(seen, digits)), seen)

        def still_differing(groups: set[str]) -> set[str]:
            seen = self._group_sums(spans, digits)
            # If more rows were left out than are named, only the listing can tell.
            return (
                set() if seen.left_out > len(seen.beyond) else groups & self._differing_groups(seen, digits)
            )

        if not self._sides.scope.skipped:
            self._gathering.settle(unexplained, still_differing)

    def _group_sums(self, spans: Sequence[Span], digits: int) -> GroupSums:
        seen = GroupSums()
        jobs = [self._sides.digest_job(span, digits=digits) for span in spans]
        with beside(lambda stop: self._sides.groups(digits, stop=stop)) as asked:
            for digested in self._sides.grouped(jobs):
                seen.add(digested)
            seen.warehouse = asked.result()
        return seen

    def _differing_groups(self, seen: GroupSums, digits: int) -> set[str]:
        """The groups that disagree even without the rows that had already changed."""
        groups, stored = seen.source, seen.warehouse
        differing = {p for p in groups.keys() | stored.keys() if groups.get(p) != stored.get(p)}
        left_out: dict[str, list[str]] = {}
        for key in seen.beyond:
            if key[:digits] in differing:
                left_out.setdefault(key[:digits], []).append(key)
        for some in chunks(sorted(left_out), lambda p: len(left_out[p]), *self._sides.at_once):
            again = self._sides.groups(digits, [h for p in some for h in left_out[p]], some)
            differing -= {p for p in some if again.get(p, Digest()) == groups.get(p, Digest())}
        return differing

    def _list_groups(self, spans: Sequence[Span], prefixes: Sequence[str], seen: GroupSums) -> set[str]:
        """Lists the rows of groups; returns those without a suspect."""
        if not prefixes:
            return set()
        unexplained = set[str]()
        if self._sides.scope.hash_key is None:
            asking = [self._sides.entries_job((span,), prefixes) for span in spans]
            listed = [e for found in self._sides.results(asking) for e in found.entries]
            answers = chunks(
                prefixes,
                lambda p: seen.warehouse.get(p, Digest()).rows * self._width(),
                ANSWER,
                len(prefixes),
            )
            found = self._gathering.suspect(
                listed, (row for some in answers for row in self._sides.entries((), some))
            )
            return set() if found else set(prefixes)
        # No more at once than memory should hold; each time, the source is read again.
        for some in chunks(
            prefixes, lambda p: most_rows(p, seen.source, seen.warehouse), IN_MEMORY, len(prefixes)
        ):
            jobs = [self._sides.entries_job((span,), some) for span in spans]
            mine = hashed.joined(
                [found.rows for found in self._sides.results(jobs) if found.rows is not None]
            )
            theirs = self._sides.stored((), some)
            if not self._gathering.suspected(hashed.differing(self._sides.scope, mine, theirs)):
                unexplained |= set(some)
        return unexplained

    def _width(self) -> int:
        """The maximum bytes of one row of `Sides.entries`."""
        return DIGITS + sum(form.width for form in self._sides.scope.keys)


def digits_for(rows: int, we_hash: bool) -> int:
    """How many digits make groups of a few thousand rows. Pure."""
    digits = max(1, math.ceil(math.log(max(1, rows / GROUP), 16)))
    return min(digits, hashed.MOST_DIGITS) if we_hash else digits
