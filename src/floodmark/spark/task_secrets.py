"""What a task needs from the driver's machine: passwords, keys, and the files for connecting to the source.

On the driver's own machine secrets stay in the driver's memory, where workers of the same user read them,
because Spark passes a task's contents on to others. On a cluster they travel with the task, along with the
contents of certificates and SSH keys, which are handed to the client libraries as in-memory files: nothing is
written to the other machine's disk, and nothing remains there after the worker ends, however it ends.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from floodmark.config.load import SourceSpec, Ssh, StoreSpec, Tls
from floodmark.host.temp import scratch
from floodmark.model.errors import ConfigError

FOLDER = "floodmark-carried-"
Block = TypeVar("Block", Tls, Ssh)


@dataclass(frozen=True)
class SentFile:
    """One file from the driver's machine; its contents are never shown."""

    path: Path
    data: bytes = field(repr=False)


def files_to_send(source: SourceSpec) -> tuple[SentFile, ...]:
    """The files that the source's settings name, with their contents; raises ConfigError."""
    found = []
    for path in _named(source.tls, source.ssh):
        try:
            found.append(SentFile(path, path.read_bytes()))
        except OSError as error:
            raise ConfigError(
                f"{path} can't be read: {error.strerror}", hint="check the files in source.tls and source.ssh"
            ) from error
    return tuple(found)


def at_hand(source: SourceSpec, files: tuple[SentFile, ...]) -> SourceSpec:
    """The source's settings for this machine: if it lacks a file, the one that was sent takes its place."""
    here = {
        file.path: _in_memory(file.data, os.getpid()) for file in files if not os.access(file.path, os.R_OK)
    }
    if not here:
        return source
    return replace(source, tls=_with(source.tls, here), ssh=_with(source.ssh, here))


# ---------------------------------------------------------------- on this machine


def packed(job: object) -> bytes:
    """Packs a job for a worker of this user on this machine; instead of secrets it says where they are."""
    to = io.BytesIO()
    _Packer(to, pickle.HIGHEST_PROTOCOL).dump(job)
    return to.getvalue()


def unpacked(data: bytes) -> object:
    """The job with its secrets; the process that packed it must be alive when they are first fetched."""
    return _Unpacker(io.BytesIO(data)).load()


class _Packer(pickle.Pickler):
    def persistent_id(self, thing: object) -> tuple[str, str] | None:
        return _left(thing, os.getpid()) if isinstance(thing, SourceSpec | StoreSpec) else None


class _Unpacker(pickle.Unpickler):
    def persistent_load(self, place: tuple[str, str]) -> object:
        return _fetched(place)


@cache  # kept as long as the process lives: workers may fetch it at any time
def _left(spec: SourceSpec | StoreSpec, pid: int) -> tuple[str, str]:
    """Where this process (`pid`) has left the settings, and a random word that makes the place unique."""
    return str(_in_memory(pickle.dumps(spec), pid)), secrets.token_hex(8)


@lru_cache(maxsize=16)  # all that a worker keeps from one task to the next
def _fetched(place: tuple[str, str]) -> object:
    return pickle.loads(Path(place[0]).read_bytes())


# ---------------------------------------------------------------- on other machines


def _named(*blocks: Tls | Ssh | None) -> Iterator[Path]:
    for block in filter(None, blocks):
        yield from (value for value in vars(block).values() if isinstance(value, Path))


def _with(block: Block | None, here: Mapping[Path, Path]) -> Block | None:
    if block is None:
        return None
    moved: dict[str, Any] = {name: here[path] for name, path in vars(block).items() if path in here}
    return replace(block, **moved)


@cache  # a file stays open until the process ends, and equal contents share one
def _in_memory(data: bytes, pid: int) -> Path:
    """A file with these contents, for this user only, that exists as long as this process (`pid`) lives."""
    if not _shown(pid):
        path = scratch(FOLDER) / "file"
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path
    file = os.memfd_create("floodmark")
    os.fchmod(file, 0o600)  # ssh rejects a key that others can read
    with os.fdopen(os.dup(file), "wb") as to:
        to.write(data)
    return Path(f"/proc/{pid}/fd/{file}")


def _shown(pid: int) -> bool:
    """Whether this user's other processes can open our open files; not those of privileged programs."""
    try:
        return hasattr(os, "memfd_create") and os.stat(f"/proc/{pid}/fd").st_uid == os.geteuid()
    except OSError:
        return False
