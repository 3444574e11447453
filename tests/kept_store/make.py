"""Makes a kept store: one of each state that a table can be in, as the present version of Floodmark writes it.

    PYTHONPATH=src python -m tests.kept_store.make 0.1.0

writes tests/kept_store/0.1.0/: the source (source.sql), the configuration, and for a store in a folder and one in S3
the bytes with their DuckDB file (folder.tar.xz, s3.tar.xz) and what this version said of them (folder.json, s3.json).
A store that was kept is never made anew: a version that writes another one adds a folder.

0.1.0 was made by commit 61580fe, against MariaDB 10.11, SeaweedFS and DuckDB 2.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from floodmark import Pipeline, __version__
from floodmark.config.load import load
from floodmark.model.errors import ConfigError
from floodmark.model.events import Event, Noted, SliceRead
from floodmark.model.run import SyncOptions, new_run
from floodmark.setup.services.databases import MariaDB
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark.context import Spark
from floodmark.store.store import Store
from floodmark.sync import passes
from floodmark.sync import run as pipeline
from tests.conftest import Database, Floodmark, Silent, Workspace, new_workspace
from tests.kept_store import kept, tables
from tests.kept_store.tables import SCHEMA, insert, update

# Not synced together with the others: they get their state by themselves.
APART = {"open_window", "open_snapshot", "older_tool"}
TOGETHER = [name for name in tables.CREATE if name not in APART]


class Killed(Silent):
    """Kills its own process at a moment of a sync: no lease is released, nothing is said."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.slices = int(moment) if moment.isdigit() else None

    def __call__(self, event: Event) -> None:
        """With the n-th slice, while those before it are in the log; or between the commit of deletes and its load."""
        if self.slices is not None and isinstance(event, SliceRead):
            self.slices -= 1
            self._end(self.slices <= 0)
        if isinstance(event, Noted):
            self._end(self.moment == "deletes" and "no longer at the source" in event.text)

    def _end(self, now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(config: Path, table: str, moment: str) -> None:
    """A sync that commits slice by slice, and does not come to its end."""
    passes.COMMIT_EVERY = 0
    options = SyncOptions(strategy="sequential")
    pipeline.sync(load(config), [f"{SCHEMA}.{table}"], False, options, Killed(moment), new_run())


class Maker:
    """One layout's workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @property
    def file(self) -> Path:
        return self.workspace.file

    @property
    def pipeline(self) -> Pipeline:
        time.sleep(1.1)  # a run has the second in its name, by which its copies are found in order
        return Pipeline(self.file)

    @property
    def store(self) -> Store:
        return Store(load(self.file).store)

    def sync(self, *names: str, **options: Any) -> None:
        time.sleep(1.1)
        report = self.workspace.sync(*names, **options)
        assert report.ok, report.as_json()

    def kill(self, table: str, moment: str) -> None:
        command = [sys.executable, "-m", "tests.kept_store.make", "--killed", str(self.file), table, moment]
        done = subprocess.run(command, check=False)
        assert done.returncode == -signal.SIGKILL

    def older(self, path: str, table: str, upto: int, *unloaded: int) -> None:
        """What the older tool left: its watermark, the rows that it had loaded, and a file that it had not."""
        flat = f"{SCHEMA}_{table}"
        document = {
            "table_name": f"{SCHEMA}.{table}",
            "last_mysql_data_timestamp": tables.moment(upto).isoformat(),
            "mysql_status": "success",
            "redshift_status": "success",
            "s3_file_count": 1,
            "processed_s3_files": [],
        }
        self.store.put(path, json.dumps(document, indent=2).encode())
        sink = io.BytesIO()
        times = [tables.moment(i) for i in unloaded]
        pq.write_table(pa.table({"id": list(unloaded), "update_at": times}), sink)
        hour = "incremental/year=2025/month=03/day=01/hour=00"
        self.store.put(f"{hour}/{flat}_20250301_000000_batch_0001.parquet", sink.getvalue())
        with duckdb.connect(str(self.workspace.warehouse)) as warehouse:
            warehouse.execute(
                f"CREATE TABLE {table} (id BIGINT, amount DECIMAL(12,2), note VARCHAR, update_at TIMESTAMP)"
            )
            rows = self.workspace.execute(f"SELECT * FROM {table} WHERE id <= {upto} ORDER BY id")
            loaded = [row for row in rows if row[0] not in unloaded]
            warehouse.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", loaded)

    # the life of the store, in step with that of the source

    def first(self) -> None:
        self.pipeline.watermark_set(timestamp="2025-02-01 00:00:00")
        self.older(f"watermark/tables/{SCHEMA}_taken_over.json", "taken_over", 20, 12, 13)
        self.older(f"watermarks/{SCHEMA}.older_tool.json", "older_tool", 20, 15, 16)
        self.sync(*TOGETHER)

    def second(self) -> None:
        self.pipeline.s3clean_clean(f"{SCHEMA}.cleaned")
        self.sync(*TOGETHER)

    def third(self) -> None:
        """What is read now is pending when the store is kept."""
        waiting = ["pending", "given_up", "damaged_log", "changed"]
        self.sync(*waiting, backup_only=True)
        self.pipeline.s3clean_clean(f"{SCHEMA}.given_up", include_pending=True)
        self.pipeline.watermark_set(f"{SCHEMA}.manual_set", timestamp=str(tables.moment(10)))
        self.pipeline.watermark_reset(f"{SCHEMA}.reset_both")
        self.pipeline.watermark_reset(f"{SCHEMA}.reset_load", redshift_only=True)
        commits = self.pipeline.watermark_history(f"{SCHEMA}.restored")["commits"]
        batches = [c["n"] for c in commits if c["kind"] == "batch"]
        self.pipeline.watermark_restore(f"{SCHEMA}.restored", commit=min(batches))

    def last(self) -> None:
        self.kill("open_window", "4")
        self.kill("open_snapshot", "1")
        self.kill("hard_deletes", "deletes")
        self.kill("soft_deletes", "deletes")

    def watermarks(self) -> dict[str, Any]:
        found = self.pipeline.watermark_list().as_json()["tables"]
        found.append(self.pipeline.watermark_get(f"{SCHEMA}.older_tool").as_json())
        return {document["table_name"]: kept.lasting(document) for document in found}

    def damage(self) -> None:
        """The newest commit is gone, and one in the middle is cut off."""
        log = f"commits/{SCHEMA}.damaged_log/"
        commits = [o.path for o in self.store.list(log)]
        self.store.delete([commits[-1]])
        middle = commits[len(commits) // 2]
        self.store.put(middle, (self.store.get(middle) or b"")[:100])

    def keep(self, place: Path) -> None:
        """Store and warehouse, with what lies beside its file, into one archive."""
        with tarfile.open(place, "w:xz") as archive:
            for item in self.store.list(""):
                _add(archive, f"lake/{item.path}", self.store.get(item.path) or b"")
            for file in sorted(self.workspace.folder.glob("warehouse.duckdb*")):
                _add(archive, file.name, file.read_bytes())

    def expected(self, watermarks: dict[str, Any]) -> dict[str, Any]:
        validated = self.pipeline.watermark_validate()["tables"]
        return {
            "version": __version__,
            "watermarks": watermarks,
            "findings": {t["table"]: sorted({f["kind"] for f in t["findings"]}) for t in validated},
        }


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def source_begins(run: Callable[..., Any]) -> None:
    for name, create in tables.CREATE.items():
        run((tables.CHANGED_FIRST if name == "changed" else create).format(name=name))
        run(insert(name, range(1, 61 if name == "open_window" else 31), "note"))
    run(
        update("loose", "id = 29", "no time").replace("update_at = update_at", "update_at = NULL"),
        update("loose", "id = 30", "far").replace("update_at = update_at", "update_at = '2099-01-01'"),
    )


def source_goes_on(run: Callable[..., Any]) -> None:
    run(tables.CHANGE.format(name="changed"))
    for name in TOGETHER:
        run(insert(name, range(31, 41)))
        if tables.has_cursor(name):
            run(update(name, "id IN (3, 4)", "changed", 300))
    for name in ("hard_deletes", "soft_deletes"):
        run(f"DELETE FROM {name} WHERE id BETWEEN 5 AND 9")
    run("DELETE FROM snapshot WHERE id = 7")


def source_ends(run: Callable[..., Any]) -> None:
    for name in ("pending", "given_up", "damaged_log", "changed"):
        run(insert(name, range(91, 96)), update(name, "id IN (1, 4)", "changed again", 600))
    for name in ("hard_deletes", "soft_deletes"):
        run(f"DELETE FROM {name} WHERE id BETWEEN 20 AND 22")
    # Only where a table is read again, from where its state says, do these arrive.
    for name, where in (("manual_set", "id > 11"), ("reset_both", "id > 0"), ("restored", "id > 30")):
        run(update(name, where, "changed unseen"))


def dump(database: Database) -> Iterator[str]:
    for name in tables.CREATE:
        columns = database.execute(
            "SELECT column_name FROM information_schema.columns "
            f"WHERE table_schema = '{SCHEMA}' AND table_name = '{name}' ORDER BY ordinal_position"
        )
        names = ", ".join(c for (c,) in columns)
        rows = database.execute("SET time_zone = '+00:00'", f"SELECT {names} FROM {name} ORDER BY id")
        yield from tables.dumped(name, names, rows)


@contextmanager
def workspaces(database: Database, folder: Path) -> Iterator[dict[str, Maker]]:
    spark = Spark("local[2]", name="kept store")
    spark.start()
    with SeaweedFS() as seaweed:
        made = {}
        for layout, store in (("folder", {"url": "./lake"}), ("s3", seaweed.store("kept"))):
            place = folder / layout
            place.mkdir()
            command = Floodmark(place)
            config = {**tables.CONFIG, "store": store}
            made[layout] = Maker(new_workspace(place, database, command, lambda: spark, **config))
        yield made
    spark.stop()


def make(version: str) -> None:
    place = kept.HERE / version
    if place.exists():
        raise ConfigError(f"{place} is there already", hint="a store that was kept stays as it is")
    scratch = Path(tempfile.mkdtemp(prefix="floodmark-kept-"))
    with MariaDB(system_time_zone="UTC") as server:
        server.execute(f"CREATE DATABASE {SCHEMA}")
        database = Database(server, SCHEMA)
        with workspaces(database, scratch) as makers:
            source_begins(database.execute)
            for maker in makers.values():
                maker.first()
            source_goes_on(database.execute)
            for maker in makers.values():
                maker.second()
            source_ends(database.execute)
            for layout, maker in makers.items():
                maker.third()
                maker.last()
                watermarks = maker.watermarks()
                maker.damage()
                place.mkdir(exist_ok=True)
                maker.keep(place / f"{layout}.tar.xz")
                text = json.dumps(maker.expected(watermarks), indent=1, ensure_ascii=False)
                (place / f"{layout}.json").write_text(f"{text}\n")
        said = f"-- The source of the kept store, as it was with Floodmark {version}. Times are in UTC.\n"
        statements = ["SET time_zone = '+00:00'", *dump(database)]
        (place / "source.sql").write_text(said + "".join(f"{s};\n" for s in statements))
    (place / "config.yaml").write_text(yaml.safe_dump(tables.CONFIG, allow_unicode=True))
    shutil.rmtree(scratch)


if __name__ == "__main__":
    if sys.argv[1] == "--killed":
        killed(Path(sys.argv[2]), *sys.argv[3:])
    else:
        make(sys.argv[1])
