"""What the system allows this process, as far as we need more of it and can take it."""

from __future__ import annotations

import resource

from floodmark.errors import ADDRESSES_HINT, FILES_HINT, ConfigError

# Files that a process should be able to open, and how many Spark's jars and sockets take at least.
FILES = 4096
FEWEST_FILES = 512
# Libraries that can't map what they need fail in words of their own, or not at all.
FEWEST_ADDRESSES = 1 << 30


def check_addresses() -> None:
    """ConfigError where this process may not even have room for its libraries."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < FEWEST_ADDRESSES:
        raise ConfigError(
            f"a process may have only {most >> 20:,} MB of addresses here (ulimit -v), and Floodmark needs "
            f"{FEWEST_ADDRESSES >> 20:,}",
            hint=ADDRESSES_HINT,
        )


def allow_files() -> None:
    """Takes as many files as this process may have; ConfigError where Spark could not even open its jars."""
    most, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    wished = FILES if allowed == resource.RLIM_INFINITY else min(FILES, allowed)
    if most != resource.RLIM_INFINITY and most < wished:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wished, allowed))
        most = wished
    if most != resource.RLIM_INFINITY and most < FEWEST_FILES:
        raise ConfigError(
            f"a process may open only {most:,} files here, and Spark needs {FEWEST_FILES}", hint=FILES_HINT
        )
