"""One sync without the load, on a Spark that is warm already; prints its figures as JSON.

python bench/steady.py CONFIG TABLE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from floodmark.config import load
from floodmark.report import SyncOptions, new_run
from floodmark.spark import Spark
from floodmark.sync import sync


class Silent:
    """Watches a run without a word."""

    def note(self, table: str, text: str) -> None: ...
    def begin(self, table: str, stage: str, rows: int | None) -> None: ...
    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None: ...
    def end(self, table: str, stage: str) -> None: ...


def main() -> None:
    config = load(Path(sys.argv[1]))
    began = time.monotonic()
    spark = Spark(config.spark_master, config.spark_conf, name="floodmark bench")
    spark.start()
    started = time.monotonic() - began
    time.sleep(3)  # the workers' imports
    began = time.monotonic()
    report = sync(
        config, [sys.argv[2]], False, SyncOptions(backup_only=True), Silent(), new_run(), spark=spark
    )
    seconds = time.monotonic() - began
    spark.stop()
    (table,) = report.as_json()["tables"]
    if table["error"]:
        sys.exit(str(table["error"]))
    print(json.dumps({"rows": table["rows_extracted"], "bytes": table["bytes_written"],
                      "files": table["files_written"], "seconds": seconds, "spark_start": started}))  # fmt: skip


if __name__ == "__main__":
    main()
