"""Finding secrets, and masking them in any text. Pure.

Every line that Floodmark writes passes through one `Scrubber`, which learns the secrets once the
configuration has been read.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

T = TypeVar("T")
MASK = "***"
_SECRET_NAMES = frozenset({"password", "secret_access_key", "access_key_id", "session_token", "passphrase"})
_SECRET_SETTING = re.compile(r"secret|password|passphrase|token|access[._-]?key", re.IGNORECASE)
# Our own hints say `user:password@`, so that stays; a real password "password" is masked once learned.
_URL_PASSWORD = re.compile(r"(?P<user>\b[a-z][a-z0-9+.-]*://[^\s:/@]*):(?!password@)[^\s@]+@", re.IGNORECASE)
# Shorter secrets are masked only as whole words: a password "a" must not mask every a.
_SHORT = 6


class Scrubber:
    """Masks learned secrets and URL passwords in any text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._secrets: set[str] = set()
        self.add(secrets)

    @classmethod
    def of(cls, config: object) -> Scrubber:
        """One that masks the secrets of a configuration."""
        return cls(_secrets_in(config))

    def add(self, secrets: Iterable[str]) -> None:
        """Masks these from now on, also as written in URLs, JSON and Python's repr."""
        for secret in secrets:
            if secret.strip():
                written = {secret, quote(secret, safe=""), quote_plus(secret)}
                written |= {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
                self._secrets |= written
        self._pattern = any_of(self._secrets, alone_below=_SHORT)

    def learn(self, value: object) -> None:
        """Masks every secret in a configuration: fields hidden from its repr, and well-known names."""
        self.add(_secrets_in(value))

    def __call__(self, text: str) -> str:
        text = _URL_PASSWORD.sub(rf"\g<user>:{MASK}@", text)
        return self._pattern.sub(MASK, text) if self._pattern else text


def masked(value: T, scrub: Callable[[str], str], most: int | None = None) -> T:
    """The same value with every text in it masked, and cut after `most` characters."""
    made: Any = value
    if isinstance(value, str):
        made = scrub(value)[:most]
    elif isinstance(value, dict):
        made = {name: masked(inner, scrub, most) for name, inner in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(masked(inner, scrub, most) for inner in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        made = dataclasses.replace(value, **masked(inner, scrub, most))
    return made  # type: ignore[no-any-return]


def in_setting(name: str, text: str) -> Iterator[str]:
    """The secrets in a Spark or Java setting: its value if the name suggests one, and any in `-Dname=value`."""
    if _SECRET_SETTING.search(name) and text.lower() not in ("true", "false"):
        yield text
    for inner, value in re.findall(r"-D([^=\s]+)=(\S+)", text):
        yield from in_setting(inner, value.strip("\"'"))


def _secrets_in(value: object) -> Iterator[str]:
    if isinstance(value, tuple):
        for each in value:
            yield from _secrets_in(each)
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name, None)
        secret = not field.repr or field.name in _SECRET_NAMES
        if isinstance(inner, str) and secret:
            yield inner
        elif isinstance(inner, tuple) and secret:
            yield from (text for text in inner if isinstance(text, str))
        elif isinstance(inner, dict):  # settings of another program, by name
            yield from (
                secret
                for name, text in inner.items()
                if isinstance(text, str)
                for secret in in_setting(name, text)
            )
        elif isinstance(inner, tuple) or dataclasses.is_dataclass(inner):
            yield from _secrets_in(inner)


def of_url(url: str) -> str:
    """The password in a URL as written, even if the URL is invalid; empty if there is none."""
    return url.partition("://")[2].rpartition("@")[0].partition(":")[2]


def any_of(
    texts: Iterable[str], alone_below: float, flags: re.RegexFlag = re.NOFLAG
) -> re.Pattern[str] | None:
    """A pattern for any of these texts, longest first; those shorter than `alone_below` only as whole words."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    parts = [
        re.escape(text) if len(text) >= alone_below else rf"(?<!\w){re.escape(text)}(?!\w)"
        for text in longest_first
    ]
    return re.compile("|".join(parts), flags) if parts else None
