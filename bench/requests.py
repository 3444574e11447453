"""Unit costs: what a sync asks of the store and of the source, counted by a proxy before S3 and by MySQL itself.

`python bench/requests.py` starts private servers and prints a table; docs/scale.md is written from it.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from floodmark.api import Quiet
from floodmark.config import Config, load
from floodmark.report import SyncOptions, SyncReport, new_run
from floodmark.spark import Spark
from floodmark.store import Store
from floodmark.sync import sync
from floodmark.testing.services import MariaDB, SeaweedFS

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
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def count(self, method: str, path: str) -> None:
        place, _, query = path.partition("?")
        key = place.removeprefix(self.prefix)
        kind = "LIST" if "list-type" in query or "prefix=" in query else method
        with self.lock:
            self.counts[f"{kind} {key.partition('/')[0] if kind != 'LIST' else ''}".strip()] += 1

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


def asked(server: MariaDB) -> tuple[int, int]:
    """Connections and statements so far."""
    found = dict(server.execute("SHOW GLOBAL STATUS WHERE Variable_name IN ('Connections', 'Questions')"))
    return int(found["Connections"]), int(found["Questions"])


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="floodmark-requests-"))
    spark = Spark("local[2]", name="floodmark requests")
    spark.start()
    with MariaDB() as server, SeaweedFS() as s3:
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
            report = sync(config, tables, False, SyncOptions(**options), Quiet(), new_run(), spark)  # type: ignore[arg-type]
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


if __name__ == "__main__":
    main()
