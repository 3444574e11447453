"""What the store holds keeps its shape, to the byte: logs are chained by digests of these bytes, and every version reads them."""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from floodmark.log.document import Checkpoint
from floodmark.log.fold import State
from floodmark.model.commit import read_commit
from floodmark.model.json import digest, dump, load

STORED = sorted((Path(__file__).parent / "stored").glob("*.json"))
KEPT = Path(__file__).parents[2] / "kept_store" / "0.1.0"


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_every_kind_of_commit_and_a_state_are_written_as_they_were_read(file: Path) -> None:
    data = file.read_bytes()
    value = load(State, data) if file.stem.startswith("state") else read_commit(data)
    assert dump(value) == data


@pytest.mark.parametrize(
    ("layout", "commits", "checkpoints"),
    [
        (
            "folder",
            "bef4ac0752cd4a5c61c5c6e875d64d087ba06b29a2b32e61b214ed14134207f2",
            "7bb17c9fe651f1dd9a3c42f1751cd378187b2bbb41af97197ec7fa26ef1f5744",
        ),
        (
            "s3",
            "ddb07cfcabfb708ee9d1e4802bbbc16e33a48f8c9a4453f2636ea25608c0b59e",
            "757d1c74b3762dd8538c5fad3576b0d1dafba1d52c1a88629bcc3357717813f5",
        ),
    ],
)
def test_stored_bytes_of_an_earlier_version_are_written_unchanged(
    layout: str, commits: str, checkpoints: str
) -> None:
    logs, published = [], []
    with tarfile.open(KEPT / f"{layout}.tar.xz") as archive:
        for entry in sorted(archive, key=lambda entry: entry.name):
            file = archive.extractfile(entry)
            assert file is not None
            data = file.read()
            if entry.name.startswith("lake/commits/"):
                with suppress(ValueError):  # of the damaged log
                    logs.append(dump(read_commit(data)))
            elif entry.name.startswith("lake/watermark/") and b'"checkpoint"' in data:
                body = json.dumps(json.loads(data)["checkpoint"]["body"]).encode()
                published.append(dump(load(Checkpoint, body)))
    assert digest(b"\n".join(logs)) == commits
    assert digest(b"\n".join(published)) == checkpoints
