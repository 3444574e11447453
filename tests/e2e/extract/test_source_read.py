"""The reader under cuts, stalls and large rows: what is not complete raises, and memory stays bounded."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from floodmark.config.load import SourceSpec, TableOptions, Tls
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.setup.services.databases import MariaDB
from floodmark.source.describe import discover
from floodmark.source.read import Batches
from floodmark.source.session import Session

pytestmark = pytest.mark.source


@pytest.fixture(scope="module")
def mariadb(either_mariadb: MariaDB) -> MariaDB:
    return either_mariadb


@pytest.fixture(
    params=[
        pytest.param("prepared", marks=pytest.mark.long),
        "as text",
        "prepared, with TLS",
        pytest.param("as text, with TLS", marks=pytest.mark.long),
    ]
)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(database: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> SourceSpec:
    if "as text" in way:
        monkeypatch.setattr("floodmark.source.rows.decoder.layout", lambda definitions, wanted: None)
    server, mode = database.server, Tls("required" if "TLS" in way else "disabled")
    return SourceSpec(server.host, server.port, server.user, server.password, database.name, mode)


def described(spec: SourceSpec, name: str = "t", **options: Any) -> Table:
    with Session(spec) as session:
        return discover(session, name, TableOptions(**options), spec.database)


def reading(session: Session, table: Table, **more: Any) -> Batches:
    chosen = ", ".join(f.select for f in fields(table))
    return Batches(session, table, f"SELECT {chosen} FROM {table.source.table}", **more)


class Proxy:
    """Forwards one connection after another; lets `left` more bytes of the server through, then cuts or stalls."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.left: int | None = None
        self.passed = 0
        self.stall = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        server.close()

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self.passed += len(data)  # before the client can see them
                cut = self.left is not None and len(data) > self.left
                if self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                client.sendall(data)
                if cut and self.stall:
                    time.sleep(30)
                if cut:
                    break
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def proxy(spec: SourceSpec) -> Iterator[Proxy]:
    with closing(Proxy(spec.host, spec.port)) as made:
        yield made


def test_a_cut_anywhere_in_the_stream_raises(database: Any, spec: SourceSpec, proxy: Proxy) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(50))",
        "INSERT INTO t SELECT seq, repeat('x', seq) FROM seq_1_to_40",
    )
    table = described(spec)
    through = replace(spec, host="127.0.0.1", port=proxy.port)
    with Session(through) as session:
        proxy.passed = 0
        assert sum(b.num_rows for b in reading(session, table)) == 40
        total = proxy.passed
    assert total > 800
    cuts = [*range(0, total, 61), *range(total - 14, total)]
    for left in cuts:
        proxy.left = None
        with Session(through) as session:
            proxy.left = left
            with pytest.raises(TransientError):
                pytest.fail(f"{len(list(reading(session, table)))} batches with {left} of {total} bytes")
    proxy.left = None


def test_a_stalled_server_is_given_up(database: Any, spec: SourceSpec, proxy: Proxy) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_1000")
    table = described(spec)
    with Session(replace(spec, host="127.0.0.1", port=proxy.port), read_timeout=1) as session:
        proxy.stall, proxy.left = True, 500
        started = time.monotonic()
        with pytest.raises(TransientError):
            list(reading(session, table))
        assert time.monotonic() - started < 10


def test_a_killed_reader_raises(database: Any, spec: SourceSpec) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c CHAR(200))",
        "INSERT INTO t SELECT seq, repeat('x', 200) FROM seq_1_to_200000",
    )
    table = described(spec)
    for kill in ("KILL", "KILL QUERY"):
        with Session(spec) as session:
            batches = reading(session, table)
            next(batches)
            database.execute(f"{kill} {session.connection_id}")
            with pytest.raises(TransientError):
                list(batches)


def test_leaving_early_ends_the_connection_at_once(database: Any, spec: SourceSpec) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c CHAR(200))",
        "INSERT INTO t SELECT seq, repeat('x', 200) FROM seq_1_to_200000",
    )
    table = described(spec)
    with Session(spec) as session:
        number = session.connection_id
        batches = reading(session, table)
        next(batches)
        assert not gc.isenabled()
        started = time.monotonic()
        batches.close()
        assert time.monotonic() - started < 1
        assert gc.isenabled()
        with pytest.raises(FloodmarkError):
            session.rows("SELECT 1")
    deadline = time.monotonic() + 10
    while database.execute(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_batches_have_the_requested_size_and_lose_no_row(database: Any, spec: SourceSpec) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_20000")
    table = described(spec)
    with Session(spec) as session:
        for rows in (1024, 8192):
            batches = reading(session, table, rows=rows)
            sizes: list[int] = []
            ids: list[Any] = []
            for batch in batches:
                sizes.append(batch.num_rows)
                ids += batch["id"].to_pylist()
            assert sizes[0] == rows and sorted(ids) == list(range(1, 20001))
            assert (batches.rows, batches.changes.total()) == (20000, 0)
    assert gc.isenabled()


def test_an_empty_result_gives_no_batch(database: Any, spec: SourceSpec) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with Session(spec) as session:
        assert list(reading(session, described(spec))) == []


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_large_rows_are_held_a_few_at_a_time(database: Any, spec: SourceSpec) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c LONGTEXT, j JSON)",
        "INSERT INTO t SELECT seq, 'small', '{}' FROM seq_1_to_3000",
        *(
            f"INSERT INTO t SELECT {i} + seq, repeat('x', 2000000), '[1]' FROM seq_1_to_20"
            for i in range(5000, 5100, 20)
        ),
    )
    table = described(spec)
    with Session(spec) as session:
        before, most, rows = resident(), 0, 0
        for batch in reading(session, table):
            rows += batch.num_rows
            most = max(most, resident() - before)
            assert batch.nbytes < 100 << 20
        assert rows == 3100
    assert most < 150 << 20, f"{most >> 20} MB for a result of 200 MB"
    pa.default_memory_pool().release_unused()


