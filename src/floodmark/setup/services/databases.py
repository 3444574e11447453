"""Private, throw-away database servers as sources: MariaDB, and Oracle's MySQL from `scripts/fetch-server`.

Each starts in a few seconds on a free port of 127.0.0.1, in its own folder, as the current user, and leaves alone
any server or configuration that the machine already has. See `process.ServerProcess` for how they end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
from pymysql.constants import CLIENT

from floodmark.host.process import child_environment
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services import reaper
from floodmark.setup.services.process import HOST, ServerProcess, binary, free_ports

_SETUP = "run `make setup`, or install Debian's packages mariadb-server-core and mariadb-client"
_SEQUENCE = re.compile(r"\bseq_(\d+)_to_(\d+)(?:_step_(\d+))?\b")
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/mysql/private")
# Throw-away data: it has to survive a kill of the server, not a power loss.
_OPTIONS = """
    --skip-name-resolve --skip-log-bin --max-connections=200 --max-allowed-packet=64M --character-set-server=utf8mb4
    --innodb-flush-log-at-trx-commit=2 --innodb-flush-method=nosync --innodb-doublewrite=OFF
    --innodb-buffer-pool-dump-at-shutdown=OFF --innodb-buffer-pool-load-at-startup=OFF
"""
Row = tuple[Any, ...]


def clocks_go_back(moment: datetime) -> str:
    """A `system_time_zone` that is an hour ahead of UTC until `moment` (in UTC), and UTC from then on."""
    wall = moment + timedelta(hours=1)
    return f"AAA0BBB-1,0/0,{wall.timetuple().tm_yday - 1}/{wall:%H:%M:%S}"


def fetched(name: str) -> Path:
    """Where `scripts/fetch-server` puts a server."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "floodmark" / "servers" / name


def missing(name: str) -> str | None:
    """Why a fetched server is missing; None if it is there."""
    place = fetched(name)
    if place.is_dir():
        return None
    why = place.with_name(f"{name}.missing")
    never = f"{name} was never fetched: run `scripts/fetch-server {name}`"
    return why.read_text().strip() if why.is_file() else never


def there(name: str) -> Path:
    """The folder of a fetched server; ConfigError if it was not fetched."""
    reason = missing(name)
    if reason:
        raise ConfigError(reason, hint="the tests that need it are skipped")
    return fetched(name)


