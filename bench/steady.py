"""One sync or verify on a Spark that is warm already; prints its figures as JSON.

python bench/steady.py CONFIG TABLE extract|both|verify
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from measure import tree_cpus

from floodmark.config.load import load
from floodmark.model import events
from floodmark.model.run import SyncOptions, new_run
from floodmark.spark.context import Spark
from floodmark.sync.run import sync
from floodmark.verify.run import verify


def main() -> None:
    config, table, what = load(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
    began = time.monotonic()
    spark = Spark(config.spark.master, config.spark.conf, name="floodmark bench")
    spark.start()
    started = time.monotonic() - began
    time.sleep(3)  # the workers' imports
    began, before = time.monotonic(), tree_cpus()
    if what == "verify":
        document, _ = verify(config, [table], events.ignore, new_run(), spark=spark)
    else:
        options = SyncOptions(backup_only=what == "extract")
        document = sync(config, [table], False, options, events.ignore, new_run(), spark=spark).as_json()
    seconds, after = time.monotonic() - began, tree_cpus()
    cpus = {role: after[role] - before[role] for role in after}
    (done,) = document["tables"]
    if done["error"]:
        spark.stop()
        sys.exit(str(done["error"]))
    rows = done["rows_source"] if what == "verify" else done["rows_extracted"] or done["rows_reread"]
    print(json.dumps({"rows": rows, "loaded": done.get("rows_loaded"), "bytes": done.get("bytes_written", 0),
                      "seconds": seconds, "cpu": sum(cpus.values()), "cpus": cpus, "spark_start": started}), flush=True)  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
