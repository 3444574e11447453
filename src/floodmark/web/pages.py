"""The pages: what was seen, as HTML. Everything is escaped; names can't inject markup or change the text's direction."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from floodmark import __version__
from floodmark.config.load import Config
from floodmark.log.status import Day, DoctorResult, LastVerify, RunOutcome, TableOutcome
from floodmark.model.notes import Note, clause
from floodmark.model.text import clock, count, counted, data_time, duration, shown, size
from floodmark.status.health import WORDS, age
from floodmark.web import charts
from floodmark.web.charts import Point
from floodmark.web.detail import Detail, House
from floodmark.web.snapshot import Row, Snapshot, TableHolder, worst_first, worst_lag

RUNS_ON_A_PAGE = 50
TABLES_ON_THE_TIMELINE = 30
TABLES_OF_A_RUN = 200
NAMED_TABLES = 3  # of a run, in the list of runs
RUNS_WITH_FINDINGS = 5  # whose findings a table's page shows
STATUS_WORDS = {"success": "ok", "failed": "failed", "pending": "waiting to load"}


@dataclass(frozen=True)
class Places:
    """Where source, store and warehouse are, without a secret."""

    source: str
    store: str
    warehouse: str
    pipeline: str | None = None  # None: not created yet
    copies: tuple[str, ...] = ()  # further places of watermark copies

    @classmethod
    def of(cls, config: Config) -> Places:
        source = config.source
        at = source.socket or f"{source.host}:{source.port}"
        endpoint = f" at {config.store.endpoint}" if config.store.endpoint else ""
        return cls(
            f"mysql://{at}/{source.database or ''}",
            f"{config.store.url}{endpoint}",
            config.warehouse.label,
            copies=tuple(place.store.url for place in config.store.copies_to),
        )


Chart = tuple[str, Markup]  # its title, and its SVG


def job(holder: TableHolder, now: datetime) -> TableHolder:
    """The holder with how far and how fast it is, if it has said."""
    rows, total = holder.rows, holder.total
    if rows is None:
        return holder
    share = min(99, int(100 * rows / total)) if total else None
    begun = age(holder.stage_since or holder.since, now)
    told = age(holder.told, now) or 0.0
    seconds = None if begun is None else begun - told
    if not rows or not seconds or seconds < 1:
        return replace(holder, percent=share)
    speed = rows / seconds
    left = max(0.0, (total - rows) / speed - told) if total and total > rows else None
    return replace(holder, percent=share, rows_per_second=round(speed), seconds_left=left)


def totals(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """How many tables have each health word, worst first."""
    return [(word, sum(row.health.word == word for row in rows)) for word in WORDS]


def sums(snapshot: Snapshot, now: datetime) -> dict[str, int]:
    """The totals on top of the overview."""
    since = (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "running": len(snapshot.holders),
        "rows": sum(part.rows_extracted for run in snapshot.runs if run.at >= since for part in run.tables),
        "pending": sum(row.pending for row in snapshot.rows),
    }


class Pages:
    """Renders pages of one pipeline."""

    def __init__(self, config: Config) -> None:
        self.places = Places.of(config)
        self._known: dict[str, tuple[Row, str, str]] = {}
        self._warehouse = config.warehouse.can.label
        self._s3 = config.store.url.startswith("s3://")
        self._env = Environment(
            loader=PackageLoader("floodmark.web"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= {
            "ago": ago, "anchor": anchor, "clock": clock, "coarse": coarse, "count": count, "counted": counted, "duration": duration,
            "ended": ended, "finding": finding, "lag": lag, "moment": lambda at: f"{at:%Y-%m-%d %H:%M} UTC", "next_step": next_step,
            "shell": shlex.quote, "short": short, "shown": lambda text: shown(str(text)), "size": size,
            "slug": lambda word: word.split()[0], "sparkline": charts.sparkline,
        }  # fmt: skip
        static = files("floodmark.web") / "static"
        self._style = (static / "style.css").read_text()
        scripts = (static / name for name in ("htmx.min.js", "page.js"))
        built = sha256(self._style.encode() + b"".join(one.read_bytes() for one in scripts)).hexdigest()[:12]
        self._env.globals |= {
            "release": __version__, "built": built, "link": table_url, "linked": True, "snapshot": None,
            "pipeline": None, "api": None, "here": None, "address": None, "stage_word": lambda s: STATUS_WORDS.get(s, "unknown"),
            "store_kind": "S3" if self._s3 else "Store", "warehouse_kind": self._warehouse,
        }  # fmt: skip

    def _page(self, template: str, **values: Any) -> str:
        return self._env.get_template(template).render(**values)

    def _lines(self, rows: Sequence[Row], now: datetime) -> Markup:
        """The rows of the overview; those that have not changed within this minute are not rendered again."""
        minute, template, made = f"{now:%H:%M}", self._env.get_template("overview_row.html"), []
        for row in rows:
            known = self._known.get(row.name)
            if known is None or known[1] != minute or known[0] != row:
                known = (row, minute, template.render(row=row, now=now))
                self._known[row.name] = known
            made.append(known[2])
        return Markup("".join(made))  # made by a template, which has escaped it

    def overview(self, snapshot: Snapshot, asked: View, now: datetime) -> str:
        chosen = choose(snapshot.rows, asked)
        return self._page(
            "overview.html", title="Overview", here="/", address=asked.url(), api="/api/overview", snapshot=snapshot, asked=asked,
            chosen=chosen, lines=self._lines(chosen.rows, now), totals=totals(snapshot.rows), sums=sums(snapshot, now), now=now,
        )  # fmt: skip

    def table(
        self, snapshot: Snapshot, row: Row, detail: Detail | None, trouble: str | None, now: datetime
    ) -> str:
        return self._page(
            "table.html", title=row.name, address=table_url(row.name), api=f"/api{table_url(row.name)}", snapshot=snapshot,
            commands=commands(row), trouble=trouble, **self._table_values(snapshot, row, detail, now),
        )  # fmt: skip

    def _table_values(
        self, snapshot: Snapshot, row: Row, detail: Detail | None, now: datetime
    ) -> dict[str, Any]:
        parts, days = snapshot.parts(row.name), snapshot.days.get(row.name, ())
        document: Mapping[str, Any] = {**NO_DOCUMENT, **row.document, **(detail.document if detail else {})}
        return {
            "row": row,
            "detail": detail,
            "doc": document,
            "now": now,
            "parts": parts,
            "days": days,
            "anchor": anchor(row.name),
            "position": position(document),
            "not_followed": [clause(Note(kind)) for kind in document.get("not_followed", ())],
            "charts": table_charts(parts, days, row.target),
            "findings": [
                (part.run, finding(one.kind, one.detail))
                for part in parts[:RUNS_WITH_FINDINGS]
                for one in part.findings
            ],
            "verify_findings": verify_findings(row.verified) if row.verified else [],
            "run_figures": [_run_figures(part) for part in parts],
            "day_figures": [_day_figures(day) for day in reversed(days)],
        }

    def runs(self, snapshot: Snapshot, page: int, now: datetime) -> str:
        pages = max(1, -(-len(snapshot.runs) // RUNS_ON_A_PAGE))
        page = min(page, pages)
        shown = snapshot.runs[(page - 1) * RUNS_ON_A_PAGE : page * RUNS_ON_A_PAGE]
        names = list(dict.fromkeys(p.table for run in shown for p in run.tables if not p.idle))
        chosen = set(names[:TABLES_ON_THE_TIMELINE])
        spans = [
            _span(part)
            for run in shown
            for part in run.tables
            if part.table in chosen and not part.idle and part.at
        ]
        return self._page(
            "runs.html", title="Runs", here="/runs", address=f"/runs?page={page}" if page > 1 else "/runs", api="/api/runs", snapshot=snapshot, runs=shown, page=page, pages=pages,
            timeline=charts.timeline(spans, now), names={run.run: _names(run) for run in shown}, more_tables=len(names) - len(chosen), now=now,
        )  # fmt: skip

    def run(self, snapshot: Snapshot, run: RunOutcome, now: datetime) -> str:
        worst = sorted(run.tables, key=lambda p: (p.ok, p.idle, p.table))
        shown = [part for part in worst if not part.idle or part.notes or len(worst) <= 20][:TABLES_OF_A_RUN]
        return self._page(
            "run.html", title=f"Run {run.run}", here="/runs", address=f"/runs/{run.run}", api=f"/api/runs/{run.run}", snapshot=snapshot, run=run,
            parts=shown, more=len(worst) - len(shown), now=now, stages=[stage for stage in charts.STAGES if any(stage in part.stage_seconds for part in shown)],
            timeline=charts.timeline([_span(part, link=table_url(part.table)) for part in shown[:TABLES_ON_THE_TIMELINE]], None)
            if run.at and any(part.stage_seconds for part in shown) else "",
        )  # fmt: skip

    def now(self, snapshot: Snapshot, now: datetime) -> str:
        return self._page(
            "now.html", title="Now", here="/now", address="/now", api="/api/now", snapshot=snapshot,
            working=[job(holder, now) for holder in snapshot.holders], now=now,
        )  # fmt: skip

    def house(
        self,
        snapshot: Snapshot,
        places: Places,
        house: House | None,
        doctor: DoctorResult | None,
        now: datetime,
    ) -> str:
        return self._page(
            "house.html", title="System", here="/house", address="/house", api="/api/house", snapshot=snapshot, places=places,
            house=house, doctor=doctor, seen=snapshot.ledger, now=now,
            differing=[row for row in snapshot.rows if row.loads is not None and not row.loads.agrees],
        )  # fmt: skip

    def error(self, title: str, said: str, hint: str | None = None) -> str:
        return self._page("error.html", title=title, said=said, hint=hint)

    def login(self, wrong: bool) -> str:
        return self._page("login.html", title="Token", wrong=wrong)

    def report(self, snapshot: Snapshot, details: Mapping[str, Detail], now: datetime) -> str:
        """Overview and tables as one file that needs nothing else."""

        def link(name: str) -> str:
            return f"#{anchor(name)}"

        line, body = self._env.get_template("overview_row.html"), self._env.get_template("table_body.html")
        tables = []
        for row in snapshot.rows:
            values = self._table_values(snapshot, row, details.get(row.name), now)
            body_html = Markup(body.render(**values, linked=False))
            tables.append({"row": row, "anchor": values["anchor"], "body": body_html})
        lines = Markup("".join(line.render(row=row, now=now, link=link) for row in snapshot.rows))
        return self._page(
            "report.html", snapshot=snapshot, lines=lines, totals=totals(snapshot.rows), sums=sums(snapshot, now), now=now,
            tables=tables, style=Markup(self._style), link=link,
        )  # fmt: skip


NO_DOCUMENT: dict[str, Any] = dict.fromkeys(
    (
        "mysql_status", "redshift_status", "mysql_rows_extracted", "mysql_rows_reread", "redshift_rows_loaded", "s3_file_count",
        "last_redshift_load_time", "redshift_status_as_of", "last_mysql_data_timestamp", "last_mysql_data_id",
    )
)  # fmt: skip


def anchor(name: str) -> str:
    """What identifies a table within a page, whatever its name."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def position(document: Mapping[str, Any]) -> str | None:
    """A table's position in a line: the cursor's time, and the key."""
    at, key = document["last_mysql_data_timestamp"], document["last_mysql_data_id"]
    parts = [data_time(str(at))] if at else []
    if isinstance(key, list) and key:
        parts.append("key " + ", ".join(str(value) for value in key))
    if isinstance(log := document.get("binlog"), dict):
        parts.append(f"{log.get('file')}:{log.get('position')}")
    return ", ".join(part for part in parts if part) or None


