"""Packages that libraries import though we have no use for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from floodmark.host.process import hidden


def test_a_hidden_package_is_missing_for_this_block_only() -> None:
    sys.modules.pop("this", None)
    with hidden("antigravity"), pytest.raises(ImportError):
        __import__("antigravity")
    import colorsys  # another one

    assert colorsys and not [one for one in sys.meta_path if type(one).__name__ == "_Hidden"]


def test_pyarrow_does_not_import_pandas_once_it_has_been_spared() -> None:
    program = (
        "import sys; from floodmark.host.process import spare_pandas; spare_pandas(); "
        "import pyarrow as pa; assert pa.repeat(7, 3).to_pylist() == [7, 7, 7]; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
