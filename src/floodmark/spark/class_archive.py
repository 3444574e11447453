"""The archive of Spark's classes for a faster start: made once, by a JVM that records what a sync uses."""

from __future__ import annotations

from pathlib import Path

from floodmark.host.temp import is_own
from floodmark.model.errors import ConfigError
from floodmark.spark.context import Spark
from floodmark.spark.jvm import Archive, find_java


def prepare() -> Path | None:
    """Makes the archive of Spark's classes that speeds up later starts; None if it already exists.

    A separate JVM runs what a sync runs and, on exit, writes the classes it has loaded. Takes about 15
    seconds.
    """
    archive = Archive(find_java())
    if is_own(archive.path):
        return None
    spark = Spark("local[2]", name="floodmark prepare", training=True)
    try:
        spark.start()
        spark.rehearse(2)
    finally:
        spark.stop()
    if not is_own(archive.path):
        raise ConfigError(
            "Java wrote no class archive", hint=f"Spark also starts without it; see {spark.log_path}"
        )
    return archive.path


if __name__ == "__main__":
    made = prepare()
    print(f"Spark's classes are in {made}" if made else "Spark's classes were already prepared")
