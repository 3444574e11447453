"""The parent of Spark's Python workers on this machine: pyspark's daemon, with imports done before it forks.

Imports take half a second. So this process starts while Spark does, and has finished them when the JVM starts
its daemon (`python -m floodmark.spark.worker_daemon`). That one only hands over its pipes and its
environment, and stays as long as they are in use. If there is no early process to hand over to, it becomes
the daemon itself. Either ends with the JVM, whose end closes its stdin.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from floodmark.host.process import child_environment

MODULE = "floodmark.spark.worker_daemon"
# Where the early process listens; set in the environment of the JVM, and so of the processes it starts.
WHERE = "FLOODMARK_DAEMON"
_EARLY = "--early"
# The module that the JVM names for its workers; we prepare for no other.
_WORKER = "pyspark.worker"


def start_early(where: str) -> subprocess.Popen[bytes] | None:
    """Starts the daemon beside the JVM, listening at this path, until this process ends. If it can't be started, that only costs time."""
    try:
        # Its own process group: pyspark's daemon makes one for itself and its workers, and Ctrl-C is not for
        # them.
        return subprocess.Popen(
            [sys.executable, "-m", MODULE, _EARLY, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=single_threaded(child_environment()),
            process_group=0,
        )
    except OSError:
        return None


def single_threaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which no import starts a thread: none survives a fork, and `_take` allows none."""
    return {
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        **environment,
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills it and its workers, which have nothing to finish once the JVM is gone; safe to call twice."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def main(arguments: list[str]) -> None:
    """Runs as the early process if given a place to listen, else as the one that the JVM has started."""
    if arguments[:1] == [_EARLY]:
        _wait_to_be_asked(arguments[1])
        return
    where = os.environ.pop(WHERE, None)
    if where is None or arguments[:1] not in ([], [_WORKER]) or not _handed_over(where):
        _prepare()
        from pyspark.daemon import manager

        manager()


def _prepare() -> None:
    """Imports what tasks need, and exempts it from pyspark's garbage collection after every task."""
    import gc

    gc.disable()  # imports leave little garbage
    # Threads that exist before a fork don't exist after it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pyspark.daemon
    import pyspark.worker  # noqa: F401

    from floodmark.host.process import spare_pandas
    from floodmark.spark.job import preload

    preload()
    spare_pandas()
    gc.collect()
    gc.freeze()
    gc.enable()


def _wait_to_be_asked(where: str) -> None:
    """Prepares, then becomes the daemon with its caller's pipes and environment; ends with its parent."""
    import select

    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(where)
    server.listen(1)  # a caller that comes during the imports waits
    _prepare()
    ready, _, _ = select.select([server, sys.stdin], [], [])
    if server not in ready:
        return  # its parent has ended, or no longer needs it
    asking, _ = server.accept()
    os.unlink(where)
    server.close()
    _, files, _, _ = socket.recv_fds(asking, 1, 3)
    with asking.makefile("rb") as sent:
        _take(json.loads(sent.read()))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    asking.sendall(b"!")
    os.set_inheritable(asking.fileno(), False)
    from pyspark.daemon import manager

    manager()  # the connection stays open until this process ends


def _take(environment: Mapping[str, str]) -> None:
    """Replaces this process's environment. Needs a single thread: another's getenv may read freed memory."""
    os.environ.clear()
    os.environ.update(environment)


def _handed_over(where: str) -> bool:
    """Whether the early daemon has taken over; returns once it has ended."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(where)
            socket.send_fds(link, [b"!"], [0, 1, 2])
            link.sendall(json.dumps(dict(os.environ)).encode())
            link.shutdown(socket.SHUT_WR)
            if link.recv(1) != b"!":
                return False
            with suppress(OSError):
                link.recv(1)
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
