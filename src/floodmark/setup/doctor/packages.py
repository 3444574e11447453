"""Which of the packages that tasks need a Python has. Uses the standard library only: everything else may be missing.

As a script it prints the answer; other machines get its text and run it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import socket
import sys
from typing import Any

# What tasks need; each package is a module of the same name.
PACKAGES = ("floodmark", "pyspark", "pyarrow", "obstore", "pymysql")


def tell() -> dict[str, Any]:
    """The host, the parent process (an executor's workers share one), Python's version, each package's version or why it can't be imported, and whether the row reader is compiled."""
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in PACKAGES:
        try:
            code = importlib.import_module(name)
            # PyMySQL's __version__ is the one of another driver, for which it can stand in.
            version = getattr(code, "VERSION_STRING", None) or getattr(code, "__version__", None)
            found[name] = str(version or importlib.metadata.version(name))
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    try:
        compiled = bool(importlib.import_module("floodmark.source.rows.decoder_fast"))
    except Exception:
        compiled = False
    return {
        "host": socket.gethostname(),
        "parent": os.getppid(),
        "python": sys.version.split()[0],
        "packages": found,
        "missing": missing,
        "compiled": compiled,
    }


if __name__ == "__main__":
    print(json.dumps(tell()))
