"""The web application: its addresses, its answers, and when they are rendered again.

A page is rendered once for each version of what was seen, and sent to everyone who requests it; a browser that already
has it gets a 304.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from floodmark.config.load import Config
from floodmark.log import pipeline
from floodmark.log.status import DoctorResult, RunOutcome, parse_run, read_doctor, run_at
from floodmark.model.errors import FloodmarkError
from floodmark.model.secrets import masked
from floodmark.model.text import shown_json
from floodmark.model.times import stamp
from floodmark.status.metrics import Metrics
from floodmark.watermark.history import watermark_history
from floodmark.web import documents
from floodmark.web.detail import Details, House, StoreCounts
from floodmark.web.gate import HEADERS, Gate, Token
from floodmark.web.pages import Pages, Places, View, page_number, totals
from floodmark.web.snapshot import Looks, Row, Snapshot, Watch

logger = logging.getLogger("floodmark")

KEPT_PAGES = 128
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HTML = "text/html; charset=utf-8"
Version = tuple[object, ...]
Make = Callable[[Snapshot, Request, datetime], str | dict[str, Any]]  # a page, or a document


@dataclass(frozen=True)
class RenderedPage:
    """An answer, ready to be sent to any client."""

    version: Version
    tag: str
    kind: str
    status: int
    body: bytes
    packed: bytes

    def sent(self, request: Request) -> Response:
        """The answer to a request; nothing but 304 if its client already has it."""
        headers = {
            "ETag": self.tag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding, Cookie, Authorization",
        }
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        body = self.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = self.packed, "gzip"
        return Response(body, self.status, headers, media_type=self.kind)


class Page:
    """The answer to one address that was made last."""

    def __init__(self, address: str) -> None:
        self._turn = threading.Lock()  # held while it is rendered: concurrent requests render it once
        self._made: RenderedPage | None = None

    def of(self, version: Version) -> RenderedPage | None:
        made = self._made
        return made if made is not None and made.version == version else None

    def render(self, version: Version, status: int, make: Callable[[], str | dict[str, Any]]) -> RenderedPage:
        """The answer of this version, made now unless another request has made it meanwhile."""
        with self._turn:
            made = self.of(version)
            if made is None:
                text, kind = make(), HTML
                if not isinstance(text, str):
                    text = shown_json(json.dumps(text, indent=2, ensure_ascii=False, default=str)) + "\n"
                    kind = "application/json"
                body = text.encode("utf-8", "backslashreplace")
                tag, packed = f'"{sha256(body).hexdigest()[:24]}"', gzip.compress(body, 5, mtime=0)
                self._made = made = RenderedPage(version, tag, kind, status, body, packed)
        return made


class Dashboard:
    """The pages of one pipeline, over what `Watch` sees."""

    def __init__(self, config: Config, looks: Looks, watch: Watch) -> None:
        self.config = config
        self.pages = Pages(config)
        self._looks = looks
        self._watch = watch
        self._details = Details(looks.store, config)
        self._counts = StoreCounts(looks.store)
        self._metrics = Metrics(looks.facts)
        self._page = lru_cache(KEPT_PAGES)(Page)
        self._static = {name: (files("floodmark.web") / "static" / name).read_bytes() for name in STATIC}

    def app(self, names: Collection[str], token: Token | None = None) -> Starlette:
        """The application, for requests with these host names and this token."""
        pages: dict[str, Make] = {
            "/": lambda s, r, now: self.pages.overview(s, View.of(r.query_params), now),
            "/tables/{name:path}": self._table,
            "/runs": lambda s, r, now: self.pages.runs(s, page_number(r.query_params), now),
            "/runs/{run}": lambda s, r, now: self.pages.run(s, self._wanted_run(s, r), now),
            "/now": lambda s, r, now: self.pages.now(s, now),
            "/house": lambda s, r, now: self.pages.house(s, *self._house(), now),
            "/api/overview": lambda s, r, now: documents.overview(s, now),
            "/api/tables": lambda s, r, now: documents.tables(s),
            "/api/history/{name:path}": self._history_document,
            "/api/tables/{name:path}": self._table_document,
            "/api/runs": lambda s, r, now: documents.runs(s),
            "/api/runs/{run}": self._run_document,
            "/api/now": lambda s, r, now: documents.working(s, now),
            "/api/house": lambda s, r, now: documents.house(s, *self._house()),
        }
        routes = [Route(path, self._answering(make)) for path, make in pages.items()]
        others = {"/static/{name}": self.asset, "/healthz": self.healthz, "/metrics": self.metrics}
        return Starlette(
            routes=[*routes, *(Route(path, answer) for path, answer in others.items())],
            middleware=[Middleware(Gate, pages=self.pages, names=names, token=token)],
            exception_handlers={HTTPException: self.not_found, Exception: self.broken},
        )

    # ------------------------------------------------------------ answers

    def _answering(self, make: Make) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            snapshot = (
                self._watch.now() if self._watch.fresh else await run_in_threadpool(self._watch.current)
            )
            now = datetime.now(UTC)
            address = f"{quote(request.scope['path'])}?{request.scope['query_string'].decode('latin-1')}"
            # Times are shown in minutes: what has not changed is rendered again once a minute.
            version = (snapshot.version, f"{now:%H:%M}", self._counts.now() if "house" in address else None)
            page = self._page(address) if len(address) < 500 else Page(address)

            def made() -> str | dict[str, Any]:
                try:
                    return make(snapshot, request, now)
                except FloodmarkError as error:
                    raise HTTPException(503, self._looks.scrub(error.message)) from None

            status = 200 if snapshot.read else 503
            found = page.of(version)
            if found is None:
                found = await run_in_threadpool(page.render, version, status, made)
            return found.sent(request)

        return answer

    # ------------------------------------------------------------ pages

    def _table(self, snapshot: Snapshot, request: Request, now: datetime) -> str:
        row = self._row(snapshot, request)
        try:
            detail, trouble = self._details.of(row.name), None
        except FloodmarkError as error:
            detail, trouble = None, self._looks.scrub(error.message)
        return self.pages.table(snapshot, row, detail, trouble, now)

    def _house(self) -> tuple[Places, House | None, DoctorResult | None]:
        """Where things are, what is in the store, and the last result of `doctor`, as far as they are known."""
        places, doctor = self.pages.places, None
        with suppress(FloodmarkError):
            if (found := pipeline.read(self._looks.store)) is not None:
                places = replace(places, pipeline=found.id)
        with suppress(FloodmarkError):
            doctor = masked(read_doctor(self._looks.store), self._looks.scrub)
        return places, self._counts.now(), doctor

    def _row(self, snapshot: Snapshot, request: Request) -> Row:
        wanted = request.path_params["name"]
        row = snapshot.row(wanted)
        if row is None:
            raise HTTPException(404, f"There is no table {wanted} in this store.")
        return row

    def _wanted_run(self, snapshot: Snapshot, request: Request) -> RunOutcome:
        wanted = request.path_params["run"]
        run = snapshot.run(wanted)
        with suppress(FloodmarkError):  # it may be older than those kept in memory
            if run is None and run_at(wanted) and wanted.replace("_", "").isalnum():
                run = parse_run(self._looks.store.get(f"runs/{wanted}.json"), self._looks.scrub)
        if run is None:
            raise HTTPException(
                404,
                f"There is no report of run {wanted}. A run that had nothing to do leaves none, and reports are kept for 30 days.",
            )
        return run

    # ------------------------------------------------------------ JSON

    def _table_document(self, snapshot: Snapshot, request: Request, now: datetime) -> dict[str, Any]:
        row = self._row(snapshot, request)
        detail = self._details.of(row.name)
        found: dict[str, Any] = dict(detail.document) if detail else {"table_name": row.name}
        found["last_error"] = masked(found.get("last_error"), self._looks.scrub)
        return {**found, "lag_seconds": row.lag.seconds, "lag_ids": row.lag.ids, "health": row.health.word}

    def _history_document(self, snapshot: Snapshot, request: Request, now: datetime) -> dict[str, Any]:
        row = self._row(snapshot, request)
        if not row.document:
            return {"table_name": row.name, "commits": []}
        return watermark_history(self.config, row.name).as_json()

    def _run_document(self, snapshot: Snapshot, request: Request, now: datetime) -> dict[str, Any]:
        run = self._wanted_run(snapshot, request)
        if run.exit_code is None:  # it was killed, and left no report
            return documents.killed(run)
        found: dict[str, Any] = json.loads(self._looks.store.get(f"runs/{run.run}.json") or b"{}")
        return masked(found, self._looks.scrub)

    # ------------------------------------------------------------ the rest

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        headers = {
            "Cache-Control": "max-age=31536000, immutable" if request.scope["query_string"] else "no-cache"
        }
        return Response(self._static[name], media_type=STATIC[name], headers=headers)

    async def healthz(self, request: Request) -> Response:
        """Always 200: a probe that restarts the process would not repair a store."""
        snapshot = self._looks.snapshot
        store = "unread" if not snapshot.read else "unreadable" if snapshot.problem else "ok"
        tables = dict(totals(snapshot.rows)) if snapshot.read else None  # by health, without names
        return JSONResponse({"ok": True, "store": store, "seen_at": stamp(snapshot.at), "tables": tables})

    async def metrics(self, request: Request) -> Response:
        """The metrics for Prometheus; 503 while the store can't be read."""
        answer = await run_in_threadpool(self._metrics.answer)
        return Response(answer.body, answer.status, headers={"Content-Type": answer.kind})

    async def not_found(self, request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else 500
        said = str(error.detail) if isinstance(error, HTTPException) else ""
        if request.scope["path"].startswith("/api/"):
            return JSONResponse({"ok": False, "error": {"code": code, "message": said}}, code)
        if said == "Not Found":
            said = "There is no such page."
        title = {404: "Not found", 503: "Not now"}.get(code, "Something went wrong")
        return Response(self.pages.error(title, said), code, media_type=HTML)

    async def broken(self, request: Request, error: Exception) -> Response:
        said = self._looks.scrub(f"{type(error).__name__}: {error}")
        extra = {"step": "serve"}
        logger.error(
            "a bug in Floodmark: %s could not be answered: %s", request.scope["path"], said, extra=extra
        )
        logger.debug("unexpected", exc_info=error, extra=extra)
        return PlainTextResponse(
            "A bug in Floodmark; see its log.\n", 500, HEADERS
        )  # the gate is not around this
