"""Who may access the dashboard, and what every answer tells the browser: the Host header, the token, the security headers.

Only GET, HEAD and the token's own form get past here.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floodmark.web.pages import Pages

COOKIE = "floodmark"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
WRONG_PAUSE = 0.5  # seconds, so that guessing a token takes too long
MOST_FORM = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def host_name(headers: Sequence[str]) -> str | None:
    """The name or address that the Host header names, without its port; None if it is anything else."""
    read = _HOST.fullmatch(headers[0]) if len(headers) == 1 else None
    return read and (read[1] or read[2]).lower()


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_welcome(name: str, names: Collection[str]) -> bool:
    """Whether a host is one of ours: a name we are known by, or a plain address.

    A foreign page whose host name was pointed at this machine sends its own name.
    """
    return name in names or _address(name) is not None


def is_open(path: str) -> bool:
    """Whether a path needs no token."""
    return path in ("/healthz", "/login") or path.startswith("/static/")


class Token:
    """The required token. Browsers keep what is derived from it, not the token itself."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.kept = sha256(b"floodmark cookie " + self._token).hexdigest()

    def is_it(self, given: str) -> bool:
        return hmac.compare_digest(given.strip().encode(), self._token)

    def is_with(self, headers: Headers) -> bool:
        """Whether a request carries it, as `Authorization: Bearer …` or as the browser's cookie."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_it(given):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.kept.encode())


class Gate:
    """ASGI middleware around the pages."""

    def __init__(
        self, app: ASGIApp, pages: Pages, names: Collection[str], token: Token | None = None
    ) -> None:
        self._app = app
        self._pages = pages
        self._names = {name.lower() for name in names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = await self._refused(Request(scope, receive))
        await (refused or self._app)(scope, receive, with_headers)

    async def _refused(self, request: Request) -> Response | None:
        host = host_name(request.headers.getlist("host"))
        if host is None:
            return PlainTextResponse("The Host header is not a name or an address with a port.\n", 400)
        if not is_welcome(host, self._names):
            return PlainTextResponse(
                "This dashboard does not answer to that host name; see floodmark serve --allow-host.\n", 421
            )
        # What the router goes by. Starlette builds `request.url` from the Host header too.
        path: str = request.scope["path"]
        if path == "/login" and self._token is not None:
            return await self._login(request, self._token)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Read-only.\n", 405, {"Allow": "GET, HEAD"})
        if self._token is None or is_open(path) or self._token.is_with(request.headers):
            return None
        if request.headers.get("authorization"):
            await asyncio.sleep(WRONG_PAUSE)
        if path.startswith(("/api/", "/metrics")):
            return PlainTextResponse("The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return RedirectResponse("/login", 303)

    async def _login(self, request: Request, token: Token) -> Response:
        if request.method != "POST":
            return HTMLResponse(self._pages.login(wrong=False))
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_FORM:
                return PlainTextResponse("Too long.\n", 413)
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not token.is_it(given):
            await asyncio.sleep(WRONG_PAUSE)
            return HTMLResponse(self._pages.login(wrong=True), 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE, token.kept, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https"
        )
        return answer
