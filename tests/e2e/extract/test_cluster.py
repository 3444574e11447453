"""The same command on a Spark standalone cluster: executors are other processes with folders of their own, from which
the driver's, its packages and its code are hidden where the machine allows it. They get these as an archive, all that
Spark's processes say to each other is encrypted, and one of them dies in mid-slice."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.held_sync import Gate, all_gone, descendants, until
from tests.support.orders import create_orders, fill_orders
from tests.support.spark_cluster import BRIEFLY, SparkCluster, can_hide
from tests.support.sshd import Sshd

ROWS = 800
SLICE = 100

# What the driver's Python has and no executor sees.
PACKAGES = Path(sysconfig.get_path("purelib")).resolve()
CODE = Path(floodmark.__file__).resolve().parent
# What slices need of it, and what of that they don't.
NEEDED = [
    "_yaml",
    "annotated_types",
    "numpy",
    "numpy.libs",
    "obstore",
    "pyarrow",
    "pydantic",
    "pydantic_core",
    "pymysql",
    "typing_extensions.py",
    "typing_inspection",
    "yaml",
]
LEFT_OUT = re.compile(
    r"/(floodmark(/\w+)*/__pycache__|tests|include)$|\.(pxd|pxi|pyx)$|/(_|libarrow_)(flight|s3)[.\w]*$"
)

ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": f"shared-{secrets.token_hex(16)}",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    hidden = [tmp_path_factory.getbasetemp(), Path(sys.prefix).resolve(), CODE.parent]
    with SparkCluster(workers=2, cores=1, memory="512m", hidden=hidden, conf=ENCRYPTED) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this code, packed as docs/cluster.md has it, but for what slices don't need."""
    file = tmp_path_factory.mktemp("shipped") / "environment.tar.gz"
    prefix = Path(sys.prefix)
    there = PACKAGES.relative_to(prefix.resolve())

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if LEFT_OUT.search(member.name) else member

    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        for name in ("pyvenv.cfg", "bin", *(f"bin/{each.name}" for each in prefix.glob("bin/python*"))):
            archive.add(prefix / name, name, recursive=False)
        for name in NEEDED:
            archive.add(PACKAGES / name, str(there / name), filter=kept)
        archive.add(CODE, str(there / "floodmark"), filter=kept)
    return file


@pytest.fixture
def orders(
    s3_workspace: Workspace, cluster: SparkCluster, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    """A table behind a bastion, its key and known hosts in the driver's folder; Python's packages are shipped."""
    monkeypatch.setenv("SPARK_SECRET", ENCRYPTED["spark.authenticate.secret"])
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", BRIEFLY)
    database = s3_workspace.database
    database.execute(create_orders(), fill_orders(ROWS))
    user, password = f"u_{secrets.token_hex(4)}", f"pw-{secrets.token_hex(8)}"
    database.server.create_user(user, password, f"SELECT ON {database.name}.*", "PROCESS ON *.*")
    with Sshd() as bastion:
        for file in (bastion.key, bastion.known_hosts):
            shutil.copy(file, s3_workspace.folder / file.name)
            (s3_workspace.folder / file.name).chmod(0o600)
        s3_workspace.write(
            source={
                "url": database.server.url(database.name, user, password),
                "ssh": {
                    "host": bastion.host, "port": bastion.port, "user": bastion.user,
                    "key": "key", "known_hosts": "known_hosts",
                },
            },
            defaults={"slice_rows": SLICE},
            spark={
                "master": cluster.master.url,
                "conf": {
                    **ENCRYPTED,
                    "spark.authenticate.secret": "${SPARK_SECRET}",
                    "spark.archives": f"{environment}#environment",
                    "spark.pyspark.python": "./environment/bin/python",
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.extraJavaOptions": BRIEFLY,
                    "spark.executor.memory": "512m",
                    "spark.ui.enabled": "true",
                    "spark.ui.port": "0",
                    "spark.eventLog.enabled": "true",
                    "spark.eventLog.compress": "false",  # to be looked into
                    "spark.eventLog.dir": (s3_workspace.folder / "events").as_uri(),
                },
            },
        )  # fmt: skip
        (s3_workspace.folder / "events").mkdir()
        yield s3_workspace


class Watched:
    """A running command, and everything that others could have seen of it."""

    def __init__(self, orders: Workspace, cluster: SparkCluster) -> None:
        self.cluster = cluster
        self.seen: dict[str, str] = {}
        self.process = orders.run.start("sync", "-t", "orders", "--json")

    def look(self) -> None:
        """Takes note of every command line, and of the pages of master, workers and driver."""
        shown = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True).stdout
        self.seen["ps"] = self.seen.get("ps", "") + shown
        for server in (self.cluster.master, *self.cluster.workers):
            self.seen[f"{server.name} {server.port}"] = server.page() + server.page("/json/")

    def until(self, true: Callable[[], Any], seconds: float = 300) -> Any:
        def alive() -> Any:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode}: {self.process.communicate()}")
            return true()

        return until(alive, seconds, pause=0.2)


def driver_pages(master: str) -> str:
    """The pages of the driver's own interface, whose address the master knows."""
    import urllib.request

    address = re.search(r'href="(http://[^"]+)">\s*floodmark', master)
    assert address, master
    pages = ("/environment/", "/jobs/", "/stages/", "/executors/", "/api/v1/applications")
    return "".join(urllib.request.urlopen(address[1] + page, timeout=60).read().decode() for page in pages)


