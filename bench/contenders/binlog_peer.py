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


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    url = urlsplit(task["url"])
    schema, _, table = (task["table"] or NOBODY).partition(".")
    login = {"host": url.hostname, "port": url.port, "user": unquote(url.username or "")}
    began, cpu = time.monotonic(), time.process_time()
    reader = BinLogStreamReader(
        connection_settings={**login, "passwd": unquote(url.password or ""), "ssl_disabled": True},
        server_id=4711, log_file=task["file"], log_pos=4, resume_stream=True, blocking=False,
        is_mariadb=task["mariadb"], only_schemas=[schema], only_tables=[table],
        only_events=[RotateEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )  # fmt: skip
    rows, part = 0, 1.0
    for event in reader:
        if isinstance(event, RotateEvent):
            if event.next_binlog != task["file"]:
                break
            continue
        rows += len(event.rows)
        if rows >= task["limit"]:
            part = rows / task["rows"]
            break
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    reader.close()
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu, "part": part}))


if __name__ == "__main__":
    main()