def _clock(at: str) -> str:
    return at[:16].replace("T", " ")


def table_charts(parts: Sequence[TableOutcome], days: Sequence[Day], target: float) -> list[Chart]:
    """Lag over time, and rows, bytes and seconds per run, oldest first; per day where the runs' reports are gone."""
    runs = [part for part in reversed(parts) if part.at]
    busy = [part for part in runs if not part.idle]

    def per_run(title: str, value: Callable[[TableOutcome], float], say: Callable[[Any], str]) -> Chart:
        return title, charts.bars([Point(_clock(p.at), value(p), _outcome(p)) for p in busy], say)

    in_ids = all(part.lag.seconds is None for part in runs)
    lags = [Point(_clock(part.at), part.behind) for part in runs]
    if sum(point.value is not None for point in lags) < 3 and len(days) > 2:
        lags = [Point(day.day, worst_lag(day)) for day in days]
    say = (lambda v: f"{v:,.0f} ids") if in_ids else duration
    found = [
        (
            "Lag when runs began",
            charts.line(lags, say, None if in_ids else target, f"target {coarse(target)}"),
        ),
        per_run("Rows per run", lambda p: p.rows_extracted, count),
        per_run("Bytes per run", lambda p: p.bytes_written, size),
        per_run("Seconds per run", lambda p: p.seconds, duration),
    ]
    if len(days) > 2:
        rows = [Point(d.day, d.rows_extracted, "failed" if d.failures else "ok") for d in days]
        found.append(("Rows per day", charts.bars(rows, count)))
    return found


