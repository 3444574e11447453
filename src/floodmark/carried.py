"""The files that a connection to the source needs, carried inside tasks to machines that don't have them.

Certificates and SSH keys lie where the driver is. On a cluster their contents travel with the task, as the password
does, and are given to the drivers as files in memory: nothing is written to the other machine's disk, and nothing is
left there when the worker ends, however it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from floodmark.config import SourceSpec, Ssh, Tls
from floodmark.errors import ConfigError
from floodmark.scratch import scratch

FOLDER = "floodmark-carried-"
Block = TypeVar("Block", Tls, Ssh)


@dataclass(frozen=True)
class Carried:
    """One file of the driver's machine; its contents are never shown."""

    path: Path
    data: bytes = field(repr=False)


def carried(source: SourceSpec) -> tuple[Carried, ...]:
    """The files that the source's settings name, with their contents; raises ConfigError."""
    found = []
    for path in _named(source.tls, source.ssh):
        try:
            found.append(Carried(path, path.read_bytes()))
        except OSError as error:
            raise ConfigError(
                f"{path} can't be read: {error.strerror}", hint="source.tls and source.ssh name it"
            ) from error
    return tuple(found)


def at_hand(source: SourceSpec, files: tuple[Carried, ...]) -> SourceSpec:
    """The source's settings for this machine: where it lacks a file, the carried one takes its place."""
    here = {file.path: _in_memory(file.data) for file in files if not os.access(file.path, os.R_OK)}
    if not here:
        return source
    return replace(source, tls=_with(source.tls, here), ssh=_with(source.ssh, here))


def _named(*blocks: Tls | Ssh | None) -> Iterator[Path]:
    for block in blocks:
        if block is not None:
            values = (getattr(block, each.name) for each in fields(block))
            yield from (value for value in values if isinstance(value, Path))


def _with(block: Block | None, here: Mapping[Path, Path]) -> Block | None:
    if block is None:
        return None
    named = {each.name: getattr(block, each.name) for each in fields(block)}
    moved: dict[str, Any] = {name: here[path] for name, path in named.items() if path in here}
    return replace(block, **moved)


@lru_cache(maxsize=16)
def _in_memory(data: bytes) -> Path:
    """A file with these contents, for this user only, for as long as this process lives."""
    if not hasattr(os, "memfd_create"):
        path = scratch(FOLDER) / "file"
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path
    file = os.memfd_create("floodmark")
    os.fchmod(file, 0o600)  # ssh takes no key that others can read
    with os.fdopen(os.dup(file), "wb") as to:
        to.write(data)
    return Path(f"/proc/{os.getpid()}/fd/{file}")
