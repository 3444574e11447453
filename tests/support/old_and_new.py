"""The oldest and the newest servers that the tests know, from `scripts/fetch-server`.

Their install programs are scripts that know neither our folders nor the bundled loader, so the server itself runs the
SQL that such a script would feed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floodmark.setup.services.databases import (
    DatabaseServer,
    MariaDB,
    as_root,
    initialize,
    there,
    under_its_loader,
)


class NewMariaDB(MariaDB):
    """The MariaDB of Debian sid, run by its own dynamic loader."""

    name = "mariadb-new"

    def __init__(self, **options: Any) -> None:
        self._root = there("mariadb-new")
        DatabaseServer.__init__(self, **options)

    def _create(self) -> None:
        scripts = ("system_tables", "performance_tables", "system_tables_data")
        share = self._root / "usr/share/mariadb"
        texts = [_script(share / f"mariadb_{name}.sql") for name in scripts]
        (self.folder / "data").mkdir()
        first = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        initialize([*self._command(), *_bootstrap(self.folder)], first + "".join(texts))

    def _command(self) -> list[str]:
        share = self._root / "usr/share/mariadb"
        return [
            *under_its_loader(self._root, "sbin/mariadbd"),
            "--no-defaults",
            f"--basedir={self._root}/usr",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share}/charsets",
            "--performance-schema=OFF",
            "--innodb-log-file-size=64M",
        ]


class OldMySQL(DatabaseServer):
    """MySQL 5.6, from npm's registry."""

    name = "mysql-5.6"

    def __init__(self, **options: Any) -> None:
        self._root = there("mysql-5.6") / "package/server"
        self.env = {"LD_LIBRARY_PATH": str(self._root)}  # libaio is next to it
        super().__init__(**options)

    def _create(self) -> None:
        texts = [_script(self._root / f"share/mysql_system_{name}.sql") for name in ("tables", "tables_data")]
        (self.folder / "data" / "mysql").mkdir(parents=True)
        script = "USE mysql;\n" + "".join(texts)
        initialize([*self._command(), *_bootstrap(self.folder)], script, self.env)

    def _command(self) -> list[str]:
        return [
            str(self._root / "mysqld"),
            "--no-defaults",
            f"--basedir={self._root}",
            f"--lc-messages-dir={self._root}/share",
            f"--character-sets-dir={self._root}/share/charsets",
            "--innodb-log-file-size=16M",
        ]

    def secure(self) -> None:
        """The same, in 5.6's syntax."""
        self._as_first_root(
            "DELETE FROM mysql.user WHERE User = '' OR Host <> 'localhost'; FLUSH PRIVILEGES; "
            f"GRANT ALL PRIVILEGES ON *.* TO root@'%' IDENTIFIED BY '{self.password}' WITH GRANT OPTION; "
            "DROP USER root@localhost"
        )

    def create_user(self, user: str, password: str, *grants: str) -> None:
        """Create a user with the given grants, in 5.6's syntax."""
        self.execute(*(f"GRANT {grant} TO `{user}`@'%' IDENTIFIED BY '{password}'" for grant in grants))


def _bootstrap(folder: Path) -> list[str]:
    return [
        "--bootstrap",
        *as_root(),
        f"--datadir={folder / 'data'}",
        f"--tmpdir={folder}",
        "--innodb-flush-method=nosync",
    ]


def _script(file: Path) -> str:
    return file.read_text(errors="replace") + "\n"
