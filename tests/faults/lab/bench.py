"""The bench: the one folder in which every experiment runs, its store and warehouse, and copies to start from.

Its name never changes, because a store remembers which warehouse it belongs to. `keep` saves a named copy and `lay`
restores it, so that a table is synced once and hundreds of experiments start from there.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
import yaml
from obstore.store import S3Store

from .services import PASSWORD, Services
from .spawn import Ended, Running

STACKS = ("folder", "s3", "redshift")
# Seconds within which every command must end by itself, including Spark's start, on an otherwise idle machine.
BOUND = 60.0


def bound() -> float:
    """The same, scaled up for an overloaded machine, and further for a laboratory that runs niced."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return BOUND * max(1.0, waiting if os.nice(0) > 0 else waiting / 2)


class Bench:
    """A place for one experiment at a time."""

    def __init__(
        self, services: Services, stack: str = "folder", name: str = "", ways: Mapping[int, int] | None = None
    ) -> None:
        """`name`: for a second bench on a stack; `ways`: ports to use instead of the services' own."""
        self.services = services
        self.stack = stack
        self.ways = dict(ways or {})
        self.spawner = services.spawner
        self.broken: str | None = None  # the protection that its commands run without
        self.folder = services.scratch / f"bench-{stack}{name}"
        self.templates = services.scratch / f"kept-{stack}{name}"
        self.prefix = f"bench-{secrets.token_hex(4)}"
        self.schema = ""
        self.printed: list[Ended] = []  # by the commands of this experiment
        self._link: S3Store | None = None

    # setting up

    def clear(self, database: str, **sections: Any) -> None:
        """Start from an empty folder with a configuration; no store, no warehouse."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._empty_bucket()
        self.printed = []
        server = self.services.server
        config: dict[str, Any] = {
            "source": {"url": server.url(database, "lab", PASSWORD)},
            "store": {"url": "./lake"},
            "warehouse": {"url": "duckdb:///warehouse.duckdb"},
            "spark": {"master": "local[2]"},
            "defaults": {"settle_seconds": 0.1},
        }
        if self.stack != "folder":
            config["store"] = self.services.seaweed.store(self.prefix)
        if self.stack == "redshift":
            standin = self.services.redshift
            config["warehouse"] = {
                "url": standin.url(),
                "iam_role": standin.role,
                "tls": {"mode": "disabled"},
            }
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section}
        for section, place in (("source", "url"), ("store", "endpoint"), ("warehouse", "url")):
            for port, way in self.ways.items():
                if place in config[section]:
                    config[section][place] = config[section][place].replace(f":{port}", f":{way}")
        self.config = config
        self.new_schema()

    def new_schema(self) -> None:
        """For Redshift: a fresh, empty schema."""
        if self.stack == "redshift":
            self.schema = f"lab_{secrets.token_hex(4)}"
            self.services.redshift.execute(f"CREATE SCHEMA {self.schema}")
            self.services.redshift.execute(
                f"GRANT ALL ON SCHEMA {self.schema} TO {self.services.redshift.user}"
            )
            self.config["warehouse"]["schema"] = self.schema
        self.write()

    def write(self) -> None:
        path = self.folder / "floodmark.yaml"
        path.write_text(yaml.safe_dump(self.config))
        path.chmod(0o600)

    def keep(self, name: str, loaded: int = 0) -> None:
        """Save the current state to start from later; `loaded`: how many rows the warehouse was given."""
        place = self.templates / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder, place / "bench")
        (place / "config.json").write_text(json.dumps([self.config, loaded]))
        if self.stack != "folder":
            for path in self.objects(""):
                file = place / "s3" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self.get(path) or b"")

    def lay(self, name: str) -> None:
        """Restore a saved state. Redshift's side is reloaded from the copy's files."""
        place = self.templates / name
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(place / "bench", self.folder)
        self.config, loaded = json.loads((place / "config.json").read_text())
        self.printed = []
        if self.stack == "folder":
            return
        self._empty_bucket()
        for file in sorted((place / "s3").rglob("*")):
            if file.is_file():
                obstore.put(self._s3, str(file.relative_to(place / "s3")), file.read_bytes())
        if self.stack == "redshift":
            self.new_schema()
            if loaded:
                again = ("sync", "--all", "--redshift-only", "--limit", str(loaded))
                done = self.run(*again, plan={"broken": None})
                assert done.code == 0, done.stderr

    # running

    def start(
        self, *args: str, plan: dict[str, Any] | None = None, own_jvm: bool = False, calm: bool = False
    ) -> Running:
        """Start a command with a plan of faults (None: no fault) without waiting for it."""
        own = secrets.token_hex(6)
        path = self.services.scratch / f"plan-{own}.json"
        self.steps_file = self.services.scratch / f"steps-{own}"
        body = {"broken": self.broken, "spool": str(self.services.scratch / "spool"), **(plan or {})}
        body["steps"] = str(self.steps_file)
        if not own_jvm:
            body["spark"] = self.services.spark
        path.write_text(json.dumps(body))
        return self.spawner.start(args, self.folder, {"LAB_PLAN": str(path)}, whole=own_jvm, calm=calm)

    def wait(self, running: Running, seconds: float | None = None) -> Ended:
        ended = self.spawner.wait(running, seconds or bound())
        self.printed.append(ended)
        return ended

    def run(
        self,
        *args: str,
        plan: dict[str, Any] | None = None,
        own_jvm: bool = False,
        seconds: float | None = None,
        calm: bool = False,
    ) -> Ended:
        """Run a command until it ends or its time is up."""
        return self.wait(self.start(*args, plan=plan, own_jvm=own_jvm, calm=calm), seconds)

    def steps(self) -> list[str]:
        """The durable steps of the most recently started command, in order."""
        if not self.steps_file.exists():
            return []
        return [line.partition(" ")[2] for line in self.steps_file.read_text().splitlines()]

    # looking around behind the product's back

    @property
    def _s3(self) -> S3Store:
        if self._link is None:
            self._link = self._connected()
        return self._link

    def _connected(self) -> S3Store:
        store = self.services.seaweed.store(self.prefix)
        return S3Store(
            self.services.seaweed.bucket,
            prefix=self.prefix,
            endpoint=store["endpoint"],
            region=store["region"],
            access_key_id=store["access_key_id"],
            secret_access_key=store["secret_access_key"],
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )

    def _empty_bucket(self) -> None:
        if self.stack != "folder" and (found := self.objects("")):
            obstore.delete(self._s3, found)

    def objects(self, prefix: str) -> list[str]:
        """The paths of the objects in the store."""
        if self.stack == "folder":
            lake = self.folder / "lake"
            found = [str(p.relative_to(lake)) for p in lake.rglob("*") if p.is_file()]
            return sorted(p for p in found if p.startswith(prefix) and not p.startswith(".part/"))
        pages = obstore.list(self._s3)
        return sorted(item["path"] for page in pages for item in page if item["path"].startswith(prefix))

    def get(self, path: str) -> bytes | None:
        """One object's bytes."""
        if self.stack == "folder":
            file = self.folder / "lake" / path
            return file.read_bytes() if file.exists() else None
        try:
            return obstore.get(self._s3, path).bytes().to_bytes()
        except FileNotFoundError:
            return None

    def put(self, path: str, data: bytes) -> None:
        """Overwrite an object behind the product's back."""
        if self.stack == "folder":
            file = self.folder / "lake" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        else:
            obstore.put(self._s3, path, data)

    def delete(self, path: str) -> None:
        """Delete an object behind the product's back."""
        if self.stack == "folder":
            (self.folder / "lake" / path).unlink(missing_ok=True)
        else:
            obstore.delete(self._s3, path)

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse.duckdb"
