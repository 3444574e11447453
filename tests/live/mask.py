"""Masks what a report must not disclose: hosts, accounts, buckets, users. Passwords and keys never get this far."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from floodmark.config.load import Config
from floodmark.model.secrets import any_of

_SHORTEST = 3  # a shorter name occurs inside too many words
_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (
            r"arn:(aws[\w-]*):(\w[\w-]*):([\w-]*):\d{12}:([\w-]+)[/:][^\s',\"]+",
            r"arn:\1:\2:\3:<account>:\4/<name>",
        ),
        (r"arn:(aws[\w-]*):s3:::[^\s',\"]+", r"arn:\1:s3:::<name>"),
        (r"(?<![\w:])(IAM[AR]?):[^\s',\"]+", r"\1:<user>"),  # the user of an IAM login
        (r"\b[\w.-]+\.amazonaws\.com(\.cn)?\b", "<host>"),
        # Not part of a decimal, nor the costs in a plan.
        (r"(?<!\w)(?<!\d\.)(?<!\.\.)\d{12}(?!\w)(?!\.\d)", "<account>"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)", "<address>"),
    )
)


class Mask:
    """Replaces the given names, in any case, and whatever looks like an ARN, AWS account or host, or address."""

    def __init__(self, names: Mapping[str, Iterable[str | None]]) -> None:
        """`names`: the texts to mask, by the word that replaces them."""
        self._words: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        for word, texts in names.items():
            self.add(word, *texts)

    @classmethod
    def of(cls, config: Config) -> Mask:
        spec, store = config.warehouse, config.store
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        iam = spec.iam
        return cls(
            {
                "<host>": [spec.host],
                "<user>": [spec.user],
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
        """Replace these texts, too, with a word."""
        for text in texts:
            if text and len(text) >= _SHORTEST:
                self._words.setdefault(text.lower(), word)
        self._pattern = any_of(self._words, alone_below=math.inf, flags=re.IGNORECASE)

    def user(self, name: str) -> None:
        """Mask the user name that the database reports for us: plain, or `IAMR:name` after an IAM login."""
        self.add("<user>", name, name.partition(":")[2])

    def __call__(self, text: str) -> str:
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._words.get(found[0].lower(), "<name>"), text)

    def all(self, value: Any) -> Any:
        """Masks all strings inside lists and dictionaries."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(str(key)): self.all(inner) for key, inner in value.items()}
        return [self.all(inner) for inner in value] if isinstance(value, list | tuple) else value
