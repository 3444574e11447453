"""A server's version, and which features it has."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.source.session import Session


@dataclass(frozen=True)
class Version:
    """The vendor, and the first two numbers; empty if the text has none."""

    mariadb: bool
    numbers: tuple[int, ...]

    @property
    def windows(self) -> bool:
        """Whether it has window functions."""
        return self.numbers >= ((10, 2) if self.mariadb else (8, 0))

    @property
    def generates(self) -> bool:
        """Whether it has generated columns and shows their expressions."""
        return self.numbers >= ((10, 2) if self.mariadb else (5, 7))

    @property
    def shows_locks(self) -> bool:
        """Whether it lists all metadata locks. Before 8.0, foreign keys wrote to other tables without one."""
        return not self.mariadb and self.numbers >= (8, 0)


def parsed(text: str) -> Version:
    """Parses a server's version; MariaDB may prefix it with "5.5.5-" for the sake of old replicas."""
    parts = text.removeprefix("5.5.5-").split("-")[0].split(".")[:2]
    return Version("mariadb" in text.lower(), tuple(int(part) for part in parts if part.isdigit()))


def version(session: Session) -> Version:
    return parsed((session.once("SELECT VERSION()")[0][0] or b"").decode(errors="replace"))