def _outcome(part: TableOutcome) -> charts.Outcome:
    return "ok" if part.ok else "held" if part.exit_code == 3 else "failed"


def _names(run: RunOutcome) -> str:
    """The tables of a run in a few words."""
    names = [part.table for part in run.tables]
    more = len(names) - NAMED_TABLES
    return ", ".join(names[:NAMED_TABLES]) + (f" and {more:,} more" if more > 0 else "")


def _span(part: TableOutcome, link: str | None = None) -> charts.ChartSpan:
    said = f"{part.table}, {_clock(part.at)}: {ended(part.exit_code)}, {count(part.rows_extracted)} rows in {duration(part.seconds)}"
    href, stages = link or f"/runs/{part.run}", dict(part.stage_seconds)
    return charts.ChartSpan(part.table, part.at, part.seconds, _outcome(part), said, href, stages)


def _run_figures(part: TableOutcome) -> tuple[str, ...]:
    at, ids = part.lag.seconds, part.lag.ids
    lag = duration(at) if at is not None else f"{ids:,} ids" if ids is not None else ""
    return (
        part.run, ended(part.exit_code), count(part.rows_extracted), count(part.rows_reread), count(part.rows_loaded),
        count(part.bytes_written), f"{part.seconds:.1f}", lag,
    )  # fmt: skip


