"""The resource limits of this process: raised where we need more, an error where they stay too low."""

from __future__ import annotations

import resource

from floodmark.model.errors import ADDRESSES_HINT, FILES_HINT, ConfigError

# Open files that we ask for, and the fewest that Spark's jars and sockets can do with.
FILES = 4096
FEWEST_FILES = 512
# Checked up front: a library that can't map enough memory fails obscurely, or silently.
FEWEST_ADDRESSES = 1 << 30


def check_addresses() -> None:
    """ConfigError if the address space is too small even for our libraries."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < FEWEST_ADDRESSES:
        raise ConfigError(
            f"the address-space limit of {most >> 20:,} MB (ulimit -v) is too low: Floodmark needs "
            f"{FEWEST_ADDRESSES >> 20:,} MB",
            hint=ADDRESSES_HINT,
        )


def allow_files() -> None:
    """Raises the limit on open files as far as allowed; ConfigError if Spark could not even open its jars."""
    most, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    wished = FILES if allowed == resource.RLIM_INFINITY else min(FILES, allowed)
    if most != resource.RLIM_INFINITY and most < wished:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wished, allowed))
        most = wished
    if most != resource.RLIM_INFINITY and most < FEWEST_FILES:
        raise ConfigError(
            f"the limit of {most:,} open files (ulimit -n) is too low: Spark needs {FEWEST_FILES}",
            hint=FILES_HINT,
        )
