"""Completing tables that only an S3 server knows; tests/unit/cli has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.cli import completion
from floodmark.config.load import load
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store


def test_tables_of_a_bucket_are_offered(
    seaweed: SeaweedFS, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 60)  # the machine may be busy
    file = tmp_path / "floodmark.yaml"
    file.write_text(f"source: {{url: 'mysql://reader@db/shop'}}\n{seaweed.store_yaml(prefix)}")
    Store(load(file).store).put("commits/shop.stored/00000000000000000000.json", b"{}")
    assert completion.table_names(file) == ["shop.stored"]
