"""ClickHouse's engine in a process (chDB): one table from MySQL to one Parquet file on disk. Prints its figures as JSON.

python chdb_engine.py TASK. It reads with one connection and writes to a local folder, not to S3, which is to its advantage.
`seconds` is without Python's start and the engine's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chdb

sys.path.append(str(Path(__file__).parents[1]))
from measure import tree_cpu


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    url = urlsplit(task["source"])
    schema, _, table = task["table"].partition(".")
    file = Path(task["folder"]) / "rows.parquet"
    file.parent.mkdir()
    chdb.query("SELECT 1")
    began, cpu = time.monotonic(), tree_cpu()
    source = ", ".join(
        _text(each)
        for each in (
            f"{url.hostname}:{url.port}",
            schema,
            table,
            unquote(url.username or ""),
            unquote(url.password or ""),
        )
    )
    chdb.query(f"INSERT INTO FUNCTION file({_text(str(file))}, 'Parquet') SELECT * FROM mysql({source})")
    seconds, cpu = time.monotonic() - began, tree_cpu() - cpu
    rows = int(str(chdb.query(f"SELECT count() FROM file({_text(str(file))}, 'Parquet')", "CSV")))
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu}))


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


if __name__ == "__main__":
    main()
