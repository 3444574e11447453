"""Helpers for tests of stores: an address on the S3 server, and the paths of a listing."""

from __future__ import annotations

from floodmark.config.load import StoreSpec
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store


def s3_spec(
    seaweed: SeaweedFS, prefix: str, *, bucket: str | None = None, keys: tuple[str, str] | None = None
) -> StoreSpec:
    key, secret = keys or seaweed.writer
    return StoreSpec(
        f"s3://{bucket or seaweed.bucket}/{prefix}", seaweed.endpoint, seaweed.region, key, secret
    )


def paths(store: Store, prefix: str, start_after: str | None = None) -> list[str]:
    return [item.path for item in store.list(prefix, start_after)]
