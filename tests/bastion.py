"""What tests of tunnels share: tables, addresses behind a bastion, and the ssh processes that lead to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from floodmark.config import SourceSpec, Ssh
from floodmark.testing.databases import DatabaseServer
from floodmark.testing.sshd import Sshd
from tests.conftest import Workspace

ORDERS = """CREATE TABLE orders (id BIGINT PRIMARY KEY, note VARCHAR(1000) NOT NULL, update_at DATETIME NOT NULL,
  KEY (update_at))"""
FILL = "INSERT INTO orders SELECT seq, {note}, '2025-03-01' + INTERVAL (seq DIV 100) SECOND FROM seq_1_to_{n}"


def ssh_of(bastion: Sshd, **others: object) -> Ssh:
    about = {"key": bastion.key, "known_hosts": bastion.known_hosts, **others}
    return Ssh(**{**bastion.ssh(), **about})  # type: ignore[arg-type]


def source(server: DatabaseServer, ssh: Ssh, **others: object) -> SourceSpec:
    spec = SourceSpec(server.host, server.port, server.user, server.password, ssh=ssh)
    return replace(spec, **others)  # type: ignore[arg-type]


def clients(bastion: Sshd) -> dict[int, str]:
    """The ssh processes that lead to a bastion, each with its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("ssh") and ("-p", str(bastion.port)) in itertools.pairwise(words):
            found[int(folder.name)] = " ".join(words)
    return found


def until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def reading(server: DatabaseServer, database: str) -> bool:
    """Whether a slice is being read."""
    return bool(
        server.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{database}' "
            "AND info LIKE '/* floodmark: extract%' AND id <> connection_id()"
        )
    )


def large(workspace: Workspace) -> Workspace:
    """Rows that take a while to arrive."""
    workspace.execute(ORDERS, FILL.format(n=80_000, note="REPEAT(LEFT(SHA2(seq, 256), 32), 25)"))
    return workspace


def complete(workspace: Workspace) -> bool:
    found = workspace.query("SELECT count(*), count(DISTINCT id), sum(id), sum(length(note)) FROM orders")
    return found == [(80_000, 80_000, 80_000 * 80_001 // 2, 80_000 * 800)]
