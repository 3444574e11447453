"""What failures of Spark mean for the operator: a start that failed, a master that does not take us, a lost task."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.spark.jvm import Jvm, last_words
from floodmark.spark.pyspark_internals import version_text

# What a cluster's machine may lack, as reported by the JVM or the worker's Python.
MISSING = re.compile(
    r"Floodmark's archive is for [^\n]*"
    r"|Cannot run program \"[^\"]*\""
    r"|(?:ModuleNotFound|Import)Error: [^\n]*"
    r"|\[PYTHON_VERSION_MISMATCH\] [^\n,]*"
)
_LOST = re.compile(r"failed (\d+) times, most recent failure: Lost task [^:]*: (.+?)(?: Consider |\. |\n|$)")
_UNRESPONSIVE = "All masters are unresponsive"
_VERSION = re.compile(r'class="version[^"]*"[^>]*>\s*(\d+\.\d+[\w.-]*)')
SECONDS = 3.0
PAGE_PORT = 8080  # default port of a master's web UI


def java_text(error: Exception) -> str:
    """The full text of an exception from the JVM; empty if it is something else, or the JVM is gone."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    if type(error).__module__.startswith("pyspark.errors"):  # a SparkSession converts it to this
        return str(error).strip()
    with suppress(Exception):
        if isinstance(error, Py4JJavaError):
            text = str(error.java_exception.getMessage()).strip()
            # A single word, such as a path, means nothing without the exception's name.
            return text if " " in text else f"{error.java_exception.getClass().getSimpleName()}: {text}"
    return ""


def telling(text: str) -> str:
    """The informative line of an exception from the JVM, without stack and boilerplate; empty if none."""
    if "Traceback (most recent call last)" in text:
        said = [line for line in text.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Exit)\b", line)]
        return said[-1][:300] if said else "a Python worker failed"
    if found := _LOST.search(text):
        return f"{found[2].rpartition('Exception: ')[2]} ({found[1]} times)"[:300]
    return text.partition("\n")[0][:300]


@contextmanager
def explained(jvm: Jvm) -> Iterator[None]:
    """Says what a failed start of Spark means for the operator; ends the JVM, if it is ours."""
    try:
        yield
    except FloodmarkError:
        raise
    except Exception as error:
        raise start_error(error, jvm) from None


def start_error(error: Exception, jvm: Jvm) -> FloodmarkError:
    """What a failed start means."""
    try:
        line = telling(java_text(error)) or str(error).strip().splitlines()[-1]
    except Exception:  # the JVM is gone, and its message with it
        line = last_words(jvm.said())
    jvm.kill()  # not sooner: its exceptions have their text there
    if why := jvm.shortage() or refused(jvm):
        return why
    master = jvm.settings["spark.master"]
    if down := _UNRESPONSIVE in jvm.said():  # Spark then stops its context, at any moment of the start
        line = f"{master} is unreachable"
    down = down or bool(re.search("unresponsive|connect|timed out|refused|stopped|starthook", line.lower()))
    return (TransientError if down else ConfigError)(
        f"Spark did not start: {line[:300]}",
        hint=f"check spark.master ({master}) and spark.conf; see {jvm.log_path}",
    )


def refused(jvm: Jvm) -> FloodmarkError | None:
    """Why a reachable master has not accepted the application; None if that is not what happened."""
    if _UNRESPONSIVE not in jvm.said():
        return None
    return refusal(jvm.settings["spark.master"], version_text())


def refusal(url: str, ours: str, page_port: int = PAGE_PORT) -> ConfigError | None:
    """Why a standalone master that was called unresponsive doesn't accept our application; None if it is down.

    A master of another version, or with other authentication settings, drops the driver's messages and says so only
    in its own log; the driver waits for a minute and calls it unresponsive. Whether it can be reached tells the two apart.
    """
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
