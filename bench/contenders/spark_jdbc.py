"""Plain Spark: JDBC with MariaDB Connector/J, written as Parquet. Prints its figures as JSON.

python spark_jdbc.py TASK. Spark's own S3 client needs jars that PyPI and Debian don't have, so it writes to a local folder, which is
to its advantage. `seconds` is without the session's start and the first job's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1]))
from measure import tree_cpu


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    url = urlsplit(task["source"])
    spark = (
        SparkSession.builder.master(f"local[{task['connections']}]")
        .config("spark.jars", task["jar"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).selectExpr("sum(id)").collect()
    began, cpu = time.monotonic(), tree_cpu()
    rows = spark.read.jdbc(
        f"jdbc:mysql://{url.hostname}:{url.port}{url.path}",
        task["table"],
        column="id",
        lowerBound=1,
        upperBound=task["rows"],
        numPartitions=max(task["connections"], -(-task["rows"] // 250_000)),
        properties={
            "driver": "org.mariadb.jdbc.Driver",
            "user": unquote(url.username or ""),
            "password": unquote(url.password or ""),
            "fetchsize": "10000",
        },
    )
    rows.write.parquet(task["folder"])
    seconds, cpu = time.monotonic() - began, tree_cpu() - cpu
    written = spark.read.parquet(task["folder"]).count()
    spark.stop()
    print(json.dumps({"rows": written, "seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    main()
