"""What the tests of the command line share (a configuration with secrets, and a pipeline whose steps the test writes),
those of the configuration (a file that is read, and what is said of its mistakes), and those of MySQL's packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from floodmark.config.load import Config, load
from floodmark.model.errors import ConfigError
from floodmark.model.results import Watermark
from floodmark.source.rows import decoder

# A property's cost is not what it tests: on a busy machine, a deadline would fail true ones.
settings.register_profile("floodmark", deadline=None)
settings.load_profile("floodmark")

PASSWORD = "s3cr;t/p@ss"
STORE_KEY = "wJalrXUtnFEMI/K7MDENG"
CONFIG = f"""
source:
  url: mysql://reader:{PASSWORD.replace("/", "%2F").replace("@", "%40")}@127.0.0.1:3306/shop
store:
  url: s3://bucket/prefix
  endpoint: http://127.0.0.1:1
  region: us-east-1
  access_key_id: AKIAEXAMPLE00
  secret_access_key: {STORE_KEY}
"""
DOCUMENT: dict[str, Any] = {
    "table_name": "shop.orders", "commit": 42,
    "last_mysql_extraction_time": "2025-08-14T16:45:33.123456Z",
    "last_mysql_data_timestamp": "2025-08-14T15:30:22.000000", "last_mysql_data_id": [1250000],
    "mysql_rows_extracted": 1250000, "mysql_status": "success",
    "last_redshift_load_time": "2025-08-14T17:12:45.654321Z", "redshift_rows_loaded": 1000000,
    "redshift_status": "pending", "backup_strategy": "sequential", "s3_file_count": 250, "processed_s3_files": ["s3://b/1.parquet"],
    "pending_s3_files": ["s3://b/2.parquet", "s3://b/3.parquet"], "last_error": None, "metadata": {},
}  # fmt: skip
Step = Callable[..., Any]


def mark(**changed: Any) -> Watermark:
    """The same as a result, with other fields."""
    return Watermark.of({**DOCUMENT, **changed})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with secrets, in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    path = tmp_path / "floodmark.yaml"
    path.write_text(CONFIG)
    path.chmod(0o600)
    return path


# The modules right below the command line.
STEPS = {
    "sync": "floodmark.sync.run",
    "plan": "floodmark.sync.preview",
    "verify": "floodmark.verify.run",
    "watermark_get": "floodmark.watermark.show",
    "watermark_list": "floodmark.watermark.show",
    "watermark_set": "floodmark.watermark.set_reset",
}


@pytest.fixture
def pipeline(config: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A pipeline whose steps the test writes: everything below the command line, without services."""
    monkeypatch.setattr("floodmark.sync.early.never_synced", lambda *_: False)
    return monkeypatch


def does(pipeline: pytest.MonkeyPatch, **steps: Step) -> None:
    for name, step in steps.items():
        pipeline.setattr(f"{STEPS[name]}.{name}", step)


SOURCE = "source: {url: 'mysql://reader@db.internal/shop'}\n"
Load = Callable[[str], Config]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    def read(text: str) -> Config:
        file = tmp_path / "floodmark.yaml"
        file.write_text(text)
        return load(file)

    return read


def mistakes(read: Load, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.code == 2
    return caught.value.message


@pytest.fixture(scope="module", params=["compiled", "in Python"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rows are read with the compiled half and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in Python":
            patch.setattr(decoder, "compiled", None)
        yield
