"""Unit costs: what a sync asks of the store and of the source, counted by a proxy before S3 and by MySQL itself.

`python bench/requests.py` starts private servers and prints a table; docs/scale.md is written from it. With numbers
behind it, what a sync costs when the table's log has so many commits: `python bench/requests.py 100 1000 10000`.
SOURCE=mariadb takes the rows from MariaDB.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import yaml

from floodmark.config.load import Config, load
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.log import Log, draft
from floodmark.model import events
from floodmark.model.commit import Batch, DataFile
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.model.times import stamp
from floodmark.setup.services.databases import DatabaseServer, chosen
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark.context import Spark
from floodmark.store.store import Store
from floodmark.sync.run import sync

TABLE = """CREATE TABLE {name} (id BIGINT AUTO_INCREMENT PRIMARY KEY, amount DECIMAL(12,2) NOT NULL, note VARCHAR(40),
  update_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))"""
FILL = """INSERT INTO {name} (amount, note, update_at)
  SELECT seq / 100, CONCAT('n', seq), '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_{rows}"""


class Proxy(ThreadingHTTPServer):
    """Passes S3 requests on and counts them by method and by the first folder of the key; a list is its own kind."""

    daemon_threads = True

    def __init__(self, port: int, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target, self.prefix, self.counts = port, prefix, Counter[str]()
        self.sent = self.answered = 0  # bytes, without headers
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def count(self, method: str, path: str) -> None:
        place, _, query = path.partition("?")
        key = place.removeprefix(self.prefix)
        kind = "LIST" if "list-type" in query or "prefix=" in query else method
        with self.lock:
            self.counts[f"{kind} {key.partition('/')[0] if kind != 'LIST' else ''}".strip()] += 1

    def weigh(self, sent: int, answered: int) -> None:
        with self.lock:
            self.sent, self.answered = self.sent + sent, self.answered + answered

    def weighed(self) -> tuple[int, int]:
        """Bytes to and from the store since it was last asked."""
        with self.lock:
            found, self.sent, self.answered = (self.sent, self.answered), 0, 0
        return found

    def taken(self) -> Counter[str]:
        with self.lock:
            found, self.counts = self.counts, Counter()
        return found


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.count(self.command, self.path)
        link = http.client.HTTPConnection("127.0.0.1", self.server.target)
        link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            link.putheader(name, value)
        link.endheaders(body)
        answer = link.getresponse()
        data = answer.read()
        self.server.weigh(len(body), len(data))
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        link.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None: ...


def asked(server: DatabaseServer) -> tuple[int, int]:
    """Connections and statements so far."""
    found = dict(server.execute("SHOW GLOBAL STATUS WHERE Variable_name IN ('Connections', 'Questions')"))
    return int(found["Connections"]), int(found["Questions"])


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="floodmark-requests-"))
    spark = Spark("local[2]", name="floodmark requests")
    spark.start()
    with chosen(os.environ.get("SOURCE"))() as server, SeaweedFS() as s3:
        prefix = "requests"
        proxy = Proxy(s3.port, f"/{s3.bucket}/{prefix}/")
        server.execute("CREATE DATABASE shop")
        names = [f"t{n}" for n in range(11)]
        for name in names:
            rows = 100_000 if name == "t0" else 1000
            server.execute(TABLE.format(name=name), FILL.format(name=name, rows=rows), database="shop")
        store = {**s3.store(prefix), "endpoint": f"http://127.0.0.1:{proxy.server_port}"}
        file = folder / "floodmark.yaml"
        file.write_text(yaml.safe_dump({"source": {"url": server.url("shop")}, "store": store,
                                        "warehouse": {"url": "duckdb:///w.duckdb"},
                                        "defaults": {"slice_rows": 1000}}))  # fmt: skip
        config = load(file)

        def measured(what: str, *tables: str, **options: object) -> SyncReport:
            proxy.taken()
            connections, questions = asked(server)
            began, cpu = time.monotonic(), time.process_time()
            report = sync(config, tables, False, SyncOptions(**options), events.ignore, new_run(), spark)  # type: ignore[arg-type]
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            after = asked(server)
            counts = proxy.taken()
            assert report.ok, [t.error for t in report.tables]
            print(f"\n{what}: {seconds:.1f} s, {cpu:.2f} s CPU of the driver and the proxy, {sum(counts.values())} requests, {after[0] - connections - 1} connections, "
                  f"{after[1] - questions - 1} statements; commits {sum(len(t.commits) for t in report.tables)}, "
                  f"files {sum(t.files_written for t in report.tables)}")  # fmt: skip
            print("  " + ", ".join(f"{n} × {kind}" for kind, n in counts.most_common()))
            return report

        measured("first sync, 100 slices", "t0")
        measured("nothing to do", "t0")
        for n in range(2):
            server.execute("UPDATE t0 SET note = CONCAT(note, '!') WHERE id <= 100", database="shop")
            measured(f"100 changed rows ({n + 1})", "t0")
        measured("first sync of 10 small tables", *names[1:])
        measured("nothing to do, 10 tables", *names[1:])
        for name in names[1:]:
            server.execute(f"UPDATE {name} SET note = 'x' WHERE id <= 10", database="shop")
        measured("10 changed rows in each of 10 tables", *names[1:])
        sizes(config)
    spark.stop()


