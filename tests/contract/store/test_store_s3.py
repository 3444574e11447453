"""What is special to S3 as a store: its bucket, keys, and where they come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import ConfigError
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.store_addresses import s3_spec


def test_a_bucket_that_does_not_exist_is_a_config_error_on_first_use(seaweed: SeaweedFS) -> None:
    for use in (
        lambda store: store.get("a"),
        lambda store: store.create("a", b"x"),
        lambda store: store.put("a", b"x"),
        lambda store: list(store.list("a/")),
        lambda store: store.delete(["a"]),
    ):
        with pytest.raises(ConfigError, match="bucket no-such-bucket does not exist"):
            use(Store(s3_spec(seaweed, "x", bucket="no-such-bucket")))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("nobody", "wrong-secret"), "keys are not valid"),
        (("floodmark-writer", "wrong-secret"), "keys are not valid"),
    ],
)
def test_wrong_keys_are_a_config_error_that_shows_no_secret(
    seaweed: SeaweedFS, keys: tuple[str, str], said: str
) -> None:
    store = Store(s3_spec(seaweed, "x", keys=keys))
    for use in (lambda: store.get("a"), lambda: store.create("a", b""), lambda: list(store.list(""))):
        with pytest.raises(ConfigError, match=said) as caught:
            use()
        assert "wrong-secret" not in repr(caught.value) + str(caught.value.hint)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_a_reader_can_read_and_gets_an_error_when_it_writes(seaweed: SeaweedFS) -> None:
    Store(s3_spec(seaweed, "ro")).put("there", b"1")
    store = Store(s3_spec(seaweed, "ro", keys=seaweed.reader))
    assert store.get("there") == b"1"
    for write in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.delete(["there"]),
    ):
        with pytest.raises(ConfigError, match="access denied"):
            write()


def test_configured_keys_and_endpoint_win_over_the_environment(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_SESSION_TOKEN": "another",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Store(s3_spec(seaweed, "env")).get("none") is None


def test_without_configured_keys_the_environment_then_the_profile_is_used(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = StoreSpec(f"s3://{seaweed.bucket}/chain", seaweed.endpoint)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    key, secret = seaweed.writer
    file.write_text(
        f"[other]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n[sso]\nsso_x = 1\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert Store(spec).get("none") is None
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(ConfigError, match="AWS profile sso has no keys"):
        Store(spec)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert Store(spec).get("none") is None


def test_no_credentials_at_all_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no AWS credentials"):
        Store(StoreSpec("s3://lake/x", "http://127.0.0.1:1")).get("a")
