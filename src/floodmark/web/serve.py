"""`floodmark serve` and `floodmark report`: the dashboard as a server, and as a file.

Whatever would keep it from serving is reported before it listens; nothing is left half done.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from floodmark.config.load import Config
from floodmark.host.temp import whole_file
from floodmark.log.status import Scrub
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.status.alerts import guarding
from floodmark.store.store import Store
from floodmark.web.app import Dashboard
from floodmark.web.detail import Detail, Details
from floodmark.web.gate import Token, is_loopback
from floodmark.web.pages import Pages
from floodmark.web.snapshot import Looks, Watch

LEAST_TOKEN = 16  # characters
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def read_token(file: Path) -> Token:
    """The token of a file: its first line."""
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the token file {file} can't be read: {why}") from None
    token = text.splitlines()[0].strip() if text else ""
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"the token in {file} has fewer than {LEAST_TOKEN} characters",
            hint=f"openssl rand -hex 24 > {file}",
        )
    return Token(token)


def check_store(config: Config) -> None:
    """Raises an error if the store can't be read; an empty one is fine."""
    store = Store(config.store)
    if not store.exists():
        raise ConfigError(
            f"there is no store {config.store.url}",
            hint="the first `floodmark sync` creates it; or correct store.url",
        )
    store.get("pipeline.json")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError if there can't be one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"there is no address {host}: {error.strerror}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            hint = f"use another one: floodmark serve --port {port + 1 if port < 65535 else 8808}"
            raise ConfigError(f"port {port} of {host} is in use", hint=hint) from None
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}") from None
    return listening


def serve(
    config: Config, scrub: Scrub, ready: Callable[[str], None], *, host: str = "127.0.0.1", port: int = 8808,
    token_file: Path | None = None, names: Collection[str] = (), ledger: bool = True,
) -> None:  # fmt: skip
    """Serves until a signal arrives; calls `ready` with the address once it listens.

    `names`: host names that a proxy or other machines use for this one. `ledger`: whether to query the warehouse's ledger.
    """
    if not is_loopback(host) and token_file is None:
        raise ConfigError(
            f"--host {host} lets other machines in, which requires a token",
            hint="openssl rand -hex 24 > token; floodmark serve --host … --token-file token",
        )
    token = read_token(token_file) if token_file is not None else None
    check_store(config)
    with listen(host, port) as listening:
        looks = Looks(config, scrub, ledger)
        with Watch(looks) as watch, guarding(config):
            known = {*LOCAL_NAMES, host, *names, socket.gethostname(), socket.getfqdn()}
            app = Dashboard(config, looks, watch).app(known, token)
            server = uvicorn.Server(
                uvicorn.Config(
                    app, log_config=None, access_log=False, server_header=False, date_header=False, lifespan="off",
                    timeout_graceful_shutdown=2, limit_concurrency=500, ws="none",
                )
            )  # fmt: skip
            watch.now()  # so that the first request waits less
            place = f"[{host}]" if ":" in host else host
            ready(f"http://{place}:{listening.getsockname()[1]}/")
            server.run(sockets=[listening])


def report(config: Config, file: Path, scrub: Scrub, ledger: bool = True) -> dict[str, Any]:
    """Writes overview and tables into one file, whole or not at all; returns what is in it."""
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}")
    check_store(config)
    looks = Looks(config, scrub, ledger)
    looks.look()
    looks.ledger.wait()
    snapshot = looks.look()
    if snapshot.problem is not None:
        raise looks.failed or FloodmarkError(snapshot.problem)
    details = Details(looks.store, config)
    found: dict[str, Detail] = {}
    for row in snapshot.rows:
        with suppress(FloodmarkError):  # its line of the overview says that it can't be read
            if (detail := details.of(row.name)) is not None:
                found[row.name] = detail
    text = Pages(config).report(snapshot, found, datetime.now(UTC))
    data = text.encode("utf-8", "backslashreplace")
    with whole_file(file, replaces=True) as part:
        part.touch(0o600)
        part.write_bytes(data)
    return {"file": str(file), "tables": len(snapshot.rows), "bytes": len(data)}