def test_a_value_that_the_server_lost_is_an_error(database: Any, spec: SourceSpec) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c LONGTEXT)", "INSERT INTO t VALUES (1, repeat('x', 1500000))"
    )
    table = described(spec)
    computed = "SELECT `id`, CONCAT(`c`, '') FROM t"  # as the text of Oracle's JSON has to be
    with Session(spec) as session:
        assert [b["c"].null_count for b in Batches(session, table, computed)] == [0]
    (packet,) = database.execute("SELECT @@global.max_allowed_packet")[0]
    database.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with (
            Session(spec) as session,
            pytest.raises(DataError, match="max_allowed_packet") as error,
        ):
            list(Batches(session, table, computed))
        assert error.value.table == table.name
        with Session(spec) as session:
            assert [b["c"].null_count for b in reading(session, table)] == [
                0
            ]  # a plain column is no expression
    finally:
        database.execute(f"SET GLOBAL max_allowed_packet = {packet}")


def test_warnings_from_the_users_condition_are_not_errors(database: Any, spec: SourceSpec) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(9))", "INSERT INTO t VALUES (1, '1x'), (2, 'y')"
    )
    table = described(spec)
    with Session(spec) as session:
        batches = Batches(session, table, "SELECT `id`, `c` FROM t WHERE c = 1")
        assert [b.num_rows for b in batches] == [1]
        assert session.rows("SELECT 1 + 1") == [(b"2",)]


def test_a_refused_query_raises_the_servers_message_before_and_after_the_first_rows(
    database: Any, spec: SourceSpec
) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_20000")
    table = described(spec)
    with Session(spec) as session:
        with pytest.raises(ConfigError, match=r"Table '.*nowhere' doesn't exist \(1146\)"):
            list(Batches(session, table, "SELECT id FROM nowhere"))
        with pytest.raises(ConfigError, match=r"Unknown column 'c' in .* \(1054\)"):
            list(Batches(session, table, "SELECT c FROM t"))
        assert sum(b.num_rows for b in reading(session, table)) == 20000
    with Session(spec) as session:  # after the first rows
        late = "SELECT IF(id < 15000, id, (SELECT 1 UNION SELECT id)) FROM t"
        with pytest.raises(ConfigError, match=r"Subquery returns more than 1 row \(1242\)"):
            list(Batches(session, table, late))
        with pytest.raises(FloodmarkError):
            session.rows("SELECT 1")


def test_rows_of_several_packets_arrive_whole(database: Any, spec: SourceSpec) -> None:
    sizes = [2**24 - 8, 2**24, 5 << 20, 255, 0]
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a LONGTEXT, b INT)",
        *(f"INSERT INTO t SELECT {i}, repeat('x', {size}), {size}" for i, size in enumerate(sizes)),
    )
    table = described(spec)
    with Session(spec) as session:
        found = [
            (len(a or ""), set(a or "") <= {"x"}, b)
            for batch in reading(session, table)
            for a, b in zip(batch["a"].to_pylist(), batch["b"].to_pylist(), strict=True)
        ]
        assert found == [(size, True, size) for size in sizes]
        assert session.rows("SELECT 1") == [(b"1",)]
    pa.default_memory_pool().release_unused()


def test_the_session_is_read_only_and_names_itself(database: Any, spec: SourceSpec) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with Session(spec, purpose="slice */ 3") as session:
        with pytest.raises(FloodmarkError, match="READ ONLY"):
            session.rows("INSERT INTO t VALUES (1)")
        shown = session.rows("SELECT INFO FROM information_schema.processlist WHERE ID = CONNECTION_ID()")
        assert (shown[0][0] or b"").startswith(b"/* floodmark: slice * / 3 */")
        assert session.rows(
            "SELECT @@time_zone, @@sql_mode, @@character_set_results, @@net_write_timeout"
        ) == [(b"+00:00", b"", b"utf8mb4", b"3600")]


def test_connection_failures_are_distinguished(database: Any, spec: SourceSpec) -> None:
    with pytest.raises(ConfigError, match="Access denied") as error:
        Session(replace(spec, password="wrong-one"))
    assert "wrong-one" not in error.value.message
    with pytest.raises(ConfigError, match="Unknown database"):
        Session(replace(spec, database="not_there"))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        for port in (1, silent.getsockname()[1]):
            started = time.monotonic()
            with pytest.raises(TransientError):
                Session(replace(spec, host="127.0.0.1", port=port))
            assert time.monotonic() - started < 8