def sizes(config: Config) -> None:
    """How large the documents are."""
    store = Store(config.store)
    commits = [
        json.loads(store.get(o.path) or b"") | {"size": o.bytes} for o in store.list("commits/shop.t0/")
    ]
    batches = [c for c in commits if c["files"]]
    files = sum(len(c["files"]) for c in batches)
    print(f"\ncommit of a claim: {max(c['size'] for c in commits if c['kind'] == 'claim')} bytes; of a batch: "
          f"{sum(c['size'] for c in batches) / files:.0f} bytes per file")  # fmt: skip
    for o in store.list("watermark/tables/"):
        if "t0" in o.path or "t1." in o.path:
            print(f"watermark {o.path}: {o.bytes} bytes")


def histories(lengths: list[int]) -> None:
    """What a sync without news and one with a small increment cost after longer and longer histories."""
    folder = Path(tempfile.mkdtemp(prefix="floodmark-requests-"))
    spark = Spark("local[2]", name="floodmark requests")
    spark.start()
    with chosen(os.environ.get("SOURCE"))() as server, SeaweedFS() as s3:
        proxy = Proxy(s3.port, f"/{s3.bucket}/requests/")
        server.execute("CREATE DATABASE shop")
        server.execute(TABLE.format(name="t0"), FILL.format(name="t0", rows=1000), database="shop")
        store = {**s3.store("requests"), "endpoint": f"http://127.0.0.1:{proxy.server_port}"}
        file = folder / "floodmark.yaml"
        file.write_text(yaml.safe_dump({"source": {"url": server.url("shop")}, "store": store,
                                        "warehouse": {"url": "duckdb:///w.duckdb"}}))  # fmt: skip
        config = load(file)

        def measured(what: str) -> None:
            proxy.taken()
            proxy.weighed()
            cpu = time.process_time()
            report = sync(config, ["shop.t0"], False, SyncOptions(), events.ignore, new_run(), spark)
            cpu = time.process_time() - cpu
            assert report.ok, [t.error for t in report.tables]
            (sent, answered), count = proxy.weighed(), sum(proxy.taken().values())
            n = report.tables[0].watermark["commit"] if report.tables[0].watermark else 0
            print(f"{n:7,} commits, {what}: {count} requests, {sent:9,} bytes to the store, {answered:9,} from it, "
                  f"{cpu:.2f} s CPU of the driver and the proxy", flush=True)  # fmt: skip

        measured("the first sync")
        direct = Store(replace(config.store, endpoint=s3.store("requests")["endpoint"]))
        for length in lengths:
            _lengthen(direct, folder / "w.duckdb", length)
            for _ in range(2):  # the first one after a change by hand publishes it
                measured("nothing to do")
            for _ in range(3):
                server.execute("UPDATE t0 SET note = CONCAT(note, '!') WHERE id <= 10", database="shop")
                measured("10 changed rows")
    spark.stop()


def _lengthen(store: Store, warehouse: Path, length: int) -> None:
    """Claims and batches of one file each, loaded, as if so many syncs had been."""
    log = Log(store, "shop.t0")
    state = log.read()
    before = state.n
    rows = []
    while state.n < length:
        run = new_run()
        claimed = claim(log, state, run=run, purpose="sync", table=state.table)
        claimed.lease.release()
        name = f"data/shop.t0/{run}/{state.n:032}.parquet"
        made = DataFile(name, 10, 2000, "0" * 64, 0, created_at=stamp(), etag="0" * 32)
        state = claimed.state
        schema = state.table.fingerprint if state.table else None
        state = log.append(state, draft(state, Batch, run, files=(made,), schema=schema))
        rows.append((state.n, state.digest))
    if state.n == before:
        return
    with duckdb.connect(warehouse) as con:
        con.executemany(
            "INSERT INTO floodmark_ledger SELECT log_id, epoch, ?, ?, pipeline_id, source_table, target, run, 10, 1, "
            f"loaded_at FROM floodmark_ledger WHERE n = (SELECT min(n) FROM floodmark_ledger) AND log_id = '{state.log}'",
            rows,
        )
    Publisher(store, "shop.t0", new_run()).publish(state, None)


if __name__ == "__main__":
    if lengths := [int(n) for n in sys.argv[1:]]:
        histories(lengths)
    else:
        main()
