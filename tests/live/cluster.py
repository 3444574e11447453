"""A real Redshift in the place of the tests' stand-in: what a test may do there, and the removal of all it made.

Every schema's name and every file's path begins with the run's random name, so nothing else is touched. A test that
needs what only the stand-in can do (faults, users, a look behind the scenes) is skipped, with that as the reason.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from floodmark.config.load import Config, StoreSpec, WarehouseSpec
from floodmark.load.redshift.data_api import DataApiTransport
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.steps import Limits, RedshiftSession, StatementFailed
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.store.store import Store

SECONDS = 600.0  # that any statement may take


class Cluster:
    """The cluster as tests see it: the part of `RedshiftStandIn` and `SeaweedFS` that a real one has, too."""

    standin = False
    limits = Limits(connect=30, question=SECONDS, lock=60, statement=SECONDS, grace=15, attempts=3, pause=0.2)

    def __init__(self, config: Config, rows: int, second: tuple[str, str] | None = None) -> None:
        self.name = f"floodmark_live_{secrets.token_hex(6)}"
        self.rows = rows  # of the timed load
        self.faults = NoFaults()
        self._spec = config.warehouse
        self._second = second
        prefix = f"{config.store.url.rstrip('/')}/live/{self.name.rpartition('_')[2]}"
        self._store = replace(config.store, url=prefix, copies_to=())
        self.files = Store(self._store)

    @property
    def role(self) -> str:
        return self._spec.iam_role or "default"

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"needs `{name}`, which only the stand-in has")

    def new_schema(self) -> str:
        return f"{self.name}_{secrets.token_hex(3)}"

    def store(self, prefix: str) -> dict[str, Any]:
        """The settings of a store below the run's prefix."""
        spec = self._store
        return {**_settings(spec), "url": f"{spec.url}/{prefix}"}

    def warehouse_spec(self, schema: str, **more: Any) -> WarehouseSpec:
        return replace(self._spec, schema=schema, **more)

    def connection(self, **more: Any) -> Any:
        """A connection of the driver, past our own sessions."""
        connection = SocketTransport(replace(self._spec, **more), self.limits)._connected()
        connection.cursor().execute(f"SET statement_timeout TO {int(SECONDS * 1000)}")
        return connection

    def second_user(self, schema: str) -> dict[str, Any]:
        """The log-in of a user without any right in our schemas."""
        if self._second is None:
            pytest.skip("there is no second user: SECOND=redshift://other:${PASSWORD}@host:5439/dev")
        return {"user": self._second[0], "password": self._second[1], "iam": None}

    def data_api(self, connect: Callable[[], Any]) -> Any:
        """The Data API's own client; tests can't break it."""
        if self._spec.iam is None:
            pytest.skip("warehouse.iam is not set, so the Data API is not tested")
        return UnbreakableClient(DataApiTransport(self._spec, self.limits)._connected())

    def resume(self) -> None:
        """Nothing was paused."""

    # Begin and end ------------------------------------------------------------------------------------------

    def _opened(self) -> RedshiftSession:
        return SocketTransport(self._spec, self.limits).open("floodmark redshift-live")

    def begin(self) -> str:
        """Check that we can work here at all; returns our name there. Raises one of our errors."""
        if self._spec.kind != "redshift":
            raise ConfigError(
                "the warehouse is DuckDB", hint="set warehouse.url to redshift://user@host:5439/dev"
            )
        try:
            session = self._opened()
            try:
                session.execute(f"CREATE SCHEMA {self.name}")
                return str(session.query("SELECT current_user")[0][0]).strip()
            finally:
                session.close()
        except StatementFailed as failed:
            raise failed.error from failed

    def remove(self) -> list[str]:
        """Remove all schemas and files of the run; returns what is left, as a statement to run or an address."""
        left = []
        try:
            self._drop()
        except (StatementFailed, FloodmarkError) as error:
            left.append(f'DROP SCHEMA "{self.name}…" CASCADE;  -- {error}')
        try:
            self.files.delete([item.path for item in self.files.list("")])
        except FloodmarkError as error:
            left.append(f"{self._store.url}  -- {error.message}")
        return left

    def _drop(self) -> None:
        """Drop every schema of ours, after ending the dead sessions of tests that hold a lock in one."""
        ours = f"SUBSTRING(n.nspname, 1, {len(self.name)}) = '{self.name}'"
        for attempt in (2, 1, 0):
            session = self._opened()
            try:
                holders = session.query(
                    "SELECT DISTINCT t.pid FROM svv_transactions AS t WHERE t.pid <> pg_backend_pid() AND t.relation IN "
                    "(SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
                    f"ON n.oid = c.relnamespace WHERE {ours})"
                )
                for (pid,) in holders:
                    session.query(f"SELECT pg_terminate_backend({int(pid)})")
                for (name,) in session.query(
                    f"SELECT n.nspname FROM pg_catalog.pg_namespace AS n WHERE {ours}"
                ):
                    session.execute(f'DROP SCHEMA "{str(name).strip()}" CASCADE', seconds=60)
                return
            except StatementFailed:
                if not attempt:
                    raise
                time.sleep(1.0)
            finally:
                session.close()


class NoFaults:
    """In place of the stand-in's faults: there are none to clear, and a test that arms one is skipped."""

    def clear(self) -> None:
        """Nothing is armed."""

    @property
    def statements(self) -> Unrecorded:
        return Unrecorded()

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"arms a fault ({name}), which only the stand-in can")


class Unrecorded:
    """The statements that arrived, which only the stand-in records."""

    def clear(self) -> None:
        """Nothing is recorded."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip("reads the statements that arrived, which only the stand-in records")

    def __iter__(self) -> NoReturn:
        self.read()


class UnbreakableClient:
    """A client of AWS in the place of the tests' stub: a test that sets or reads one of the stub's switches is skipped."""

    def __init__(self, client: Any) -> None:
        self.__dict__["_client"] = client

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._client, name):
            return getattr(self._client, name)
        pytest.skip(f"reads {name}, which only the stub of the Data API has")

    def __setattr__(self, name: str, value: object) -> None:
        pytest.skip(f"sets {name}, which only the stub of the Data API has")


def _settings(spec: StoreSpec) -> dict[str, Any]:
    return {
        name: getattr(spec, name) for name in ("endpoint", "region", "access_key_id", "secret_access_key")
    }


# Where fixtures find the cluster, if the tests run on one.
CLUSTER = pytest.StashKey[Cluster]()
