"""What a sync removes once a day, besides old copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from floodmark.clean.copies import Keep, clean_daily
from floodmark.config.load import CopiesTo, StoreSpec
from floodmark.store.places import finish
from floodmark.store.store import Store


def test_manifests_of_killed_loads_are_removed_after_a_day(tmp_path: Path) -> None:
    store = Store(StoreSpec(url=str(tmp_path)))
    path, data = "manifests/s.t/run-ab12-0.manifest", "data/s.t/run/1.parquet"
    for name in (path, data):
        store.put(name, b"{}")
    now, keep = datetime.now(UTC), Keep.all(7)
    clean_daily(store, keep, now + timedelta(hours=23))
    assert store.get(path) is not None
    clean_daily(store, keep, now + timedelta(hours=49))
    assert store.get(path) is None and store.get(data) is not None


def test_documents_of_runs_are_removed_after_thirty_days(tmp_path: Path) -> None:
    store = Store(StoreSpec(url=str(tmp_path)))
    now = datetime(2026, 3, 20, tzinfo=UTC)
    old, new, other = "runs/20260217_235959_ab12.json", "runs/20260218_000000_ab12.json", "runs/notes.txt"
    for name in (old, new, other):
        store.put(name, b"{}")
    clean_daily(store, Keep.all(7), now)
    assert store.get(old) is None and store.get(new) is not None and store.get(other) is not None


def test_old_copies_are_removed_from_this_pipeline_s_place_and_not_from_another_s(tmp_path: Path) -> None:
    place = Store(StoreSpec(url=str(tmp_path / "place")))
    old, new = (f"watermark/backups/daily/s.t_{day}.json" for day in ("20260101", "20260319"))
    for path in (old, new):
        place.put(path, b"{}")
    place.put("pipeline.json", b'{"id": "ours"}')
    for name, left in (("another", [old, new]), ("ours", [new])):
        to = (CopiesTo(place.spec.url),)
        store = Store(StoreSpec(url=str(tmp_path / name), copies_to=to))
        store.put("pipeline.json", b'{"id": "%s"}' % name.encode())
        clean_daily(store, Keep.all(7), datetime(2026, 3, 20, tzinfo=UTC))
        finish(store.places, 30)
        assert [item.path for item in place.list("watermark/")] == left
