"""The private PostgreSQL 15 under the stand-in: its cluster, its settings, its catalog of Redshift's names.

It listens only on a socket in its own folder, so that nothing but the stand-in talks to it. `catalog.sql` goes
into template1, so every database has it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from importlib import resources
from pathlib import Path

from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services import reaper
from floodmark.setup.services.process import ServerProcess
from tests.support.redshift.backend import OWNER, Backend
from tests.support.redshift.wire import Gone, SqlError

_HINT = "run `make setup`, or install Debian's package postgresql"
_PLACES = Path("/usr/lib/postgresql")  # one folder per major version
MASTER, PASSWORD, DATABASE = "awsuser", "Aws-secret-1", "dev"

# Who may log in: the owner (the stand-in) without a password, everybody else with one. The driver lacks SCRAM.
_ACCESS = f"local all {OWNER} trust\nlocal all all md5\n"


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs, which Debian keeps off the PATH."""
    versions = sorted(
        _PLACES.glob("*/bin"), key=lambda folder: (folder.parent.name != "15", folder.parent.name)
    )
    found = shutil.which(name, path=os.pathsep.join((*map(str, versions), os.environ.get("PATH", ""))))
    if not found:
        raise ConfigError(f"PostgreSQL's {name} is not installed", hint=_HINT)
    return found


class Postgres(ServerProcess):
    """One PostgreSQL cluster. It refuses to run as root, so root starts it as `postgres` or `nobody`."""

    name = "redshift"

    def __init__(self, *, isolation: str) -> None:
        self._postgres, self._initdb = program("postgres"), program("initdb")
        super().__init__()
        self.isolation = isolation
        self._as: list[str] = []
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            # Changing the user clears the parent-death signal, so set it again.
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
                        "--pdeathsig=KILL", "--"]  # fmt: skip

    def start(self) -> None:
        """Start the server; the first time, create its data first."""
        fresh = not (self.folder / "data").exists()
        if fresh:
            self._create()
        command = [*self._as, self._postgres, "-D", str(self.folder / "data"), "-k", str(self.folder)]
        settings = {
            "listen_addresses": "",
            "default_transaction_isolation": self.isolation,
            "standard_conforming_strings": "off",
            "escape_string_warning": "off",
            "password_encryption": "md5",
            "allow_system_table_mods": "on",
            "max_connections": "200",
            "timezone": "UTC",
            "datestyle": "ISO, MDY",
            "lc_messages": "C",
            "jit": "off",
            "deadlock_timeout": "200ms",
            "shared_buffers": "128MB",
            # Throw-away data: it has to survive a kill of the server, not a power loss.
            "fsync": "off",
            "full_page_writes": "off",
            "max_wal_size": "2GB",
            "dynamic_shared_memory_type": "mmap",  # in its own folder, where a kill leaves nothing behind
        }
        for setting, value in settings.items():
            command += ["-c", f"{setting}={value}"]
        self.launch(command, self._answers, 60)
        if fresh:
            self._furnish()

    def _create(self) -> None:
        done = subprocess.run(
            [*self._as, self._initdb, "-D", str(self.folder / "data"), "-U", OWNER, "-E", "UTF8",
             "--locale=C", "--no-sync", "--auth=trust"],
            capture_output=True, text=True, check=False, cwd="/", preexec_fn=reaper.die_with_parent,
        )  # fmt: skip
        if done.returncode:
            raise TransientError(f"initdb failed: {(done.stderr or done.stdout).strip()[-300:]}")
        (self.folder / "data" / "pg_hba.conf").write_text(_ACCESS)

    def _answers(self) -> bool:
        try:
            Backend.own(self.folder, "template1").close()
        except (OSError, Gone, SqlError):
            return False
        return True

    def _furnish(self) -> None:
        catalog = resources.files("tests.support.redshift").joinpath("catalog.sql").read_text()
        self.run("template1", "SET standard_conforming_strings = on", catalog)
        self.run("template1", f"CREATE ROLE {MASTER} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        self.run("template1", f"CREATE DATABASE {DATABASE} OWNER {MASTER}")

    def run(self, database: str, *statements: str) -> None:
        """Run statements as the owner, each in its own transaction."""
        backend = Backend.own(self.folder, database)
        try:
            for statement in statements:
                backend.query(statement)
        finally:
            backend.close()

    def _end(self, number: signal.Signals) -> None:
        """Let the server shut down by itself: a killed one leaves a shared-memory segment behind."""
        keeper = self._keeper
        if keeper is None:
            return
        self._signal(number)
        try:
            keeper.wait(self.grace)
        except subprocess.TimeoutExpired:
            super().kill()
        self._keeper = None

    def stop(self) -> None:
        """Shut down cleanly, open sessions or not."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop at once, as in a crash: uncommitted work is lost, and `start` recovers."""
        if (self.folder / "pid").exists():
            self._end(signal.SIGQUIT)
        else:
            super().kill()


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigError("PostgreSQL does not run as root, and there is no user `postgres`", hint=_HINT)


def literal(value: str) -> str:
    """A value as an SQL string, with backslashes as the stand-in treats them."""
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