def _day_figures(day: Day) -> tuple[str, ...]:
    worst = worst_lag(day)
    lag = "" if worst is None else f"{worst:,.0f}"
    return (
        day.day, count(day.runs), count(day.failures), count(day.rows_extracted), count(day.bytes_written),
        f"{day.seconds:.1f}", lag,
    )  # fmt: skip


# ---------------------------------------------------------------- which tables the overview shows

PAGE = 1000
# Tables that are alike in this stay in the order of their health.
SORTS: dict[str, Callable[[Row], Any]] = {
    "health": lambda r: 0,
    "name": lambda r: r.name,
    "lag": lambda r: -max(r.at_most or 0, r.lag.seconds if r.lag.seconds is not None else r.lag.ids or -1),
    "rows": lambda r: -(r.last.rows_extracted if r.last else -1),
    "looked": lambda r: r.looked or "",  # the longest ago first
    "pending": lambda r: -r.pending,
    "verified": lambda r: r.verified.at if r.verified else "",
}


def page_number(query: Mapping[str, str]) -> int:
    """The page that an address requests; the first if that is no number."""
    page = query.get("page", "")
    return max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1


@dataclass(frozen=True)
class View:
    """The view that the address requests; anything invalid in it means the default."""

    search: str = ""
    health: str = ""
    sort: str = "health"
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        health, sort = query.get("health", ""), query.get("sort", "")
        return cls(
            query.get("q", "").strip()[:200],
            health if health in WORDS or health == "attention" else "",
            sort if sort in SORTS else "health",
            page_number(query),
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


# ---------------------------------------------------------------- how things are worded

EXIT_CODES = {
    0: ("done", ""),
    1: ("a bug in Floodmark", "Run it again with --debug, and report the traceback. Nothing committed is lost."),
    2: ("usage or configuration", "Correct what the message names: the command, the configuration or the privileges."),
    3: ("another run holds the table", "Nothing to do: the other run is doing the work."),
    4: ("a service failed", "Run the same command again: nothing is lost."),
    5: ("the warehouse's answer was lost", "Run the same command again: the ledger shows what was committed."),
    6: ("data or state that is not safe to continue with", "Decide as the message says; nothing continues until then."),
    7: ("verification found differences", "Look at the findings, then: floodmark verify --repair."),
    130: ("interrupted", "Run the same command again: it continues from there."),
    143: ("interrupted", "Run the same command again: it continues from there."),
}  # fmt: skip


def ended(code: int | None) -> str:
    """An exit code in words; None: the run ended without one."""
    if code is None:
        return "killed, or its machine stopped"
    return EXIT_CODES.get(code, (f"exit code {code}", ""))[0]


def next_step(code: int | None) -> str:
    """What to do about an exit code."""
    return EXIT_CODES.get(130 if code is None else code, ("", ""))[1]


def finding(kind: str, detail: str) -> str:
    """A finding in a line: its kind, and what it says."""
    return f"{kind.replace('_', ' ')}: {detail}".rstrip(": ")


def verify_findings(verify: LastVerify) -> list[str]:
    """The first findings of a verify, each in a line."""
    return [
        finding(str(one.get("kind", "finding")), str(one.get("detail", ""))) for one in verify.findings[:50]
    ]


def ago(moment: str | None, now: datetime) -> str:
    """`3 min ago`, coarse: it is read at a glance and should not change with every look."""
    seconds = age(moment, now)
    if seconds is None:
        return "never"
    return "just now" if seconds < 45 else f"{coarse(seconds)} ago"


def coarse(seconds: float) -> str:
    """A length of time in one unit: `45 s`, `12 min`, `5 h`, `3 d`."""
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{round(seconds / unit):,} {name}"
    return f"{round(seconds / 86400):,} d"


def lag(row: Row) -> str:
    """How far a table was behind when a sync last looked; at most so far by now, if that is too far."""
    seconds, ids = row.lag.seconds, row.lag.ids
    if row.at_most is not None and (seconds or 0.0) <= row.target:
        return f"up to {coarse(row.at_most)}"
    if seconds is not None:
        return "none" if seconds < 1 else coarse(seconds)
    if ids is not None:
        return "none" if ids == 0 else f"{count(ids)} ids"
    return "unknown"


def short(number: int) -> str:
    """A count for a narrow place: `1,250,000` as `1.25 M`."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= unit:
            scale = 1000 if name == "k" else unit
            return (
                f"{number / scale:.3g} {name}" if number < 1000 * scale else f"{number / scale:,.0f} {name}"
            )
    return count(number)


def table_url(name: str) -> str:
    return f"/tables/{quote(name, safe='')}"


def commands(row: Row) -> list[tuple[str, str]]:
    """What to do next with a table, with the command to copy; the likeliest first."""
    t = shlex.quote(row.name)
    sync = ("Bring it up to date", f"floodmark sync -t {t}")
    verify = ("Compare every row with the source", f"floodmark verify -t {t}")
    repair = ("Read again what differs", f"floodmark verify -t {t} --repair")
    load = ("Load the waiting files", f"floodmark sync -t {t} --redshift-only")
    plan = ("See what the next sync would do", f"floodmark plan -t {t}")
    rest = [
        ("Set the position by hand", f"floodmark watermark set -t {t} --timestamp 'YYYY-MM-DD HH:MM:SS'"),
        ("Go back to an earlier position", f"floodmark watermark restore -t {t} --commit N"),
        ("Start over", f"floodmark watermark reset -t {t}"),
    ]
    first = {
        "failed": [sync, plan],
        "failing": [sync, plan],
        "behind": [sync, plan],
        "waiting to load": [load],
        "never synced": [plan, sync],
        "unknown": [("Check what is there", f"floodmark watermark validate -t {t}"), sync],
    }.get(row.health.word, [])
    if row.verified is not None and row.verified.differences:
        first = [repair, *first]
    return [*first, verify, *rest]
