"""A glance at the ledger of a DuckDB file that others may want to write: without a lock, and for 100 ms at most.

DuckDB locks a file that it opens, for readers too, and a lock keeps writers out. So it gets the file through fsspec, which
takes none: a sync never waits for a glance. What was read counts only if nobody has written in the meantime. A process of
its own does it, which the kernel ends when its time is up, for nothing else can interrupt DuckDB.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from floodmark.host.process import child_environment
from floodmark.load.protocol import LEDGER, quote
from floodmark.model.errors import TransientError
from floodmark.model.ledger import LoadSum

OPEN_SECONDS = 0.1
# For starting Python and importing DuckDB, before the file is touched.
START_SECONDS = 30.0

# Run with only the standard library, DuckDB and fsspec. The timer starts just before the file is opened.
_CHILD = """
import contextlib, json, os, signal, sys, tempfile, time
import duckdb
from fsspec.implementations.local import LocalFileSystem
class Unlocked(LocalFileSystem):
    protocol = "unlocked"
    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("unlocked://"))
path, question, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
settings = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
con = duckdb.connect(":memory:", config=settings)
con.register_filesystem(Unlocked())
def look(file):
    con.execute("ATTACH 'unlocked://" + file.replace("'", "''") + "' AS warehouse (READ_ONLY)")
    con.execute("USE warehouse")
    found = con.execute(question).fetchall()
    con.execute("USE memory")
    con.execute("DETACH warehouse")
    return found
# The same with a file of our own first: the second time takes half as long.
with contextlib.suppress(duckdb.Error, OSError), tempfile.TemporaryDirectory() as folder:
    con.execute("ATTACH '" + folder.replace("'", "''") + "/first.duckdb' AS first")
    con.execute(
        "CREATE TABLE first.floodmark_ledger AS SELECT '' AS log_id, 0 AS epoch, 1 AS rows, 1 AS files, now()::TIMESTAMP AS loaded_at"
    )
    con.execute("DETACH first")
    look(folder + "/first.duckdb")
con.execute("USE memory")
con.execute("DETACH DATABASE IF EXISTS warehouse")
def written():
    found = []
    for one in (path, path + ".wal"):
        try:
            known = os.stat(one)
            found.append((known.st_ino, known.st_size, known.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found
def fresh():  # within a tick of the clock, a further write would not show in the file's time
    return any(one and 0 <= time.time_ns() - one[2] < 1_000_000_000 for one in written())
for _ in range(20):
    if not fresh():
        break
    time.sleep(0.1)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
print("ready", flush=True)
if not sys.stdin.readline():
    sys.exit(0)
signal.setitimer(signal.ITIMER_REAL, seconds)
before = written()
if fresh():
    sys.exit(5)
try:
    found = look(path)
except duckdb.CatalogException:
    found = []
except duckdb.Error:
    sys.exit(4 if written() == before else 5)
signal.setitimer(signal.ITIMER_REAL, 0)
if written() != before:
    sys.exit(5)
print(json.dumps(found))
"""


def ledger_sums(path: Path, schema: str, free: Callable[[], bool] = lambda: True) -> list[LoadSum]:
    """The ledger's sums; empty when the file has none. TransientError if it can't be read now: it never waits.

    `free` is called when all is ready, and only if it says so is the file opened.
    """
    if not path.exists():  # perhaps on another machine, where the syncs run
        raise TransientError(f"there is no file {path} here")
    seconds = OPEN_SECONDS
    question = (
        "SELECT log_id, epoch, count(*), sum(rows)::BIGINT, sum(files)::BIGINT, "
        f"strftime(max(loaded_at), '%Y-%m-%dT%H:%M:%S.%fZ') FROM {quote(schema, LEDGER)} GROUP BY 1, 2"
    )
    command = [sys.executable, "-c", _CHILD, str(path), question, str(seconds)]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, text=True, stdin=pipe, stdout=pipe, stderr=none, env=child_environment()
    ) as child:
        watchdog = threading.Timer(START_SECONDS, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            started = child.stdout.readline() == "ready\n"
            if started and not free():
                raise TransientError("a run is active and may need the file")
            found, _ = child.communicate("go\n" if started else None)
        finally:
            watchdog.cancel()
            child.kill()
    if not started:
        raise TransientError(f"{path} could not be inspected: DuckDB or fsspec did not start")
    if child.returncode:
        said = {-signal.SIGALRM: f"could not be read within {seconds * 1000:.0f} ms", 5: "is being written"}
        why = said.get(child.returncode, "can't be read, or is not a DuckDB file")
        raise TransientError(f"{path} {why}")
    return [LoadSum(*row) for row in json.loads(found)]
