"""The archive of Spark's classes that lets it start faster: made once, by a JVM that watches which ones a sync takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from floodmark.errors import ConfigError
from floodmark.jvm import direct_command, find_java
from floodmark.spark import Spark


def prepare() -> Path | None:
    """Makes the archive of Spark's classes that later starts are faster with; None: it was there.

    A JVM of its own runs what a sync runs and writes down at its end which classes that took. About 15 seconds.
    """
    spark = Spark("local[2]", name="floodmark prepare", training=True)
    archive = _archive(direct_command(find_java(), spark.settings, training=True))
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    if archive.exists():
        return None
    try:
        spark.start()
        spark.rehearse()
    finally:
        spark.stop()
    if not part.exists():
        raise ConfigError(
            "Java wrote no class archive", hint=f"Spark starts without it too; see {spark.log_path}"
        )
    part.replace(archive)
    return archive


def _archive(command: Sequence[str]) -> Path:
    option = next(o for o in command if o.startswith("-XX:ArchiveClassesAtExit="))
    return Path(option.partition("=")[2].removesuffix(f".{os.getpid()}"))


if __name__ == "__main__":
    made = prepare()
    print(f"Spark's classes are in {made}" if made else "Spark's classes were prepared already")
