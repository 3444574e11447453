"""Extracts the informative part from the errors of Spark and the JVM. Pure."""

from __future__ import annotations

import re

# What a cluster's machine may lack, as reported by the JVM or the worker's Python.
MISSING = re.compile(
    r"Floodmark's archive is for [^\n]*"
    r"|Cannot run program \"[^\"]*\""
    r"|(?:ModuleNotFound|Import)Error: [^\n]*"
    r"|\[PYTHON_VERSION_MISMATCH\] [^\n,]*"
)
_LOST = re.compile(r"failed (\d+) times, most recent failure: Lost task [^:]*: (.+?)(?: Consider |\. |\n|$)")


def telling(text: str) -> str:
    """The informative line of an exception from the JVM, without stack and boilerplate; empty if none."""
    if "Traceback (most recent call last)" in text:
        said = [line for line in text.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Exit)\b", line)]
        return said[-1][:300] if said else "a Python worker failed"
    if found := _LOST.search(text):
        return f"{found[2].rpartition('Exception: ')[2]} ({found[1]} times)"[:300]
    return text.partition("\n")[0][:300]
