"""The compiled reader of rows, and which wheel it makes; all else is in pyproject.toml.

It uses only Python's limited API, so one wheel (cp311-abi3) serves every Python from 3.11 on. FLOODMARK_WHEEL=pure makes
the other one, without compiled code (py3-none-any), for machines that the first one doesn't fit.
"""

import os

from setuptools import Extension, setup

OLDEST = 0x030B0000  # Python 3.11, as requires-python says

READER = Extension(
    "floodmark.services.mysql.rows.decoder_fast",
    ["src/floodmark/services/mysql/rows/decoder_fast.pyx"],
    # Without a compiler it is left out, and Floodmark works without it, only slower.
    optional=True,
    py_limited_api=True,
    define_macros=[("Py_LIMITED_API", hex(OLDEST))],
)

if os.environ.get("FLOODMARK_WHEEL") == "pure":
    setup()
else:
    setup(ext_modules=[READER], options={"bdist_wheel": {"py_limited_api": "cp311"}})
