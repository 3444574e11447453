"""The compiled reader of rows; all else is in pyproject.toml."""

from setuptools import Extension, setup

# Without a compiler it is left out, and Floodmark works without it, only slower.
setup(
    ext_modules=[
        Extension(
            "floodmark.services.mysql.rows.decoder_fast",
            ["src/floodmark/services/mysql/rows/decoder_fast.pyx"],
            optional=True,
        )
    ]
)
