"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW = ("req", "-newkey", "rsa:2048", "-nodes")


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """Create a certificate authority: `name.key` and `name.pem`."""
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")
    openssl(*_NEW, "-x509", "-days", "2", "-subj", f"/CN={name}", *files)


def issued(folder: Path, name: str, names: str) -> None:
    """Issue a certificate, signed by the authority `ca`, for these names ("DNS:localhost,IP:127.0.0.1")."""
    place = folder / name
    (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
    openssl(*_NEW, "-subj", f"/CN={name}", "-keyout", f"{place}.key", "-out", f"{place}.csr")
    openssl(
        "x509", "-req", "-in", f"{place}.csr", "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key",
        "-CAcreateserial", "-days", "2", "-extfile", f"{place}.ext", "-out", f"{place}.pem",
    )  # fmt: skip
