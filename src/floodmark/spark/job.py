"""A Spark task, without Spark: jobs that run somewhere else, and come back as values or errors.

On the driver's own machine secrets stay in the driver's memory, where workers of the same user read them,
because Spark passes a task's contents on to others. On a cluster they travel with the task, along with the
contents of certificates and SSH keys, which are handed to the client libraries as in-memory files: nothing is
written to the other machine's disk, and nothing remains there after the worker ends, however it ends.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import pickle
import secrets
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

from floodmark.config.load import SourceSpec, Ssh, StoreSpec, Tls
from floodmark.host.temp import scratch
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.spark.reports import Address, Teller

# Modules that slices need, by name, since this module must not depend on them. A worker imports them before
# its first task. A `verify` needs some more, which its first task imports.
PRELOADED = (
    "floodmark.extract.task",
    "floodmark.source.log_in",
    "pyarrow.parquet",
)

# Seconds after which a task begins no other job: those that are done wait for it.
PATIENCE = 2.0
FOLDER = "floodmark-carried-"

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Block = TypeVar("Block", Tls, Ssh)


class Relay:
    """What each job of a task may leave to the next: its connection to the source."""

    def __init__(self) -> None:
        self._left: Any = None

    def leave(self, link: Any) -> bool:
        """Leaves a connection, which the task closes at its end at the latest."""
        self._left = link
        return True

    def taken(self) -> Any:
        """The connection that the last job has left, or None."""
        link, self._left = self._left, None
        return link


class Named(Protocol):
    """What a job is about, for messages; the name may be empty."""

    @property
    def name(self) -> str: ...


class Job(Protocol[R_co]):
    """One task and everything it needs. A dataclass that is pickled, and never shown anywhere."""

    @property
    def source(self) -> SourceSpec: ...

    @property
    def table(self) -> Named: ...

    def title(self, of: int) -> str:
        """Its name in Spark's UI, as one of `of`."""

    def go(self, told: Callable[[int], None], relay: Relay | None = None) -> R_co:
        """Runs the job; raises FloodmarkError. `told` accepts the rows so far, at any rate."""


@dataclass(frozen=True)
class Piece(Generic[R]):
    """One job as it is submitted: the tag by which it is cancelled, what Spark's UI shows, and where its rows are reported."""

    job: Job[R]
    tag: str = ""
    group: str = ""
    title: str = ""
    reports: Address | None = None


# Files of the driver's machine, with their contents.
Files = Mapping[Path, bytes]


def task(pieces: Sequence[Piece[R]], local: bool) -> Callable[[Iterable[int]], list[R | FloodmarkError]]:
    """Jobs as one task that Spark takes. Without secrets if it runs on this machine; raises ConfigError."""
    if local:
        data = packed(pieces)
        return lambda _: attempts(cast(Sequence[Piece[R]], unpacked(data)))
    files = files_to_send(pieces[0].job.source)
    return lambda _: attempts(pieces, files)


# ---------------------------------------------------------------- in a worker


def attempts(
    pieces: Sequence[Piece[R]], files: Files = MappingProxyType({}), patience: float = PATIENCE
) -> list[R | FloodmarkError]:
    """Runs jobs one after another: each one's result or error, as far as they had a turn."""
    freeze_imports()
    began, relay = time.monotonic(), Relay()
    done: list[R | FloodmarkError] = []
    try:
        for piece in pieces:
            if done and time.monotonic() - began > patience:
                break
            with closing(Teller(piece.reports)) as teller:
                done.append(attempt(piece.job, files, teller.tell, relay))
    finally:
        if (left := relay.taken()) is not None:
            left.close()
    return done


def attempt(
    job: Job[R],
    files: Files = MappingProxyType({}),
    told: Callable[[int], None] = lambda rows: None,
    relay: Relay | None = None,
) -> R | FloodmarkError:
    """The job's result, or its error as a value, so that the driver gets it whole and decides on retries.

    `files` are the ones that the source's settings name, for a machine that lacks them.
    """
    try:
        if files:  # jobs are dataclasses
            job = cast(Job[R], replace(cast(Any, job), source=at_hand(job.source, files)))
        return job.go(told, relay)
    except FloodmarkError as error:
        return error.of(job.table.name)
    except Exception as error:
        traceback.print_exc()  # a worker's stderr goes to Spark's log
        return FloodmarkError(f"{type(error).__name__}: {error}", table=job.table.name or None)


def preload() -> None:
    """Imports the modules that tasks need."""
    for name in PRELOADED:
        import_module(name)


def imports(_: Iterable[int]) -> list[int]:
    """A task that only imports what slices need."""
    preload()
    freeze_imports()
    return []


@cache
def freeze_imports() -> None:
    """Once per worker: pyspark collects garbage after every task; traversing all imports takes 80 ms."""
    gc.freeze()


# ---------------------------------------------------------------- secrets, on this machine


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


# ---------------------------------------------------------------- files, on other machines


def files_to_send(source: SourceSpec) -> Files:
    """The files that the source's settings name, with their contents; raises ConfigError."""
    blocks = [vars(block) for block in (source.tls, source.ssh) if block is not None]
    found: dict[Path, bytes] = {}
    for path in (value for block in blocks for value in block.values() if isinstance(value, Path)):
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path} can't be read: {error.strerror}", hint="check the files in source.tls and source.ssh"
            ) from error
    return found


def at_hand(source: SourceSpec, files: Files) -> SourceSpec:
    """The source's settings for this machine: if it lacks a file, the one that was sent takes its place."""
    here = {
        path: _in_memory(data, os.getpid()) for path, data in files.items() if not os.access(path, os.R_OK)
    }
    return replace(source, tls=_with(source.tls, here), ssh=_with(source.ssh, here)) if here else source


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
