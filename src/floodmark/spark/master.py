"""Why a standalone master does not accept an application: it is down, or it runs another version of Spark.

A master of another version, or with other authentication settings, drops the driver's messages and says so
only in its own log; the driver waits for a minute and calls it unresponsive. Whether it can be reached tells
the two cases apart.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from floodmark.model.errors import ConfigError

UNRESPONSIVE = "All masters are unresponsive"
SECONDS = 3.0
PAGE_PORT = 8080  # default port of a master's web UI
_VERSION = re.compile(r'class="version[^"]*"[^>]*>\s*(\d+\.\d+[\w.-]*)')


def refusal(url: str, ours: str, page_port: int = PAGE_PORT) -> ConfigError | None:
    """Why a master that was called unresponsive doesn't accept our application; None if it is down."""
    for host, port in places(url):
        with suppress(OSError), socket.create_connection((host, port), SECONDS):
            theirs = _version(host, page_port)
            runs = f"it runs Spark {theirs}" if theirs else "its web UI shows its version"
            return ConfigError(
                f"{url} is reachable but does not accept applications of pyspark {ours}; {runs}",
                hint="install the cluster's version of pyspark, or set SPARK_HOME to that Spark;"
                " if the versions match, spark.authenticate or its secret differs: docs/cluster.md",
            )
    return None


def places(url: str) -> list[tuple[str, int]]:
    """The masters that a URL names: `spark://one:7077,two:7077`."""
    found = []
    for one in url.removeprefix("spark://").split(","):
        parts = urlsplit(f"//{one}")
        with suppress(ValueError):
            if parts.hostname:
                found.append((parts.hostname, parts.port or 7077))
    return found


def _version(host: str, port: int) -> str | None:
    import urllib.request  # an HTTP client, which most runs don't need

    with suppress(OSError, ValueError):
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=SECONDS) as answer:
            found = _VERSION.search(answer.read(200_000).decode(errors="replace"))
        return found[1] if found else None
    return None