class DatabaseServer(ServerProcess):
    """A server that speaks MySQL's protocol. `root` has a password and every privilege, over TCP."""

    name = "database"
    user = "root"
    password = "root-secret"
    env: Mapping[str, str] = {}
    drop_others = ""  # the statements that leave only `root@'%'` of the users

    def __init__(
        self,
        *,
        system_time_zone: str | None = None,
        default_time_zone: str | None = None,
        args: Sequence[str] = (),
        buffer_pool: str = "256M",
    ) -> None:
        """`system_time_zone` is the server's TZ variable: a zone's name or a POSIX rule such as `AAA5BBB,…`."""
        super().__init__()
        self.system_time_zone = system_time_zone
        self.default_time_zone = default_time_zone
        self.args = list(args)
        self.buffer_pool = buffer_pool
        self.host = HOST
        self.port = free_ports(1)[0]
        self.socket = self.folder / "s"

    def start(self) -> None:
        """Start the server; the first time, create its data first."""
        fresh = not (self.folder / "data").exists()
        if fresh:
            self._create()
        # The server knows a zone by name only once the zone's rules are in a table; offsets always work.
        named = self.default_time_zone is not None and "/" in self.default_time_zone
        self._run(zone=None if fresh and named else self.default_time_zone)
        if fresh:
            self.secure()
            if named and self.default_time_zone is not None:
                self.load_time_zone(self.default_time_zone)
                self.restart()

    def _create(self) -> None:
        """Create the data folder."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """The program and the options that this kind of server needs."""
        raise NotImplementedError

    def secure(self) -> None:
        """Give root its password, for connections over TCP and the socket alike, and drop every other user."""
        self._as_first_root(
            f"CREATE USER root@'%' IDENTIFIED BY '{self.password}'; "
            f"GRANT ALL PRIVILEGES ON *.* TO root@'%' WITH GRANT OPTION; {self.drop_others}"
        )

    def _run(self, zone: str | None) -> None:
        command = [
            *self._command(),
            *as_root(),
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'server.pid'}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--innodb-buffer-pool-size={self.buffer_pool}",
            *_OPTIONS.split(),
            *([f"--default-time-zone={zone}"] if zone else []),
            *self.args,
        ]
        zones = {"TZ": self.system_time_zone} if self.system_time_zone else {}
        self.launch(command, self._answers, 60, {**self.env, **zones})

    def _answers(self) -> bool:
        """Whether a client gets as far as the server's login, with the right password or not."""
        try:
            pymysql.connect(unix_socket=str(self.socket), user=self.user, password=self.password).close()
        except pymysql.OperationalError as error:
            return error.args[0] not in (2002, 2003, 2006, 2013)
        return True

    def _as_first_root(self, script: str) -> None:
        link = pymysql.connect(unix_socket=str(self.socket), user="root", client_flag=CLIENT.MULTI_STATEMENTS)
        _run_all(link.cursor(), script)
        link.close()

    def _zone_rules(self, zone: str) -> list[str]:
        """The command that prints a zone's rules as SQL."""
        return [binary(("mariadb-tzinfo-to-sql", "mysql_tzinfo_to_sql"), _SETUP)]

    def load_time_zone(self, *zones: str) -> None:
        """Load zones by name ("Asia/Shanghai") into the server, for CONVERT_TZ and `time_zone`."""
        for zone in zones:
            command = [*self._zone_rules(zone), f"/usr/share/zoneinfo/{zone}", zone]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=child_environment()
            )
            if done.returncode:
                raise ConfigError(
                    f"no time zone {zone} on this machine", hint="install Debian's package tzdata"
                )
            link = self.connect("mysql")
            _run_all(link.cursor(), done.stdout)
            link.commit()
            link.close()

    def connect(self, database: str = "", **options: Any) -> Any:
        """A PyMySQL connection as root, over TCP."""
        login = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        usual = {"database": database or None, "charset": "utf8mb4", "connect_timeout": 10}
        several = {"ssl_disabled": True, "client_flag": CLIENT.MULTI_STATEMENTS}
        return pymysql.connect(**{**login, **usual, **several, **options})

    @property
    def version(self) -> str:
        """Name and major.minor version: `MySQL 9.7`."""
        [(number,)] = self.execute("SELECT VERSION()")
        return f"{type(self).__name__} {'.'.join(number.split('.')[:2])}"

    def spelled(self, statement: str) -> str:
        """A statement in this server's dialect."""
        return statement

    def execute(self, *statements: str, database: str = "") -> list[Row]:
        """Run statements as root in one transaction and commit; returns the rows of the last one."""
        link = self.connect(database)
        try:
            cursor = link.cursor()
            for statement in statements:
                cursor.execute(self.spelled(statement))
            rows = list(cursor.fetchall()) if cursor.description else []
            link.commit()
            return rows
        finally:
            link.close()

    def create_user(self, user: str, password: str, *grants: str) -> None:
        """Create a user with the given grants ("SELECT ON shop.*", "PROCESS ON *.*")."""
        self.execute(
            f"DROP USER IF EXISTS `{user}`@'%'",
            f"CREATE USER `{user}`@'%' IDENTIFIED BY '{password}'",
            *(f"GRANT {grant} TO `{user}`@'%'" for grant in grants),
        )

    def url(self, database: str | None = None, user: str | None = None, password: str | None = None) -> str:
        """The value for `source.url`."""
        who = f"{quote(user or self.user, '')}:{quote(password or self.password, '')}"
        return f"mysql://{who}@{self.host}:{self.port}" + (f"/{quote(database, '')}" if database else "")


class MariaDB(DatabaseServer):
    """The system's MariaDB."""

    name = "mariadb"
    drop_others = (
        "DELETE FROM mysql.global_priv WHERE Host <> '%' AND User NOT IN ('mariadb.sys'); FLUSH PRIVILEGES"
    )

    def __init__(self, **options: Any) -> None:
        self._mariadbd = binary(("mariadbd", "mysqld"), _SETUP)
        self._install = binary(("mariadb-install-db", "mysql_install_db"), _SETUP)
        super().__init__(**options)

    def _create(self) -> None:
        command = [
            self._install,
            "--no-defaults",
            *as_root(),
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # at startup a server deletes other servers' tables from its tmpdir
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-flush-method=nosync",
            "--innodb-log-file-size=16M",
        ]
        initialize(command)

    def _command(self) -> list[str]:
        return [self._mariadbd, "--no-defaults", "--performance-schema=OFF", "--innodb-log-file-size=256M"]


