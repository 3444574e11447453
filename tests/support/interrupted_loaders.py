"""Redshift loaders during whose load something happens, at a moment that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from floodmark.load.redshift.socket import SocketSession, SocketTransport
from floodmark.load.redshift.steps import Do, Lock, Row, Step
from floodmark.load.redshift.warehouse import Redshift
from tests.support.warehouse_loads import RedshiftPlace


def before_transaction(place: RedshiftPlace, action: Callable[[], object]) -> Redshift:
    """Runs `action` once, after the loader has decided and before its first transaction."""

    class Before(SocketTransport):
        done = False

        def open(self, label: str = "") -> SocketSession:
            session = super().open(label)
            transaction = session.transaction

            def after_it(lock: Lock, steps: Sequence[Step]) -> None:
                if not self.done:
                    self.done = True
                    action()
                transaction(lock, steps)

            session.transaction = after_it  # type: ignore[method-assign]
            return session

    return place.through(Before)


def after_copy(place: RedshiftPlace, sql: str) -> Redshift:
    """Makes COPY do something else, too: another statement follows it in the same transaction."""

    class After(SocketTransport):
        def open(self, label: str = "") -> SocketSession:
            session = super().open(label)
            transaction = session.transaction

            def lying(lock: Lock, steps: Sequence[Step]) -> None:
                said: list[Step] = []
                for step in steps:
                    said.append(step)
                    if isinstance(step, Do) and step.sql.startswith("COPY"):
                        said.append(Do(sql))
                transaction(lock, said)

            session.transaction = lying  # type: ignore[method-assign]
            return session

    return place.through(After)


def before_ledger(place: RedshiftPlace, action: Callable[[], object], *, settling: bool = False) -> Redshift:
    """Runs `action` once, before the loader reads the ledger: the first time, or under the lock (`settling`)."""

    class Before(SocketTransport):
        done = False

        def open(self, label: str = "") -> SocketSession:
            session = super().open(label)
            query = session.query

            def after_it(
                sql: str,
                lock: Lock | None = None,
                *,
                seconds: float | None = None,
                waits: float | None = None,
            ) -> list[Row]:
                if not self.done and '"floodmark_ledger"' in sql and settling == (lock is not None):
                    self.done = True
                    action()
                return query(sql, lock, seconds=seconds, waits=waits)

            session.query = after_it  # type: ignore[method-assign]
            return session

    return place.through(Before)
