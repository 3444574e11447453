"""What a report must not tell the world: hosts, accounts, buckets, users. Passwords and keys never get this far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floodmark.config import Config, WarehouseSpec
from floodmark.doctor.live.probe import Result

_SHORTEST = 3  # a name of fewer letters is part of too many words
_PATTERNS = (
    (
        re.compile(r"arn:(aws[\w-]*):(\w[\w-]*):([\w-]*):\d{12}:([\w-]+)[/:][^\s',\"]+"),
        r"arn:\1:\2:\3:<account>:\4/<name>",
    ),
    (re.compile(r"\b[\w.-]+\.amazonaws\.com(\.cn)?\b"), "<host>"),
    (re.compile(r"(?<=[:.])\d{12}(?=[:.])"), "<account>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)"), "<address>"),
)


class Mask:
    """Replaces what it was given, and what looks like an ARN, a host of AWS or an address."""

    def __init__(self, names: Mapping[str, str | None]) -> None:
        known = {text: word for word, text in names.items() if text and len(text) >= _SHORTEST}
        self._words = {text: word.partition(" ")[0] for text, word in known.items()}
        longest = sorted(known, key=len, reverse=True)
        parts = [rf"(?<![\w]){re.escape(text)}(?![\w])" for text in longest]
        self._pattern = re.compile("|".join(parts)) if parts else None

    @classmethod
    def of(cls, config: Config, second: WarehouseSpec | None = None) -> Mask:
        spec, store = config.warehouse, config.store
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        iam = spec.iam
        return cls(
            {
                "<host>": spec.host,
                "<user>": spec.user,
                "<database>": spec.database,
                "<user> second": second.user if second else None,
                "<bucket>": bucket,
                "<prefix>": prefix.strip("/"),
                "<endpoint>": store.endpoint,
                "<bastion>": spec.ssh.host if spec.ssh else None,
                "<bastion-user>": spec.ssh.user if spec.ssh else None,
                "<cluster>": iam.cluster if iam else None,
                "<workgroup>": iam.workgroup if iam else None,
                "<profile>": iam.profile if iam else None,
            }
        )

    def __call__(self, text: str) -> str:
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return self._pattern.sub(lambda found: self._words[found[0]], text) if self._pattern else text

    def all(self, value: Any) -> Any:
        """The same for texts inside lists and dictionaries."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(str(key)): self.all(inner) for key, inner in value.items()}
        return [self.all(inner) for inner in value] if isinstance(value, list | tuple) else value

    def result(self, result: Result) -> Result:
        return replace(result, found=self(result.found), details=self.all(result.details))
