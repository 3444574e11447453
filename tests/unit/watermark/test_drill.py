"""`watermark drill`: what it says can be recovered is recovered, and the drill itself touches nothing."""

from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import Config, CopiesTo, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.log import pipeline
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path, primary_path
from floodmark.log.log import Log
from floodmark.model.results import DrillResult
from floodmark.model.times import stamp
from floodmark.setup.doctor.store import examine_store
from floodmark.store.places import finish
from floodmark.store.store import Store
from floodmark.watermark.backups import losses, watermark_drill
from tests.support.samples import RUN
from tests.support.watermark_copies import NAME, OTHER, batches, claimed, content, published


def configured(folder: Path, *, places: int = 0, log: bool = False) -> Config:
    further = tuple(CopiesTo(str(folder / f"place{n}"), log=log) for n in range(places))
    return Config(
        path=folder / "floodmark.yaml",
        source=SourceSpec("localhost", 1, "nobody", ""),
        store=StoreSpec(url=str(folder / "lake"), copies_to=further),
        warehouse=WarehouseSpec("duckdb", "main", path=folder / "w.duckdb"),
    )


def filled(config: Config, count: int = 5) -> Store:
    store = Store(config.store)
    pipeline.establish(store, config.warehouse.label, stamp())
    published(store, count=count)
    finish(store.places)
    return store


def drilled(config: Config, *names: str) -> tuple[DrillResult, dict[tuple[str, ...], dict[str, Any]]]:
    document = watermark_drill(config, names or (NAME,))
    return document, {tuple(d["lost"]): d for d in document["tables"][0]["drills"]}


def test_each_loss_is_recovered_from_what_is_left_and_nothing_is_written(tmp_path: Path) -> None:
    config = configured(tmp_path)
    store = filled(config)
    before = content(store, "")
    document, found = drilled(config)
    assert document["ok"] and document["exit_code"] == 0
    assert {lost: drill["from"] for lost, drill in found.items()} == {
        ("primary",): "daily",
        ("daily",): "primary",
        ("sessions",): "primary",
        ("primary", "daily", "sessions"): "log",
        ("log",): "primary",
        ("log", "primary"): "daily",
        ("log", "daily"): "primary",
        ("log", "sessions"): "primary",
    }
    assert all(d["recovered"] and d["commit"] == 7 and d["seconds"] >= 0 for d in found.values())
    assert found["log",]["commits_put_back"] == 8 and found["log",]["commits_lost"] == 0
    assert content(store, "") == before


def test_the_part_of_a_long_log_that_copies_do_not_carry_is_reported(tmp_path: Path) -> None:
    config = configured(tmp_path)
    filled(config, count=60)
    _, found = drilled(config)
    lost = found["log",]
    assert (
        lost["recovered"] and lost["commits_put_back"] + lost["commits_lost"] == 63 and lost["commits_lost"]
    )


def test_each_further_place_alone_brings_back_the_whole_store(tmp_path: Path) -> None:
    config = configured(tmp_path, places=2, log=True)
    store = filled(config, count=60)
    before = [content(s, "") for s in (store, *(p.store for p in store.places))]
    document = watermark_drill(config, (NAME,))
    whole = [d for d in document["tables"][0]["drills"] if d["lost"] == ["store"]]
    assert document["ok"] and len(whole) == 2
    for n, drill in enumerate(whole):
        assert drill["from"] == "copies_to" and f"place{n}" in drill["copy"]
        assert drill["commits_put_back"] == 63 and drill["commits_lost"] == 0
    assert [content(s, "") for s in (store, *(p.store for p in store.places))] == before


def test_a_place_that_was_never_written_is_exit_code_7(tmp_path: Path) -> None:
    plain = configured(tmp_path)
    filled(plain)
    document, found = drilled(configured(tmp_path, places=1))
    assert not document["ok"] and document["exit_code"] == 7
    assert [lost for lost, d in found.items() if not d["recovered"]] == [
        ("log", "primary", "daily", "sessions"),
        ("store",),
    ]
    assert "start over" in found["store",]["detail"]


