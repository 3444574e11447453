"""The stand-in for Redshift, for demo and benchmarks. It lives with the tests, so only a checkout has it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from floodmark.model.errors import ConfigError
from floodmark.setup.services.s3 import SeaweedFS

# tests.support.redshift.RedshiftStandIn: a context manager that stops it on exit.
StandIn = Any


def stand_in() -> Callable[[SeaweedFS], StandIn]:
    """A factory for stand-ins (not yet started) that read from an S3 server; ConfigError where there are none."""
    root = Path(__file__).parents[4]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        module = import_module("tests.support.redshift")
    except ImportError:  # not a checkout, or another package is called `tests`
        raise ConfigError(
            "the stand-in for Redshift comes with the source code only",
            hint="run it from a checkout: make demo WAREHOUSE=redshift",
        ) from None
    made: Callable[[SeaweedFS], StandIn] = module.RedshiftStandIn
    return made
