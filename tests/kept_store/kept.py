"""A kept store, as files: what is where, and how it is laid into a workspace.

Nothing in it is rewritten but the warehouse's address in `pipeline.json`, which has moved with it: Floodmark asks for
that by itself when a warehouse was moved. All else must do as it is, in another folder or bucket, on another machine:
the addresses of files and the processes in it are those of the machine that wrote it, and nobody may need them.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from floodmark.store.store import Store
from tests.conftest import Workspace

HERE = Path(__file__).parent
LAYOUTS = ("folder", "s3")
# What a watermark says that neither time nor place change.
LASTING = (
    "table_name", "commit", "last_mysql_extraction_time", "last_mysql_data_timestamp", "last_mysql_data_id",
    "mysql_rows_extracted", "mysql_rows_reread", "mysql_status", "last_redshift_load_time", "redshift_rows_loaded",
    "redshift_rows_reloaded", "redshift_status", "backup_strategy", "s3_file_count", "last_error", "created_at",
    "metadata", "next_start", "next_start_by",
)  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """One version's store, in one layout."""

    version: str
    layout: str

    @property
    def config(self) -> dict[str, Any]:
        """The part of the configuration that does not depend on the place."""
        return dict(yaml.safe_load((HERE / self.version / "config.yaml").read_text()))

    @property
    def source(self) -> Iterator[str]:
        """The statements that lay the source."""
        text = (HERE / self.version / "source.sql").read_text()
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        return (s for s in (part.strip() for part in lines.split(";\n")) if s)

    @property
    def expected(self) -> dict[str, Any]:
        """What the version that wrote the store said of it."""
        return dict(json.loads((HERE / self.version / f"{self.layout}.json").read_text()))

    def lay(self, workspace: Workspace) -> None:
        """Put store and warehouse where the workspace's configuration has them."""
        config = workspace.settings
        store = Store(config.store)
        with tarfile.open(HERE / self.version / f"{self.layout}.tar.xz") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                assert file is not None, f"{entry.name} is no file"
                data = file.read()
                path = entry.name.removeprefix("lake/")
                if path == entry.name:
                    (workspace.folder / path).write_bytes(data)
                elif path == "pipeline.json":
                    moved = {**json.loads(data), "warehouse": config.warehouse.label}
                    store.put(path, json.dumps(moved).encode())
                else:
                    store.put(path, data)


def versions() -> list[str]:
    return sorted(p.parent.name for p in HERE.glob("*/source.sql"))


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    """A watermark, without what changes with time and place; files by their paths in the store."""
    kept = {name: document[name] for name in LASTING if name in document}
    for name in ("processed_s3_files", "pending_s3_files"):
        kept[name] = [uri[uri.index("/data/") + 1 :] for uri in document[name]]
    return kept