class MySQL(DatabaseServer):
    """Oracle's MySQL from `scripts/fetch-server mysql`, run by the dynamic loader that came with it.

    Each server starts from a copy of a template. `initialized` are options that must be set when the data is created;
    with any, the template is not used.
    """

    name = "mysql"
    drop_others = "DROP USER root@localhost"

    def __init__(self, *, initialized: Sequence[str] = (), **options: Any) -> None:
        self._root = there("mysql")
        self.initialized = list(initialized)
        super().__init__(**options)

    def _mysqld(self) -> list[str]:
        usr = self._root / "usr"
        return [
            *under_its_loader(self._root, "sbin/mysqld"),
            "--no-defaults",
            f"--basedir={usr}",
            f"--lc-messages-dir={usr}/share/mysql",
            f"--character-sets-dir={usr}/share/mysql/charsets",
            f"--plugin-dir={usr}/lib/mysql/plugin",
            *self.initialized,
        ]

    def _create(self) -> None:
        if not self.initialized:
            template = self._root / "template"
            if not template.exists():
                make_template(template)
            shutil.copytree(template, self.folder / "data")
            return
        fresh = ["--initialize-insecure", "--innodb-redo-log-capacity=16M", "--innodb-flush-method=nosync"]
        initialize([*self._mysqld(), *as_root(), f"--datadir={self.folder / 'data'}", *fresh])

    def _command(self) -> list[str]:
        return [*self._mysqld(), "--secure-file-priv=NULL", "--mysqlx=OFF", "--innodb-redo-log-capacity=64M"]

    def secure(self) -> None:
        """The same, unless the data comes from a template, which was secured already."""
        if self.initialized:
            super().secure()

    def _zone_rules(self, zone: str) -> list[str]:
        return under_its_loader(self._root, "bin/mysql_tzinfo_to_sql")

    def spelled(self, statement: str) -> str:
        """The same, with MariaDB's sequence tables (`seq_1_to_9`) replaced by what MySQL has."""

        def numbers(found: re.Match[str]) -> str:
            first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
            count = (last - first) // step + 1
            made = f"CONCAT('[', REPEAT('0,', {count - 1}), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)"
            return f"(SELECT {first} + (n - 1) * {step} AS seq FROM JSON_TABLE({made}) AS made) AS {found[0]}"

        return _SEQUENCE.sub(numbers, statement)


SERVERS: dict[str, type[DatabaseServer]] = {"mysql": MySQL, "mariadb": MariaDB}


def chosen(name: str | None = None) -> type[DatabaseServer]:
    """The kind of server with that name; by default MySQL if it was fetched, else MariaDB."""
    return SERVERS[name or ("mariadb" if missing("mysql") else "mysql")]


def make_template(place: Path) -> None:
    """Create the data that MySQL servers start from, including root's password, certificates and keys."""
    first = MySQL(initialized=["--default-time-zone=SYSTEM"])  # an option, so not from a template
    try:
        first.start()
        first.stop()
        (first.folder / "data" / "auto.cnf").unlink()  # the server's identity
        beside = Path(tempfile.mkdtemp(prefix=".template-", dir=place.parent))
        shutil.copytree(first.folder / "data", beside / "data")
        try:
            (beside / "data").rename(place)
        except OSError:
            if not place.exists():  # otherwise another process was first
                raise
        shutil.rmtree(beside, ignore_errors=True)
    finally:
        first.remove()


def under_its_loader(root: Path, path: str) -> list[str]:
    """The command line of a fetched program (a path below `usr`), with the libraries that came with it."""
    loader = next(root.glob("**/ld-linux-x86-64.so.2"))
    libraries = ":".join(str(root / folder) for folder in _LIBRARIES)
    return [str(loader), "--library-path", libraries, str(root / "usr" / path)]


def initialize(
    command: Sequence[str], script: str | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run the command that creates a server's data, with the script as its input."""
    done = subprocess.run(
        list(command), input=script, capture_output=True, text=True, check=False, preexec_fn=reaper.die_with_parent,
        env=child_environment(env),
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise TransientError(f"a server's data can't be created ({Path(command[0]).name}): {said}")


def as_root() -> list[str]:
    """The option that a server insists on when root runs it."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _run_all(cursor: Any, script: str) -> None:
    cursor.execute(script)
    while cursor.nextset() is not None:
        pass
