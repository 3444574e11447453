"""The compiled modules (readers of rows and of the binary log, and the hash of rows), and which wheel they make; the rest is in pyproject.toml.

They use only Python's limited API, so one wheel (cp311-abi3) serves every Python from 3.11 on. FLOODMARK_WHEEL=pure makes
the other one, without compiled code (py3-none-any), for machines that the first one doesn't fit.
"""

import os

from setuptools import Extension, setup

OLDEST = 0x030B0000  # Python 3.11, as requires-python says

COMPILED = [
    Extension(
        name,
        [f"src/{name.replace('.', '/')}.pyx"],
        # Without a compiler they are left out, and Floodmark works without them, only slower.
        optional=True,
        py_limited_api=True,
        define_macros=[("Py_LIMITED_API", hex(OLDEST))],
    )
    for name in (
        "floodmark.source.rows.decoder_fast",
        "floodmark.model.row_hash_fast",
        "floodmark.source.binlog.keys_fast",
    )
]

if os.environ.get("FLOODMARK_WHEEL") == "pure":
    setup()
else:
    setup(ext_modules=COMPILED, options={"bdist_wheel": {"py_limited_api": "cp311"}})
