"""Which tables the overview shows, and in which order, as its address says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from floodmark.status.health import WORDS
from floodmark.web.seen import Row, worst_first

PAGE = 1000
# Tables that are alike in this stay in the order of their health.
SORTS: dict[str, Callable[[Row], Any]] = {
    "health": lambda r: 0,
    "name": lambda r: r.name,
    "lag": lambda r: -max(r.at_most or 0, r.lag if r.lag is not None else r.lag_ids or -1),
    "rows": lambda r: -(r.last.rows_extracted if r.last else -1),
    "looked": lambda r: r.looked or "",  # the longest ago first
    "pending": lambda r: -r.pending,
    "verified": lambda r: r.verified.at if r.verified else "",
}


@dataclass(frozen=True)
class View:
    """The view that the address requests; anything invalid in it means the default."""

    search: str = ""
    health: str = ""
    sort: str = "health"
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        health, sort, page = query.get("health", ""), query.get("sort", ""), query.get("page", "")
        return cls(
            query.get("q", "").strip()[:200],
            health if health in WORDS or health == "attention" else "",
            sort if sort in SORTS else "health",
            max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def url(self, **other: str | int) -> str:
        """The address of the same view with something changed; defaults are left out."""
        parts = {"q": self.search, "health": self.health, "sort": self.sort, "page": self.page, **other}
        usual: dict[str, str | int] = {"q": "", "health": "", "sort": "health", "page": 1}
        query = urlencode([(name, value) for name, value in parts.items() if value != usual[name]])
        return f"/?{query}" if query else "/"


@dataclass(frozen=True)
class ChosenRows:
    """The rows of one page, and how many there are in all."""

    rows: Sequence[Row]
    found: int
    pages: int


def choose(rows: Sequence[Row], asked: View) -> ChosenRows:
    """The requested rows, in the requested order."""
    wanted = asked.search.casefold()
    found = [
        row
        for row in rows
        if wanted in row.name.casefold()
        and (
            not asked.health
            or row.health.word == asked.health
            or (asked.health == "attention" and row.health.word != "ok")
        )
    ]
    ordered = sorted(worst_first(found), key=SORTS[asked.sort])
    pages = max(1, -(-len(ordered) // PAGE))
    page = min(asked.page, pages)
    return ChosenRows(ordered[(page - 1) * PAGE : page * PAGE], len(ordered), pages)
