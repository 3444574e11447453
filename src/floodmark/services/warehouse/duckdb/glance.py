"""A glance at the ledger of a DuckDB file that others may want to write: in a process of its own, for 100 ms at most.

Nothing can interrupt DuckDB while it opens a file, and a reader keeps writers out. So the kernel ends the process when
its time is up, whatever it is doing; a reader leaves nothing behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from floodmark.model.errors import TransientError
from floodmark.model.ledger import LoadSum
from floodmark.services.warehouse.protocol import LEDGER, quote

OPEN_SECONDS = 0.1
# For starting Python and importing DuckDB, before the file is touched.
START_SECONDS = 30.0

# Run with only the standard library and DuckDB. The timer starts just before the file is opened.
_CHILD = """
import json, signal, sys
import duckdb
path, question, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
settings = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
duckdb.connect(":memory:", config=settings).execute("SELECT count(*), strftime(max(now()::TIMESTAMP), '%Y')").fetchall()
signal.signal(signal.SIGALRM, signal.SIG_DFL)
print("ready", flush=True)
if not sys.stdin.readline():
    sys.exit(0)
signal.setitimer(signal.ITIMER_REAL, seconds)
try:
    con = duckdb.connect(path, read_only=True, config=settings)
    try:
        found = con.execute(question).fetchall()
    finally:
        con.close()
except duckdb.CatalogException:
    found = []
except duckdb.Error as error:
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.exit(3 if isinstance(error, duckdb.IOException) else 4)
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(found))
"""


def ledger_sums(path: Path, schema: str, free: Callable[[], bool] = lambda: True) -> list[LoadSum]:
    """The ledger's sums; empty when the file has none. TransientError if it can't be had now: nobody waits for it.

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
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=none) as child:
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
        raise TransientError(f"{path} could not be inspected")
    if child.returncode == -signal.SIGALRM:
        raise TransientError(f"{path} could not be read within {seconds * 1000:.0f} ms")
    if child.returncode:
        raise TransientError(f"{path} is in use by another process, or can't be read")
    return [LoadSum(*row) for row in json.loads(found)]
