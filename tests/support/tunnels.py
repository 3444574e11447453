"""Helpers for tests of tunnels: tables, addresses behind a bastion, and the ssh processes connected to it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from floodmark.config.load import SourceSpec, Ssh
from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.sshd import Sshd

ORDERS = create_orders("note VARCHAR(1000) NOT NULL", kept=False)


def fill(rows: int, note: str = "CONCAT('n', seq)") -> str:
    return fill_orders(rows, "(seq DIV 100) SECOND", id="seq", note=note)


def ssh_of(bastion: Sshd, **others: object) -> Ssh:
    about = {"key": bastion.key, "known_hosts": bastion.known_hosts, **others}
    return Ssh(**{**bastion.ssh(), **about})


def source(server: DatabaseServer, ssh: Ssh, **others: Any) -> SourceSpec:
    spec = SourceSpec(server.host, server.port, server.user, server.password, ssh=ssh)
    return replace(spec, **others)


def clients(bastion: Sshd) -> dict[int, str]:
    """The ssh processes connected to a bastion, each with its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("ssh") and ("-p", str(bastion.port)) in itertools.pairwise(words):
            found[int(folder.name)] = " ".join(words)
    return found


def reading(server: DatabaseServer, database: str) -> bool:
    """Whether a slice is being read."""
    return bool(
        server.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{database}' "
            "AND info LIKE '/* floodmark: extract%' AND id <> connection_id()"
        )
    )


def large(workspace: Workspace) -> Workspace:
    """Fill a table with rows that take a while to arrive."""
    workspace.execute(ORDERS, fill(80_000, "REPEAT(LEFT(SHA2(seq, 256), 32), 25)"))
    return workspace


def complete(workspace: Workspace) -> bool:
    found = workspace.query("SELECT count(*), count(DISTINCT id), sum(id), sum(length(note)) FROM orders")
    return found == [(80_000, 80_000, 80_000 * 80_001 // 2, 80_000 * 800)]
