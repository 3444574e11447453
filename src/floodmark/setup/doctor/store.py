"""Checks the store: that it can be reached, the rights, and that a second create of an object is refused.

Everything rests on that refusal: two runs that both create commit 42 must not both succeed. It is proved with a real
object, which is removed again, as are the folders made for it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from floodmark.config.load import Config, StoreSpec
from floodmark.log import pipeline
from floodmark.log.copies import check_owner
from floodmark.model.errors import FloodmarkError
from floodmark.model.text import duration
from floodmark.setup.doctor.check import Check, Section
from floodmark.setup.doctor.reach import bucket_head, nearby, reach
from floodmark.store.folder import PARTS
from floodmark.store.places import Place
from floodmark.store.store import Store

SECTION = Section("store")
PROBES = "probe/"
SKEW_SECONDS = 60.0
REFUSED_SECONDS = 900.0  # beyond this, S3 rejects signatures
_STEPS = ("read", "create", "list", "delete", "pipeline")


def examine_store(config: Config) -> Iterator[Check]:
    """Whether it can be reached, the privileges, and the proof."""
    spec = config.store
    bucket = spec.url.startswith("s3://")
    way = _to_bucket(spec) if bucket else _to_folder(Path(spec.url))
    if (yield from SECTION.in_order(way, _STEPS)) is not None:
        return
    with _left_as_it_was(spec.url):
        try:
            store, readable = Store(spec), True
            for check in prove(store):
                yield check
                readable = readable and (check.name, check.status) != ("read", "failure")
            yield from [_owner(store, config)] if readable else SECTION.skipped("pipeline", "see read")
            yield from (_further(store, place) for place in store.places if readable)
        except FloodmarkError as error:
            yield SECTION.failed("open", error)


# ---------------------------------------------------------------- the way there


def _to_bucket(spec: StoreSpec) -> Iterator[Check]:
    endpoint = urlsplit(spec.endpoint or f"https://s3.{spec.region or 'us-east-1'}.amazonaws.com")
    host, secure = endpoint.hostname or "", endpoint.scheme == "https"
    proxied = os.environ.get("HTTPS_PROXY" if secure else "HTTP_PROXY") or os.environ.get("ALL_PROXY")
    if proxied and not nearby(host):
        yield SECTION.ok("port", f"{host} is reached through a proxy")
    else:
        yield from reach(SECTION, host, endpoint.port or (443 if secure else 80))
    if not secure and not nearby(host):
        yield SECTION.warning(
            "TLS",
            f"rows travel to {host} in plain text",
            "use https:// in store.endpoint, if the server has it",
        )
    there = bucket_head(spec.url, spec.endpoint)
    if there.skew is not None:
        yield clock(there.skew)
    if there.region:
        yield _region(spec, there.region)


def clock(skew: float) -> Check:
    """The store's clock against this machine's."""
    way = "behind" if skew > 0 else "ahead of"
    said = f"this machine's clock is {duration(abs(skew))} {way} the store's"
    if abs(skew) > REFUSED_SECONDS:
        return SECTION.failure("clock", f"{said}: S3 rejects such requests", "synchronize the clock (NTP)")
    if abs(skew) > SKEW_SECONDS:
        return SECTION.warning("clock", f"{said}: leases end early or late", "synchronize the clock (NTP)")
    return SECTION.ok("clock", "the same as this machine's, to the second" if abs(skew) < 1 else said)


def _region(spec: StoreSpec, region: str) -> Check:
    told = spec.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if told and told != region and spec.endpoint is None:
        return SECTION.failure(
            "region", f"the bucket is in {region}, but {told} is configured", f"set store.region: {region}"
        )
    return SECTION.ok("region", region)


def _to_folder(folder: Path) -> Iterator[Check]:
    """The folder, or where it will be created, and the space there."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        yield SECTION.failure("folder", f"{there} is a file, not a folder", "change store.url")
    where = str(folder) if there == folder else f"{folder} (the first sync creates it)"
    yield SECTION.space("folder", there, where, "free some space: staged files are kept")
    if there == folder and folder.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH):
        yield SECTION.warning("rights", f"{folder}: other users can read it", f"chmod -R go= {folder}")


