"""container/Dockerfile as data, and a root folder in which its steps really run: Debian by debootstrap, and chroot.

There is no container engine here. Where root may make mount namespaces, a chroot is as good for everything but layers: the steps
run as written, apt-get and useradd included, as the user and with the variables that the Dockerfile names.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.pages import ROOT

# What python:3.13-slim-bookworm has beside Debian's smallest set, for its Python in /usr/local.
LIBRARIES = "ca-certificates libbz2-1.0 libffi8 libgdbm6 liblzma5 libncursesw6 libreadline8 libsqlite3-0 libssl3 libuuid1 netbase tzdata zlib1g"
PATHS = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
RELEASE = "bookworm"


class Health(BaseHTTPRequestHandler):
    """What a health check asks: /healthz is well, any other page is not."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in their order, without comments, their lines joined."""
    lines = [
        line for line in (ROOT / "container/Dockerfile").read_text().splitlines() if not line.startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def only(word: str) -> str:
    """What an instruction says that is there once."""
    (found,) = (rest for each, rest in instructions() if each == word)
    return found


def mirror() -> str | None:
    """Where apt-get fetches Debian's packages on this machine."""
    if shutil.which("apt-get") is None:
        return None
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    )
    found = (line.split() for line in told.stdout.splitlines())
    return next((uri for uri, release in found if release == RELEASE), None)


def debootstrap(folder: Path) -> list[str] | None:
    """Debian's installer of itself, fetched into a folder; None: it can't be had."""
    folder.mkdir()
    got = subprocess.run(
        ["apt-get", "download", "-qq", "debootstrap"], cwd=folder, capture_output=True, text=True
    )
    files = list(folder.glob("*.deb"))
    if got.returncode or not files:
        return None
    subprocess.run(["dpkg-deb", "-x", str(files[0]), str(folder)], check=True)
    program = folder / "usr/sbin/debootstrap"
    return ["env", f"DEBOOTSTRAP_DIR={folder / 'usr/share/debootstrap'}", "sh", str(program)]


@dataclass
class Image:
    """A root folder, and what the Dockerfile has said about those who run in it."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATHS, "HOME": "/root"})
    user: str = "0:0"
    folder: str = "/"

    def base(self, program: Sequence[str], source: str, python: str) -> None:
        """FROM: Debian's smallest set of packages, and Python in /usr/local."""
        packages = ",".join(LIBRARIES.split())
        _done([*program, "--variant=minbase", f"--include={packages}", RELEASE, str(self.root), source])
        home = Path(
            subprocess.check_output([python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip()
        )
        for name in ("bin", "include", "lib"):
            shutil.copytree(home / name, self.root / "usr/local" / name, symlinks=True, dirs_exist_ok=True)
        _done(["chroot", str(self.root), "/sbin/ldconfig"])  # for libpython
        # The network as it is here, and what pip is told here.
        for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
            if Path(file).exists():
                shutil.copyfile(file, self.root / file[1:])
        settings = re.findall(r"(?m)^global\.([\w-]+)='(.*)'$", _pip_settings())
        (self.root / "etc/pip.conf").write_text(
            "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings), ""])
        )
        self.env.update({name: value for name, value in os.environ.items() if name.startswith("PIP_")})

    def build(self, dist: Path) -> None:
        """All of the Dockerfile; a step that fails says what it said."""
        for word, rest in instructions():
            if word == "COPY" and "--from" not in rest:  # both stages have the same base, and here one root
                *patterns, into = rest.split()
                (self.root / into[1:]).mkdir(parents=True, exist_ok=True)
                for file in (file for each in patterns for file in dist.parent.glob(each)):
                    shutil.copy2(file, self.root / into[1:])
            elif word == "RUN":
                done = self.run("/bin/sh", "-c", rest)
                assert done.returncode == 0, f"{rest}\n{done.stdout}\n{done.stderr}"
            elif word == "ENV":
                name, _, value = rest.partition("=")
                self.env[name] = value.replace(f"${name}", self.env.get(name, ""))
            elif word == "USER":
                self.user, self.env["HOME"] = rest, self.home(rest)
            elif word == "WORKDIR":
                self.folder = rest

    def home(self, user: str) -> str:
        """The home folder that /etc/passwd has for a user's number."""
        known = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        return next(entry[5] for entry in known if entry[2] == user.partition(":")[0])

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command in the root folder, with mounts that nobody else sees and that end with it."""
        return subprocess.run(
            self.command(*command, env=env), capture_output=True, text=True, env={}, timeout=1800
        )

    def command(self, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
        """The same as a command line of this machine."""
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        for path in _local():
            mounts.append(f"mkdir -p {self.root}{path} && mount --bind {path} {self.root}{path}")
        variables = [f"{name}={value}" for name, value in {**self.env, **(env or {})}.items()]
        inside = ["env", "-i", *variables, "sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command]
        line = shlex.join(["chroot", f"--userspec={self.user}", str(self.root), *inside])
        script = " && ".join([*mounts, f"exec {line}"])
        return ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", f"PATH={PATHS}; {script}"]  # fmt: skip


def _pip_settings() -> str:
    return subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)


def _local() -> list[str]:
    """Folders of this machine that pip is told to look into; an index has its files beside it."""
    found = [Path(match) for match in re.findall(r"(?:file://|')(/[\w./-]+)", _pip_settings())]
    return sorted({str(path.parent if path.name == "simple" else path) for path in found if path.is_dir()})


def _done(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