def test_pending_files_are_not_in_a_place(tmp_path: Path) -> None:
    config = configured(tmp_path, places=1)
    store = filled(config)
    log = Log(store, NAME)
    state = batches(log, claimed(log, "later"), 1)
    Publisher(store, NAME, RUN, log=log).publish(state, None)
    finish(store.places)
    document, found = drilled(config)
    assert document["exit_code"] == 7
    assert found["store",]["commit"] == state.n and "waiting to be loaded" in found["store",]["detail"]
    assert all(d["recovered"] for lost, d in found.items() if lost != ("store",))


def test_copies_that_were_damaged_before_are_no_help(tmp_path: Path) -> None:
    config = configured(tmp_path)
    store = filled(config)
    for item in [*store.list("watermark/backups/")]:
        store.put(item.path, b"{}")
    document, found = drilled(config)
    assert document["exit_code"] == 7
    assert [lost for lost, d in found.items() if not d["recovered"]] == [("log", "primary")]
    assert found["primary",]["from"] == "log"


def test_an_already_lost_table_is_reported_with_the_others(tmp_path: Path) -> None:
    config = configured(tmp_path)
    store = filled(config)
    published(store, OTHER)
    taken = [o.path for o in store.list("") if OTHER in o.path and not o.path.startswith("leases/")]
    store.delete(p for p in taken if p != primary_path(OTHER))
    store.put(primary_path(OTHER), b"{}")
    document = watermark_drill(config, all_tables=True)
    by_name = {t["table"]: t for t in document["tables"]}
    assert document["exit_code"] == 6 and by_name[NAME]["ok"]
    assert by_name[OTHER]["error"]["code"] == 6 and not by_name[OTHER]["drills"]


def test_a_view_after_a_loss_hides_what_is_lost_and_keeps_writes_to_itself(tmp_path: Path) -> None:
    store = filled(configured(tmp_path))
    path = commit_path(NAME, 3)
    view = store.after_losing(lambda p: p == path)
    assert view.get(path) is None and view.end(path, 9) is None
    assert path not in [o.path for o in view.list("commits/")]
    assert view.create(path, b"x") and not view.create(path, b"y") and view.get(path) == b"x"
    assert path in [o.path for o in view.list(f"commits/{NAME}/")] and view.folders("commits/") == (NAME,)
    view.delete([commit_path(NAME, 4)])
    assert view.get(commit_path(NAME, 4)) is None and store.get(commit_path(NAME, 4)) is not None
    view.put("watermark/x/y.json", b"z")
    assert "x" in view.folders("watermark/") and store.get("watermark/x/y.json") is None
    assert view.uri(path) == store.uri(path)
    to = tmp_path / "out"
    view.download(path, to)
    assert to.read_bytes() == b"x" and view.local(path) is None


@pytest.mark.parametrize("places", [0, 1])
def test_losses_are_named_by_what_is_lost(tmp_path: Path, places: int) -> None:
    named = [loss.lost for loss in losses(Store(configured(tmp_path, places=places).store), NAME)]
    assert len(named) == len(set(named)) == 8 + 2 * places


def test_doctor_tries_each_place_and_leaves_nothing_there(tmp_path: Path) -> None:
    config = configured(tmp_path, places=2, log=True)
    filled(configured(tmp_path, places=1, log=True))
    before = content(Store(config.store.copies_to[0].store), "")
    (tmp_path / "place1").write_text("in the way")
    good, bad = [check for check in examine_store(config) if check.name == "copies_to"]
    assert good.status == "ok" and "place0, with the log" in good.detail
    assert bad.status == "warning" and "no copies are written there" in bad.detail
    assert content(Store(config.store.copies_to[0].store), "") == before
