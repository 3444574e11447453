"""dlt with its ConnectorX backend: one table from MySQL to Parquet in S3. Prints its figures as JSON.

python dlt_connectorx.py TASK, a JSON file with source, table, bucket, endpoint, key, secret, connections. ConnectorX is given as many
partitions as Floodmark has connections, and dlt its Parquet writer's defaults.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import dlt
from dlt.destinations import filesystem
from dlt.sources.credentials import AwsCredentials
from dlt.sources.sql_database import sql_table

sys.path.append(str(Path(__file__).parents[1]))
from measure import tree_cpu


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    began, cpu = time.monotonic(), tree_cpu()
    credentials = AwsCredentials()
    credentials.aws_access_key_id, credentials.aws_secret_access_key = task["key"], task["secret"]
    credentials.endpoint_url, credentials.region_name = task["endpoint"], "us-east-1"
    schema, _, table = task["table"].partition(".")
    source = sql_table(
        credentials=task["source"].replace("mysql://", "mysql+pymysql://"),
        schema=schema,
        table=table,
        backend="connectorx",
        backend_kwargs={
            "conn": task["source"],
            "partition_on": "id",
            "partition_num": task["connections"],
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        pipeline = dlt.pipeline(
            "bench",
            pipelines_dir=folder,
            destination=filesystem(bucket_url=task["bucket"], credentials=credentials),
            dataset_name=f"bench_{time.time_ns()}",
        )
        pipeline.run(source, loader_file_format="parquet", write_disposition="append")
        seconds, cpu = time.monotonic() - began, tree_cpu() - cpu
        rows = pipeline.last_trace.last_normalize_info.row_counts[table]
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    main()
