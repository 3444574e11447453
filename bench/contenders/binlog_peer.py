"""mysql-replication's reading of the same file: rows of one table, at most `limit` of them, all else skipped.

python binlog_peer.py '{"url", "file", "table", "limit", "size"}'. It decodes whole rows: it has no way to decode only their keys.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import RotateEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

NOBODY = "nobody.nothing"
WARM = 1000  # rows that are read before, so that nothing is imported meanwhile


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    read(task, WARM)
    began, cpu = time.monotonic(), time.process_time()
    rows, complete = read(task, task["limit"])
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    part = 1.0 if complete else rows / task["rows"]
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu, "part": part}))


def read(task: dict[str, Any], most: int) -> tuple[int, bool]:
    """One file, or about `most` of its rows: how many rows there were, and whether these were all."""
    url = urlsplit(task["url"])
    schema, _, table = (task["table"] or NOBODY).partition(".")
    login = {"host": url.hostname, "port": url.port, "user": unquote(url.username or "")}
    # Not is_mariadb: with it, the reader begins at a GTID and ignores the file.
    reader = BinLogStreamReader(
        connection_settings={**login, "passwd": unquote(url.password or ""), "ssl_disabled": True},
        server_id=4711, log_file=task["file"], log_pos=4, resume_stream=True, blocking=False,
        only_schemas=[schema], only_tables=[table],
        only_events=[RotateEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )  # fmt: skip
    rows = 0
    try:
        for event in reader:
            if isinstance(event, RotateEvent):
                if event.next_binlog != task["file"]:
                    break
                continue
            rows += len(event.rows)
            if rows >= most:
                return rows, False
        return rows, True
    finally:
        reader.close()


if __name__ == "__main__":
    main()
