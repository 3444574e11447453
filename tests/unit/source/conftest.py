"""A certificate for the hand-made servers that speak TLS."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that is its own authority, with its key."""
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=db", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem.with_suffix(".key"), "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    return pem


@pytest.fixture(scope="module")
def context(pem: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pem, pem.with_suffix(".key"))
    return made