def reading(orders: Workspace) -> int:
    """How many slices are waiting at the gate."""
    ask = "SELECT COUNT(*) FROM information_schema.processlist WHERE INFO LIKE '%floodmark: extract%IS_USED_LOCK%'"
    return int(orders.execute(ask + " AND ID <> CONNECTION_ID()")[0][0])


def libraries(pid: int) -> set[str]:
    """The compiled modules that a process has loaded."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if ".so" in line}


def test_executors_without_the_drivers_files_read_exactly_once_even_if_one_dies_mid_slice(
    orders: Workspace, cluster: SparkCluster
) -> None:
    config = orders.settings
    store, name = Store(config.store), orders.full_name("orders")
    with Gate(orders, 7 * 150) as gate:
        orders.write(tables={name: {"where": gate.where}})
        watched = Watched(orders, cluster)
        watched.until(lambda: len(list(store.list(f"commits/{name}/"))) >= 2)
        gate.close()
        watched.until(lambda: reading(orders) >= 2)  # one on each worker
        watched.look()
        watched.seen["driver"] = driver_pages(watched.seen[f"spark-master {cluster.master.port}"])
        victim = next(w for w in cluster.workers if w.executors())
        [executor] = victim.executors()
        if can_hide():
            for hidden in (orders.folder, PACKAGES, CODE):
                assert hidden.is_dir() and not Path(f"/proc/{executor}/root{hidden}").exists()
        family = descendants(victim.pid)
        loaded = {name for one in family for name in libraries(one.pid)}
        assert {name for name in loaded if "/site-packages/" in name} == {
            name for name in loaded if name.startswith(f"{victim.work}/") and "/environment/lib/" in name
        }
        assert {Path(name).name.partition(".")[0] for name in loaded} >= {"libarrow", "_obstore"}
        os.kill(executor, signal.SIGKILL)
        assert all_gone(family, 60)
        gate.open()
        stdout, stderr = watched.process.communicate(timeout=300)
    assert watched.process.returncode == 0, stderr
    assert orders.compare("orders").equal
    named = {name for name, text in watched.seen.items() if orders.database.name in text}
    assert "driver" in named  # the jobs have readable names: the pages were really looked at

    # What the cluster keeps of a run: logs, and what was shipped, compiled where it was imported from.
    until(lambda: not any(w.executors() for w in cluster.workers), 60, pause=0.2)
    for worker in cluster.workers:
        assert list(worker.work.glob("*/*/environment/lib/*/*/floodmark/extract/__pycache__/task.*"))
    kept = {
        str(p): p.read_bytes()
        for w in cluster.workers
        for p in w.work.rglob("*")
        if "environment" not in p.parts and p.suffix != ".gz" and p.is_file()
    }
    kept |= {str(p): p.read_bytes() for p in (orders.folder / "events").rglob("*") if p.is_file()}
    kept |= {name: text.encode() for name, text in watched.seen.items()}
    kept |= {"stdout": stdout.encode(), "stderr": stderr.encode()}
    assert any("stderr" in path for path in kept)
    events = b"".join(data for path, data in kept.items() if "/events/" in path)
    assert b'"spark.authenticate.secret":"*********(redacted)"' in events
    key = (orders.folder / "key").read_text().splitlines()[2]
    shared = config.spark.conf["spark.authenticate.secret"]
    for secret in (config.source.password, config.store.secret_access_key or "", key, shared):
        assert len(secret) > 8
        assert [where for where, data in kept.items() if secret.encode() in data] == []


@pytest.mark.long
def test_executors_without_our_python_or_packages_get_an_error_with_a_remedy(orders: Workspace) -> None:
    orders.write(
        spark={"conf": {**orders.config["spark"]["conf"], "spark.pyspark.python": "/no/such/python"}}
    )
    done = orders.run("sync", "-t", "orders", timeout=300)
    assert done.code == 2, done.stderr
    assert "/no/such/python" in done.stderr and "docs/cluster.md" in done.stderr


@pytest.mark.long
def test_a_sync_waits_for_a_cluster_without_workers_but_not_forever(workspace: Workspace) -> None:
    workspace.execute(create_orders(), fill_orders(10))
    impatient = (
        "import sys; from floodmark.spark import context; context.DESERTED = 5.0; from floodmark.cli.main import main; "
        "sys.argv = ['floodmark', 'sync', '-t', 'orders']; sys.exit(main())"
    )
    with SparkCluster(workers=0) as empty:
        conf = {"spark.driver.host": "127.0.0.1"}
        workspace.write(spark={"master": empty.master.url, "conf": conf})
        done = subprocess.run(
            [sys.executable, "-c", impatient],
            cwd=workspace.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 4, done.stderr
    assert "no executor" in done.stderr and empty.master.url in done.stderr


@pytest.mark.long
def test_an_unreachable_cluster_is_exit_code_4(workspace: Workspace) -> None:
    workspace.execute(create_orders(), fill_orders(10))
    conf = {"spark.driver.host": "127.0.0.1"}
    workspace.write(spark={"master": "spark://127.0.0.1:1", "conf": conf})
    done = workspace.run("sync", "-t", "orders", timeout=300)  # Spark itself tries for a minute
    assert done.code == 4, done.stderr
    assert "spark://127.0.0.1:1" in done.stderr
