"""The telling part of what Spark and the JVM say when something fails; pure."""

from __future__ import annotations

import re

# What a machine of a cluster may lack, as the JVM or the worker's Python says it.
MISSING = re.compile(
    r"Cannot run program \"[^\"]*\"|(?:ModuleNotFound|Import)Error: [^\n]*|\[PYTHON_VERSION_MISMATCH\] [^\n.]*"
)
_LOST = re.compile(r"failed (\d+) times, most recent failure: Lost task [^:]*: (.+?)(?: Consider |\. |\n|$)")


def telling(text: str) -> str:
    """The telling line of an exception from the JVM, without stack and boilerplate; empty when there is none."""
    if "Traceback (most recent call last)" in text:
        said = [line for line in text.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Exit)\b", line)]
        return said[-1][:300] if said else "a Python worker failed"
    if found := _LOST.search(text):
        return f"{found[2].rpartition('Exception: ')[2]} ({found[1]} times)"[:300]
    return text.partition("\n")[0][:300]
