"""A working folder in which somebody else has left code and settings under the names of libraries; each leaves a mark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from floodmark.host.process import child_environment

# Of what the command, its workers and its helpers import; sitecustomize is what every Python imports by itself.
MODULES = (
    "boto3", "botocore", "click", "cryptography", "duckdb", "fsspec", "gzip", "jinja2", "json", "numpy", "obstore",
    "openlineage", "pandas", "pickle", "prometheus_client", "py4j", "pyarrow", "pydantic", "pymysql", "pyspark",
    "requests", "rich", "secrets", "sitecustomize", "socket", "starlette", "tempfile", "usercustomize", "uvicorn",
    "yaml", "zoneinfo",
)  # fmt: skip


class HostileFolder:
    """The folder, and who has fallen for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marks = folder.parent / f"{folder.name}-marks"
        folder.mkdir(exist_ok=True)
        for name in MODULES:
            (folder / f"{name}.py").write_text(
                f"open({str(self._marks)!r}, 'a').write('{name}\\n')\nraise SystemExit(99)\n"
            )
        transport = f"transport: {{type: file, append: true, log_file_path: {self._marks}}}\n"
        (folder / "openlineage.yml").write_text(transport)

    @property
    def marks(self) -> list[str]:
        return self._marks.read_text().splitlines() if self._marks.exists() else []

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`python -m floodmark` as its user starts it here."""
        found = child_environment(env)
        del found["PYTHONSAFEPATH"]
        command = [sys.executable, "-m", "floodmark", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=found, capture_output=True, text=True, timeout=120, check=False
        )