# ---------------------------------------------------------------- the proof


def prove(store: Store) -> Iterator[Check]:
    """Reads, creates twice, lists, deletes: one by one, so that a missing privilege is named."""
    path, ours = f"{PROBES}{uuid4().hex}.json", b'{"probe": 1}'
    written, steps = False, iter(_STEPS)
    step = next(steps)
    began = time.monotonic()
    try:
        store.get(path)
        yield SECTION.ok(step, f"round trip {(time.monotonic() - began) * 1000:.1f} ms")
        step, written = next(steps), True  # also when the answer is lost
        twice = not store.create(path, ours)
        twice = store.create(path, b"{}") or twice
        kept = store.get(path) == ours
        if twice or not kept:
            yield SECTION.failure(
                step,
                f"{store.uri('')} lets an object be created twice: it must refuse the second create"
                if twice
                else f"{store.uri('')} does not return what was just written",
                "use a store with conditional writes (If-None-Match: *) and consistent reads, such as AWS S3; a proxy in "
                "between may drop that header",
            )
        else:
            yield SECTION.ok(step, "an object can be created only once")
        step = next(steps)
        listed = list(store.list(PROBES))
        if not any(item.path == path for item in listed):
            yield SECTION.failure(
                step, "an object that was just written is not listed", "the store must list consistently"
            )
        else:
            yield SECTION.ok(step, "a new object is listed at once")
        step = next(steps)
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        store.delete(
            [path, *(item.path for item in listed if item.modified < long_ago and item.path != path)]
        )
        if store.get(path) is not None:
            yield SECTION.failure(
                step, "a deleted object is still there", "allow s3:DeleteObject on the prefix"
            )
        else:
            written = False
            yield SECTION.ok(step, "the probe was removed")
    except FloodmarkError as error:
        yield SECTION.failed(step, error)
        yield from SECTION.skipped([name for name in steps if name != "pipeline"], f"see {step}")
    finally:
        if written:
            with suppress(FloodmarkError):
                store.delete([path])


def _owner(store: Store, config: Config) -> Check:
    """Which pipeline the prefix belongs to."""
    try:
        found = pipeline.check(store, config.warehouse.label)
    except FloodmarkError as error:
        return SECTION.failed("pipeline", error)
    if found is None:
        return SECTION.ok("pipeline", f"{store.uri('')} has none yet: the first sync creates it")
    return SECTION.ok("pipeline", f"{found.id[:12]}, into {found.warehouse}, since {found.created_at[:10]}")


def _further(store: Store, place: Place) -> Check:
    """A further place of copies: whether it belongs to this pipeline, and returns what is written to it.

    A failure is only a warning: it stops nothing but the sync of a new or lost store, which the pipeline's check covers.
    """
    path, ours = f"{PROBES}{uuid4().hex}.json", b'{"probe": 1}'
    try:
        with _left_as_it_was(place.label):
            check_owner(store, place.store, store.get(pipeline.PATH))
            place.store.put(path, ours)
            same = place.store.get(path) == ours
            place.store.delete([path])
    except FloodmarkError as error:
        said = f"{place.label}: {' '.join(error.message.split())}: no copies are written there"
        return SECTION.warning("copies_to", said, error.hint)
    if not same:
        return SECTION.warning(
            "copies_to", f"{place.label} does not return what was just written", "check that place"
        )
    return SECTION.ok("copies_to", f"{place.label}{', with the log' if place.with_log else ''}")


@contextmanager
def _left_as_it_was(url: str) -> Iterator[None]:
    """Removes the empty folders that a probe creates, if the place is a folder."""
    folder = Path(url)
    new = [each for each in (folder / PARTS, folder, *folder.parents) if not each.exists()]
    try:
        yield
    finally:
        if not url.startswith("s3://"):
            with suppress(OSError):
                for each in new:
                    if each.exists():
                        each.rmdir()
