"""The keys that requests to S3 are signed with: configured, from a profile, or left to the client."""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.config.load import StoreSpec
from floodmark.model.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Credential


def signing_keys(spec: StoreSpec) -> Callable[[], S3Credential] | None:
    """The keys to sign with; None leaves it to the client: variables, web identity, container, instance."""
    if spec.access_key_id is not None:
        fixed: S3Credential = {
            "access_key_id": spec.access_key_id,
            "secret_access_key": spec.secret_access_key or "",
            "token": None,
            "expires_at": None,
        }
        return lambda: fixed
    if any(
        os.environ.get(f"AWS_{name}")
        for name in ("ACCESS_KEY_ID", "WEB_IDENTITY_TOKEN_FILE", "SKIP_SIGNATURE")
    ):
        return None
    return _profile if _profile_section() is not None else None


def _profile() -> S3Credential:
    section = _profile_section() or {}
    return {
        "access_key_id": section.get("aws_access_key_id", ""),
        "secret_access_key": section.get("aws_secret_access_key", ""),
        "token": section.get("aws_session_token"),
        "expires_at": datetime.now(UTC)
        + timedelta(minutes=5),  # then the file is read again, since keys rotate
    }


def _profile_section() -> dict[str, str] | None:
    """The profile with keys in AWS's credentials file, which the client does not read itself."""
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    wanted = os.environ.get("AWS_PROFILE")
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        parser.read(file, encoding="utf-8")
    name = wanted or "default"
    section = dict(parser[name]) if parser.has_section(name) else {}
    if "aws_access_key_id" in section and "aws_secret_access_key" in section:
        return section
    if wanted:
        raise ConfigError(
            f"AWS profile {wanted} has no keys in {file}",
            hint=f"for SSO or roles: eval $(aws configure export-credentials --profile {wanted} --format env)",
        )
    return None
