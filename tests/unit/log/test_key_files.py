"""Key files lie in `keys/`; those that earlier versions wrote into `data/` are read, checked and cleaned alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.clean.choose import Selection
from floodmark.clean.command import s3clean_list, s3clean_orphans
from floodmark.clean.remove import Cleaning
from floodmark.config.load import Config, load
from floodmark.extract.keys import key_table, write_keys
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path
from floodmark.log.fold import NothingLeft
from floodmark.log.log import Log, draft
from floodmark.model.commit import DataFile, Deletes
from floodmark.store.store import Store
from floodmark.watermark.backups import watermark_drill
from floodmark.watermark.validate import watermark_validate
from floodmark.web.detail import count
from tests.support.samples import RUN, TABLE

PLACES = pytest.mark.parametrize("place", ["keys", "data"])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "floodmark.yaml"
    file.write_text("source: {url: mysql://reader@127.0.0.1:1/shop}\n")
    return load(file)


def lay(store: Store, place: str, claim: int = 1) -> DataFile:
    """A key file, put where this or an earlier version keeps it."""
    log = Log(store, TABLE.name).read().log
    keys = key_table(TABLE, [(1,), (2,)])
    (file,) = write_keys(store, TABLE, keys, run=RUN, claim=claim, log=log, kind="where")
    assert file.path.startswith(f"keys/{TABLE.name}/{RUN}/")
    moved = file.path.replace("keys/", f"{place}/", 1)
    if moved != file.path:
        store.put(moved, store.get(file.path) or b"")
        store.delete([file.path])
    return replace(file, path=moved)


def committed(store: Store, place: str) -> DataFile:
    """A log whose last commit names a key file, published."""
    log = Log(store, TABLE.name)
    taken = claim(log, log.read(), run=RUN, table=TABLE, purpose="sync")
    with taken.lease:
        file = lay(store, place)
        commit = draft(
            taken.state,
            Deletes,
            RUN,
            schema=TABLE.fingerprint,
            files=(file,),
            load_as="delete",
            purpose="where",
        )
        Publisher(store, TABLE.name, RUN).publish(log.append(taken.state, commit), [])
    return file


@PLACES
def test_key_files_are_listed_validated_counted_and_survive_a_drill(config: Config, place: str) -> None:
    store = Store(config.store)
    file = committed(store, place)
    (listed,) = s3clean_list(config, [TABLE.name])["files"]
    assert (listed["uri"], listed["state"], listed["rows"]) == (store.uri(file.path), "pending", 2)
    assert watermark_validate(config, [TABLE.name], run="20250101_000000_test")["ok"]
    assert (count(store).lines[0].objects, count(store).lines[1].objects) == (1, 0)
    assert watermark_drill(config, [TABLE.name])["ok"]
    store.delete([file.path])
    found = watermark_validate(config, [TABLE.name], run="20250101_000000_test")
    assert [f["kind"] for f in found["tables"][0]["findings"]] == ["missing_file"]


@PLACES
def test_a_key_file_that_no_commit_names_is_an_orphan_and_goes(config: Config, place: str) -> None:
    store = Store(config.store)
    kept = committed(store, place)
    stray = lay(store, place, claim=9)
    found = watermark_validate(config, [TABLE.name], run="20250101_000000_test")
    assert [f["kind"] for f in found["tables"][0]["findings"]] == ["orphan"]
    gone = s3clean_orphans(config, [TABLE.name], "20250102_000000_test", Selection())
    assert [f["uri"] for f in gone["files"]] == [store.uri(stray.path)]
    assert store.get(stray.path) is None and store.get(kept.path) is not None


def test_an_orphan_that_a_run_commits_before_the_clean_has_claimed_the_table_stays(config: Config) -> None:
    store = Store(config.store)
    committed(store, "keys")
    named, stray = lay(store, "keys", claim=8), lay(store, "keys", claim=9)

    def meanwhile(shown: Sequence[Cleaning]) -> None:
        assert {f.path for f in shown[0].removal.files} == {named.path, stray.path}
        log = Log(store, TABLE.name)
        taken = claim(log, log.read(), run=RUN, purpose="deletes")
        with taken.lease:
            commit = draft(
                taken.state, Deletes, RUN, schema=TABLE.fingerprint, files=(named,), load_as="delete"
            )
            log.append(taken.state, commit)

    gone = s3clean_orphans(config, [TABLE.name], "20250102_000000_test", Selection(), confirm=meanwhile)
    assert [f["uri"] for f in gone["files"]] == [store.uri(stray.path)]
    assert store.get(stray.path) is None and store.get(named.path) is not None


@PLACES
def test_a_lost_commit_of_keys_is_rebuilt_from_its_file(
    config: Config, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.copies.TAIL_COMMITS", 0)
    store = Store(config.store)
    file = committed(store, place)
    log = Log(store, TABLE.name)
    n = log.read().n
    store.delete([commit_path(TABLE.name, n)])
    commit, _ = log.commit(n)
    assert isinstance(commit, Deletes) and commit.purpose == "where" and commit.load_as == "delete"
    assert [f.path for f in commit.files] == [file.path]


@PLACES
def test_key_files_alone_are_a_sign_that_the_table_had_state(config: Config, place: str) -> None:
    store = Store(config.store)
    committed(store, place)
    lost = [o.path for o in store.list("") if not o.path.startswith(("data/", "keys/"))]
    store.delete(lost)
    with pytest.raises(NothingLeft, match="1 data files"):
        Log(store, TABLE.name).read()


def test_keys_of_rows_outside_where_do_not_count_as_a_search_for_deletes(config: Config) -> None:
    store = Store(config.store)
    committed(store, "keys")
    assert Log(store, TABLE.name).read().extraction.deletes_at is None
