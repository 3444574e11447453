"""The environment of the programs that we start: none of them takes code from the working folder.

Somebody else may be able to write there. Python looks there first for the modules of `-m` and `-c`, and for an empty
element of PYTHONPATH. Whatever Python our programs start inherits the rule, such as the workers of a JVM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SAFE_PATH = "PYTHONSAFEPATH"


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment and `more`, for a program that we start."""
    found = {**os.environ, **(more or {}), SAFE_PATH: "1"}
    if path := found.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, path.split(os.pathsep)))
    return found
