"""Durable steps of the object store: each file given its final name, each object put or deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from labinject.plan import PLAN, once

_told = threading.local()


def label(path: str, data: Any = b"") -> str:
    """The kind of object, without names and numbers."""
    if path.startswith("commits/"):
        try:
            body = json.loads(bytes(data))
            return f"commit {body['kind']}"
        except (ValueError, TypeError, KeyError):
            return "commit"
    for start, name in (
        ("data/", "data file"),
        ("keys/", "data file"),
        ("watermark/tables/", "watermark primary"),
        ("watermark/backups/daily/", "watermark daily"),
        ("watermark/backups/sessions/", "watermark session"),
        ("watermark/", "system watermark"),
        ("leases/", "lease"),
        ("runs/", "run report"),
        ("pipeline.json", "pipeline.json"),
        ("damaged/", "damaged, put aside"),
    ):
        if path.startswith(start):
            return name
    return "other object"


@contextmanager
def _about(path: str, data: Any) -> Iterator[None]:
    """Pass a label down to the folder's `_place`, which sees only a path and not what is written there."""
    _told.label = label(path, data)
    try:
        yield
    finally:
        _told.label = None


def install() -> None:
    """Wrap the store's two clients; once per process."""
    from floodmark.store import folder, s3

    if once(folder.Folder):
        _folder(folder.Folder)
        _bucket(s3.Bucket)


def _folder(kind: Any) -> None:
    create, place, delete = kind.create, kind._place, kind.delete

    def created(self: Any, path: str, data: bytes) -> bool:
        with _about(path, data):
            return bool(create(self, path, data))

    def placed(self: Any, path: str, move: Any) -> None:
        what = getattr(_told, "label", None) or label(path)
        PLAN.step(what, lambda: place(self, path, move), lambda: _no_answer(path))

    def gone(self: Any, paths: Sequence[str]) -> None:
        for path in paths:
            PLAN.step(f"delete {label(path)}", partial(delete, self, [path]))

    kind.create, kind._place, kind.delete = created, placed, gone


def _bucket(kind: Any) -> None:
    create, put, delete = kind.create, kind.put, kind.delete

    def created(self: Any, path: str, data: bytes) -> bool:
        done = PLAN.step(label(path, data), lambda: create(self, path, data), lambda: _no_answer(path))
        return bool(done)

    def stored(self: Any, path: str, data: Any) -> Any:
        return PLAN.step(label(path, data), lambda: put(self, path, data))

    def gone(self: Any, paths: Sequence[str]) -> None:
        kinds = sorted({label(path) for path in paths})
        PLAN.step(f"delete {', '.join(kinds)}", lambda: delete(self, paths))

    kind.create, kind.put, kind.delete = created, stored, gone


def _no_answer(path: str) -> BaseException:
    from floodmark.model.errors import NoAnswer

    return NoAnswer(f"the laboratory lost the answer about {path}", hint="run again")
