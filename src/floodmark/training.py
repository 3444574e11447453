"""The archive of Spark's classes that lets it start faster: made once, by a JVM that watches which ones a sync takes."""

from __future__ import annotations

from pathlib import Path

from floodmark.errors import ConfigError
from floodmark.jvm import Archive, find_java
from floodmark.spark import Spark


def prepare() -> Path | None:
    """Makes the archive of Spark's classes that later starts are faster with; None: it was there.

    A JVM of its own runs what a sync runs and writes down at its end which classes that took. About 15 seconds.
    """
    archive = Archive(find_java())
    if archive.path.exists():
        return None
    spark = Spark("local[2]", name="floodmark prepare", training=True)
    try:
        spark.start()
        spark.rehearse()
    finally:
        spark.stop()
    if not archive.path.exists():
        raise ConfigError(
            "Java wrote no class archive", hint=f"Spark starts without it too; see {spark.log_path}"
        )
    return archive.path


if __name__ == "__main__":
    made = prepare()
    print(f"Spark's classes are in {made}" if made else "Spark's classes were prepared already")
