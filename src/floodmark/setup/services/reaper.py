"""Runs one server for a parent, and lets neither it nor its files outlive that parent.

Started as a script: `python reaper.py PARENT FOLDER COMMAND…`. The invariant: once the parent is gone, however it
went (kill -9 included), the server is killed and FOLDER removed within half a second; if this process itself is
killed, the kernel kills the server. Imports the standard library only, to start fast.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
IPC_RMID = 0
SOCKETS = "sockets"  # a file in FOLDER that lists files elsewhere to remove with it
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (a `preexec_fn`)."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def release(notes: Path) -> None:
    """Free the shared-memory segment that a killed PostgreSQL leaves behind, as named in its postmaster.pid."""
    try:
        segment = int(notes.read_text().splitlines()[6].split()[1])
    except (OSError, IndexError, ValueError):
        return
    _libc.shmctl(segment, IPC_RMID, None)


def remove(folder: Path) -> None:
    """Remove a server's folder, and the files elsewhere that it lists."""
    try:
        others = (folder / SOCKETS).read_text().splitlines()
    except OSError:
        others = []
    for other in others:
        Path(other).unlink(missing_ok=True)
    release(folder / "data" / "postmaster.pid")
    shutil.rmtree(folder, ignore_errors=True)


def keep(parent: int, folder: Path, command: list[str]) -> int:
    """Run the command until it or the parent ends; SIGTERM is passed on to it."""
    # Blocked, not handled: a signal that arrives before the server exists is kept until `sigtimedwait` below
    # takes it. The server must not inherit the block.
    watched = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        die_with_parent()

    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, preexec_fn=prepare
        )
    (folder / "pid").write_text(str(server.pid))
    while server.poll() is None:
        # Not PR_SET_PDEATHSIG for this process too: that fires when the *thread* that started it ends.
        if os.getppid() != parent:
            server.kill()
            server.wait()
            remove(folder)
            return 1
        signalled = signal.sigtimedwait(watched, 0.25)
        if signalled is not None and signalled.si_signo == signal.SIGTERM:
            server.terminate()
    return server.returncode


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
