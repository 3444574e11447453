"""What a server's version says, and which words the server therefore knows."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.mysql.connect import Session


@dataclass(frozen=True)
class Version:
    """Whose it is, and its first two numbers; none where the text has none."""

    mariadb: bool
    numbers: tuple[int, ...]

    @property
    def windows(self) -> bool:
        """Whether it has window functions."""
        return self.numbers >= ((10, 2) if self.mariadb else (8, 0))

    @property
    def generates(self) -> bool:
        """Whether it has generated columns, and tells their expressions."""
        return self.numbers >= ((10, 2) if self.mariadb else (5, 7))

    @property
    def shows_locks(self) -> bool:
        """Whether it can list all metadata locks. Before 8.0 a foreign key's other table was written to without one."""
        return not self.mariadb and self.numbers >= (8, 0)


def parsed(text: str) -> Version:
    """The version that a server tells, before which older replicas of MariaDB's put "5.5.5-"."""
    parts = text.removeprefix("5.5.5-").split("-")[0].split(".")[:2]
    return Version("mariadb" in text.lower(), tuple(int(part) for part in parts if part.isdigit()))


def version(session: Session) -> Version:
    return parsed((session.rows("SELECT VERSION()")[0][0] or b"").decode(errors="replace"))
