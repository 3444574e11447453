"""What a report must not tell the world: hosts, accounts, buckets, users. Passwords and keys never get this far."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from floodmark.config import Config, WarehouseSpec
from floodmark.doctor.live.probe import Result

_SHORTEST = 3  # a name of fewer letters is part of too many words
_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (
            r"arn:(aws[\w-]*):(\w[\w-]*):([\w-]*):\d{12}:([\w-]+)[/:][^\s',\"]+",
            r"arn:\1:\2:\3:<account>:\4/<name>",
        ),
        (r"arn:(aws[\w-]*):s3:::[^\s',\"]+", r"arn:\1:s3:::<name>"),
        (r"(?<![\w:])(IAM[AR]?):[^\s',\"]+", r"\1:<user>"),  # who has logged in by IAM
        (r"\b[\w.-]+\.amazonaws\.com(\.cn)?\b", "<host>"),
        # Neither a part of a decimal nor the costs in a plan.
        (r"(?<!\w)(?<!\d\.)(?<!\.\.)\d{12}(?!\w)(?!\.\d)", "<account>"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)", "<address>"),
    )
)


class Mask:
    """Replaces what it was given, in any case, and what looks like an ARN, an account, a host of AWS or an address."""

    def __init__(self, names: Mapping[str, Iterable[str | None]]) -> None:
        """`names`: by the word that stands for them."""
        self._words: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        for word, texts in names.items():
            self.add(word, *texts)

    @classmethod
    def of(cls, config: Config, second: WarehouseSpec | None = None) -> Mask:
        spec, store = config.warehouse, config.store
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        iam = spec.iam
        return cls(
            {
                "<host>": [spec.host],
                "<user>": [spec.user, second.user if second else None],
                "<database>": [spec.database],
                "<bucket>": [bucket],
                "<prefix>": [prefix.strip("/")],
                "<endpoint>": [store.endpoint],
                "<bastion>": [spec.ssh.host if spec.ssh else None],
                "<bastion-user>": [spec.ssh.user if spec.ssh else None],
                "<cluster>": [iam.cluster if iam else None],
                "<workgroup>": [iam.workgroup if iam else None],
                "<profile>": [iam.profile if iam else None],
            }
        )

    def add(self, word: str, *texts: str | None) -> None:
        """Replace these texts, too, by a word."""
        for text in texts:
            if text and len(text) >= _SHORTEST:
                self._words.setdefault(text.lower(), word)
        longest = sorted(self._words, key=len, reverse=True)
        parts = [rf"(?<![\w]){re.escape(text)}(?![\w])" for text in longest]
        self._pattern = re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def user(self, name: str) -> None:
        """Replace who the database says that we are: a name, or after a log in by IAM `IAMR:name`."""
        self.add("<user>", name, name.partition(":")[2])

    def __call__(self, text: str) -> str:
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._words.get(found[0].lower(), "<name>"), text)

    def all(self, value: Any) -> Any:
        """The same for texts inside lists and dictionaries."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(str(key)): self.all(inner) for key, inner in value.items()}
        return [self.all(inner) for inner in value] if isinstance(value, list | tuple) else value

    def result(self, result: Result) -> Result:
        return replace(result, found=self(result.found), details=self.all(result.details))
