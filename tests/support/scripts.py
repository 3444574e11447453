"""The programs in scripts/ as modules; they have no suffix."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from tests.support.pages import ROOT


def script(name: str) -> Any:
    """The functions of scripts/NAME."""
    loader = SourceFileLoader(f"scripts_{name.replace('-', '_')}", str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
