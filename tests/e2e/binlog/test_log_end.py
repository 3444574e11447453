"""The end of the binary log, under twelve writers: whatever it promises, a SELECT sees; simpler rules miss rows."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from floodmark.config.load import SourceSpec, load
from floodmark.model.changes import LogEnd
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.binlog.end import log_end, log_start, logged_place
from floodmark.source.binlog.gtid import GtidSet
from floodmark.source.session import Session
from tests.conftest import PATIENT, SERVERS
from tests.support import log_writers
from tests.support.log_writers import Look, Read, Rule, Tally, look, writing

# Looks by our rule for each setting; each comes with NAIVE looks by the naive ones.
LOOKS = 2000 if PATIENT else 15
NAIVE = 1 if PATIENT else 10
CHUNK = 200
# Seconds that a commit waits for an answer that doesn't come.
ACK = 0.3


def show(session: Session) -> LogEnd:
    """The place that the server shows: a naive rule."""
    place = logged_place(session)
    assert place is not None
    return LogEnd(place)


@dataclass(frozen=True)
class Case:
    """A server, its settings one after the other, and the rules that must fail on it."""

    kind: str
    args: tuple[str, ...]
    settings: Mapping[str, Sequence[str]]
    naive: Mapping[str, Rule]


_COMMITS = {
    f"order={order} sync={sync}": (
        f"SET GLOBAL binlog_order_commits = {order}",
        f"SET GLOBAL sync_binlog = {sync}",
    )
    for order in ("ON", "OFF")
    for sync in (0, 1)
}
_SYNCS = {f"sync={sync}": (f"SET GLOBAL sync_binlog = {sync}",) for sync in (0, 1)}
_LOG = ("--log-bin=bin", "--max-binlog-size=64M")
_GTIDS = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON")
_NO_GTIDS = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
CASES = {
    "mysql": Case("mysql", (*_LOG, *_GTIDS), _COMMITS, {"show": show}),
    "mysql-no-gtids": Case("mysql", (*_LOG, *_NO_GTIDS), _COMMITS, {"show": show}),
    "mariadb": Case("mariadb", (*_LOG, "--binlog-format=ROW"), _SYNCS, {"show": show, "binlog_pos": log_writers.binlog_pos}),
    "mariadb-each-thread": Case(
        "mariadb", (*_LOG, "--binlog-format=ROW", "--binlog-optimize-thread-scheduling=OFF"), _SYNCS, {"show": show}
    ),
}  # fmt: skip
_SEMI_SYNC = {
    "mysql": ("rpl_semi_sync_source_enabled", "rpl_semi_sync_source_timeout", "rpl_semi_sync_source_wait_no_replica"),
    "mariadb": ("rpl_semi_sync_master_enabled", "rpl_semi_sync_master_timeout", "rpl_semi_sync_master_wait_no_slave"),
}  # fmt: skip


def source(server: DatabaseServer, folder: Path) -> SourceSpec:
    file = folder / "floodmark.yaml"
    file.write_text(f"source: {{url: '{server.url('d')}'}}\n")
    file.chmod(0o600)
    return load(file).source


@contextmanager
def unanswered(server: DatabaseServer) -> Iterator[None]:
    """Commits wait again and again for the answer of a replica that doesn't exist, after they were written to the log."""
    enabled, timeout, none = _SEMI_SYNC[server.name]
    point = timeout.replace("timeout", "wait_point")
    if not server.execute(f"SHOW VARIABLES LIKE '{enabled}'"):
        server.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    server.execute(
        f"SET GLOBAL {timeout} = {int(ACK * 1000)}",
        f"SET GLOBAL {none} = ON",
        f"SET GLOBAL {point} = AFTER_SYNC",
    )
    stop = threading.Event()

    def again() -> None:
        while not stop.wait(2 * ACK):  # a timeout switches it off
            server.execute(f"SET GLOBAL {enabled} = OFF", f"SET GLOBAL {enabled} = ON")

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        server.execute(f"SET GLOBAL {enabled} = OFF")


def tallied(spec: SourceSpec, naive: Mapping[str, Rule], looks: int) -> dict[str, Tally]:
    """Takes ends by our rule and by naive ones, selects after each, and then compares with the log."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    connect = partial(Session, spec)
    with connect() as session, connect() as other:
        begin = log_start(session)
        while tallies["ours"].looks < looks:
            taken: list[Look] = []
            for _ in range(min(CHUNK, looks - tallies["ours"].looks)):
                taken.append(look("ours", log_end, session, other))
                for name, rule in naive.items():
                    taken += [look(name, rule, session, other) for _ in range(NAIVE)]
            last = max((each.end for each in taken), key=lambda end: end.place.number)
            read = Read(connect, begin.place, last.place)
            for each in taken:
                missed = read.missed(each)
                tally = tallies[each.rule]
                tally.looks += 1
                tally.missing += missed > 0
                tally.transactions += missed
            ours = [each for each in taken if each.rule == "ours"]
            if begin.visible is not None:
                tallies["ours"].unaccounted += read.unaccounted(ours, GtidSet.parse(begin.visible))
            begin = log_start(session)
            session.rows(f"PURGE BINARY LOGS TO '{begin.place.file}'")
    return dict(tallies)


@pytest.mark.parametrize("semi_sync", [False, True], ids=["", "semi-sync"])
@pytest.mark.parametrize("case", CASES)
def test_a_select_sees_every_transaction_before_the_end_and_naive_rules_are_caught(
    case: str, semi_sync: bool, tmp_path: Path
) -> None:
    chosen = CASES[case]
    found: dict[str, dict[str, Tally]] = {}
    with SERVERS[chosen.kind](args=chosen.args) as server:
        log_writers.create(server)
        settings = list(chosen.settings.items())
        for setting, statements in settings if PATIENT else settings[1 : 2 if semi_sync else 3]:
            server.execute(*statements)
            with unanswered(server) if semi_sync else nullcontext(), writing(server):
                found[setting] = tallied(source(server, tmp_path), chosen.naive, LOOKS)
            for rule, tally in found[setting].items():
                print(f"{case} {'semi-sync ' * semi_sync}{setting} {rule}: {tally}", flush=True)
    ours = [tallies["ours"] for tallies in found.values()]
    assert not sum(tally.missing + tally.unaccounted for tally in ours), found
    for rule in chosen.naive:
        assert sum(tallies[rule].missing for tallies in found.values()), f"{rule} should have failed: {found}"
