"""What the dashboard costs: 1,000 tables from a private S3 server, and 50 clients that follow the overview.

    PYTHONPATH=src:. .venv/bin/python bench/dashboard.py [TABLES] [SECONDS]

Prints how long the first look took, a page after it, and what share of a core `serve` used while the clients followed, first
over a store in which nothing happens, then over one in which twenty tables change every five seconds. A client does what
a browser with the page does: every five seconds, with the page's tag.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from floodmark.config.load import load
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.dashboards import Filled

TABLES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
CLIENTS = 50


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asked(url: str, tag: str | None = None) -> tuple[float, int, str | None, int]:
    """One request: seconds, status, tag, bytes."""
    began = time.monotonic()
    headers = {"Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})}
    try:
        with urlopen(Request(url, headers=headers), timeout=120) as answer:
            body = answer.read()
            return time.monotonic() - began, answer.status, answer.headers["ETag"], len(body)
    except HTTPError as error:
        return time.monotonic() - began, error.code, tag, 0


def follow(url: str, until: float, start: float, slowest: list[float]) -> None:
    time.sleep(start)
    tag: str | None = None
    while time.monotonic() < until - 5.0:
        seconds, _, tag, _ = asked(url, tag)
        slowest.append(seconds)
        time.sleep(5.0)


def followed(name: str, url: str, pid: int) -> None:
    """The cost of the clients for so many seconds."""
    asked(url)
    before, until = cpu(pid), time.monotonic() + SECONDS
    times: list[float] = []
    threads = [
        threading.Thread(target=follow, args=(url, until, i * 5.0 / CLIENTS, times)) for i in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    used = (cpu(pid) - before) / SECONDS
    times.sort()
    print(
        f"{name}: {CLIENTS} clients, {len(times)} requests, {used:.3f} of a core, median {times[len(times) // 2] * 1000:.0f} ms, slowest {times[-1] * 1000:.0f} ms"
    )


def main() -> None:
    with SeaweedFS() as s3, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "floodmark.yaml"
        config.write_text(
            f"source: {{url: mysql://reader@nowhere.invalid:3306/shop}}\n{s3.store_yaml('bench')}"
        )
        filled = Filled(Store(load(config).store), datetime.now(UTC))
        names = filled.many(TABLES)
        for hours in range(24, 0, -1):
            filled.run(60.0 * hours, {name: {} for name in names})
        process = subprocess.Popen(
            [sys.executable, "-m", "floodmark", "--config", str(config), "serve", "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[4]
            started = cpu(process.pid)
            first, _, tag, size = asked(url)
            looked = cpu(process.pid)
            addresses = [f"{url}?q=t0&sort={by}" for by in ("name", "lag", "rows", "looked", "pending")]
            pages = [asked(one)[0] for one in addresses]
            spent = (cpu(process.pid) - looked) / len(pages)
            print(
                f"{TABLES} tables from S3: first look {first:.2f} s ({looked - started:.2f} s of CPU), a page of {size / 1000:.0f} kB; then "
                f"{max(pages) * 1000:.0f} ms at most for a page made anew ({spent * 1000:.0f} ms of CPU)"
            )
            seconds, status, _, _ = asked(url, tag)
            print(f"the same page again: {seconds * 1000:.0f} ms ({status})")
            followed("nothing happens", url, process.pid)
            stop = threading.Event()

            def change() -> None:
                turn = 0
                while not stop.wait(5.0):
                    filled.now = datetime.now(UTC)
                    for i in range(20):
                        filled.check(names[(turn * 20 + i) % len(names)], 0.0, lag=float(turn))
                    turn += 1

            changing = threading.Thread(target=change)
            changing.start()
            followed("20 tables change every 5 s", url, process.pid)
            stop.set()
            changing.join()
        finally:
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    main()
