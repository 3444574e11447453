"""Checks the store: that it can be reached, the rights, and that a second create of an object is refused.

Everything rests on that refusal: two runs that both create commit 42 must not both succeed. It is proved with a real
object, which is removed again, as are the folders made for it.
"""

from __future__ import annotations

import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

from floodmark.config.load import Config, StoreSpec
from floodmark.log import pipeline
from floodmark.log.copies import check_owner
from floodmark.model.errors import FloodmarkError
from floodmark.model.text import duration
from floodmark.setup.doctor.check import Check, Section, nearby, reach
from floodmark.store.folder import PARTS
from floodmark.store.places import Place
from floodmark.store.store import Store

SECTION = Section("store")
PROBES = "probe/"
SKEW_SECONDS = 60.0
REFUSED_SECONDS = 900.0  # beyond this, S3 rejects signatures
ANSWER_SECONDS = 4.0
_PROBE = b'{"probe": 1}'
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
            store = Store(spec)
        except FloodmarkError as error:
            yield SECTION.failed("open", error)
            return
        readable = True
        for check in prove(store):
            yield check
            readable = readable and (check.name, check.status) != ("read", "failure")
        if not readable:
            yield from SECTION.skipped("pipeline", "see read")
            return
        yield SECTION.tried("pipeline", lambda: _owner(store, config))
        yield from (_further(store, place) for place in store.places)


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
        hint = "use https:// in store.endpoint, if the server has it"
        yield SECTION.warning("TLS", f"rows travel to {host} in plain text", hint)
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
    wrong = f"{said}: leases end early or late" if abs(skew) > SKEW_SECONDS else None
    fine = "the same as this machine's, to the second" if abs(skew) < 1 else said
    return SECTION.check("clock", fine, wrong, "synchronize the clock (NTP)")


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
    path, written, steps = f"{PROBES}{uuid4().hex}.json", False, list(_STEPS[:-1])

    def made(fine: str, wrong: str | None = None, hint: str = "") -> Check:
        step = steps.pop(0)
        return SECTION.ok(step, fine) if wrong is None else SECTION.failure(step, wrong, hint)

    began = time.monotonic()
    try:
        store.get(path)
        yield made(f"round trip {(time.monotonic() - began) * 1000:.1f} ms")
        written = True  # also when the answer is lost
        twice = not store.create(path, _PROBE)
        twice = store.create(path, b"{}") or twice
        wrong = None if store.get(path) == _PROBE else "does not return what was just written"
        wrong = "lets an object be created twice: it must refuse the second create" if twice else wrong
        yield made(
            "an object can be created only once",
            wrong and f"{store.uri('')} {wrong}",
            "use a store with conditional writes (If-None-Match: *) and consistent reads, such as AWS S3; a proxy in "
            "between may drop that header",
        )
        listed = list(store.list(PROBES))
        unseen = all(item.path != path for item in listed)
        wrong = "an object that was just written is not listed" if unseen else None
        yield made("a new object is listed at once", wrong, "the store must list consistently")
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        store.delete(
            [path, *(item.path for item in listed if item.modified < long_ago and item.path != path)]
        )
        written = store.get(path) is not None
        wrong = "a deleted object is still there" if written else None
        yield made("the probe was removed", wrong, "allow s3:DeleteObject on the prefix")
    except FloodmarkError as error:
        yield SECTION.failed(steps[0], error)
        yield from SECTION.skipped(steps[1:], f"see {steps[0]}")
    finally:
        if written:
            with suppress(FloodmarkError):
                store.delete([path])


def _owner(store: Store, config: Config) -> str:
    """Which pipeline the prefix belongs to."""
    found = pipeline.check(store, config.warehouse.label)
    if found is None:
        return f"{store.uri('')} has none yet: the first sync creates it"
    return f"{found.id[:12]}, into {found.warehouse}, since {found.created_at[:10]}"


def _further(store: Store, place: Place) -> Check:
    """A further place of copies: whether it belongs to this pipeline, and returns what is written to it.

    A failure is only a warning: it stops nothing but the sync of a new or lost store, which the pipeline's check covers.
    """
    path, name = f"{PROBES}{uuid4().hex}.json", "copies_to"
    try:
        with _left_as_it_was(place.label):
            check_owner(store, place.store, store.get(pipeline.PATH))
            place.store.put(path, _PROBE)
            same = place.store.get(path) == _PROBE
            place.store.delete([path])
    except FloodmarkError as error:
        message = " ".join(error.message.split())
        return SECTION.warning(name, f"{place.label}: {message}: no copies are written there", error.hint)
    wrong = None if same else f"{place.label} does not return what was just written"
    fine = f"{place.label}{', with the log' if place.with_log else ''}"
    return SECTION.check(name, fine, wrong, "check that place")


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


# ---------------------------------------------------------------- buckets


@dataclass(frozen=True)
class BucketHead:
    """What the server says about a bucket."""

    region: str | None = None
    skew: float | None = None  # the server's clock minus this machine's; whole seconds


def bucket_head(url: str, endpoint: str | None) -> BucketHead:
    """Asks for the bucket of `s3://bucket/prefix`; unanswered fields stay None."""
    bucket = url.removeprefix("s3://").partition("/")[0]
    # Not by the bucket's own host name: with a dot in it, AWS's certificate does not match.
    base = (endpoint or "https://s3.amazonaws.com").rstrip("/")
    request = urllib.request.Request(f"{base}/{quote(bucket)}", method="HEAD")
    began = time.time()
    try:
        with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return BucketHead()
    return BucketHead(headers.get("x-amz-bucket-region"), _skew(headers.get("Date"), began, time.time()))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the redirecting answer is the one that names the Region."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


def _skew(date: str | None, began: float, ended: float) -> float | None:
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    # The header has whole seconds: the moment is somewhere within that second.
    if began - 1 <= server <= ended:
        return 0.0
    return server - ended if server > ended else server + 1 - began
