"""SSH tunnels through a bastion: OpenSSH's client as a child process, one per process and destination.

Owns how ssh is called and how its output is read. Host keys are always checked, ssh never prompts, and the user's
own ssh settings are ignored, so that every machine that runs tasks behaves alike. The local end is on 127.0.0.1 or
in a folder private to this user, and no ssh outlives the process that needed it, however that process ends.
"""

from __future__ import annotations

import atexit
import collections
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Literal

from floodmark.config.load import Ssh
from floodmark.host.temp import scratch
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError

CONNECT_SECONDS = 5
OPEN_SECONDS = 12  # for everything: name lookup, connection, key exchange, login
ALIVE_SECONDS = 5  # a bastion that misses three keepalives in a row counts as gone
FOLDER = "floodmark-tunnel-"
Kind = Literal["port", "socket"]

# Asks the kernel to kill this process with the thread that started it, then becomes ssh. Not a preexec_fn: that
# would run Python between fork and exec, in a process that has other threads.
_STARTER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# All that ssh gets of our environment: the rest may hold passwords.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK")


def local_port(ssh: Ssh, host: str, port: int) -> int:
    """The port of 127.0.0.1 that leads to a server behind the bastion; opens the tunnel if need be."""
    return int(_tunnel(ssh, host, port, "port").open())


def local_socket(ssh: Ssh, host: str, port: int) -> str:
    """The same as a Unix socket, for drivers that can then check the certificate against the server's real name."""
    return _tunnel(ssh, host, port, "socket").open()


def complaint(ssh: Ssh, host: str, port: int, kind: Kind = "port") -> FloodmarkError | None:
    """Why the bastion did not connect us to the server, if it has just reported a reason."""
    return _tunnel(ssh, host, port, kind).complaint()


def close_all() -> None:
    """Closes this process's tunnels; the next connection opens a new one."""
    with _lock:
        mine = [tunnel for (process, *_), tunnel in _tunnels.items() if process == os.getpid()]
    for tunnel in mine:
        tunnel.close()


def _tunnel(ssh: Ssh, host: str, port: int, kind: Kind) -> Tunnel:
    """The tunnel to this server, one per process: a fork can't manage its parent's child."""
    with _lock:
        key = (os.getpid(), ssh, host, port, kind)
        return _tunnels.setdefault(key, Tunnel(ssh, host, port, kind))


class Tunnel:
    """A tunnel to one server. `open` may be called from any thread, before every connection."""

    def __init__(self, ssh: Ssh, host: str, port: int, kind: Kind) -> None:
        self.ssh = ssh
        self.kind = kind
        self.name = f"{ssh.host}:{ssh.port}"
        self.server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._failed: tuple[float, FloodmarkError] | None = None

    def open(self) -> str:
        """The local end of a tunnel whose ssh is running."""
        asked = time.monotonic()
        with self._lock:
            if self._child is not None and self._child.running:
                return self._child.local
            if self._failed is not None and self._failed[0] >= asked:
                # This thread waited while another's attempt failed; it need not wait for a second one.
                raise copy(self._failed[1])
            self._drop()
            try:
                self._child = self._opened()
            except FloodmarkError as error:
                self._failed = (time.monotonic(), copy(error))
                raise
            return self._child.local

    def close(self) -> None:
        with self._lock:
            self._drop()

    def complaint(self) -> FloodmarkError | None:
        time.sleep(0.05)  # gives the reader thread time to pick up ssh's output
        child = self._child
        for said, at in reversed([*child.words] if child is not None else []):
            found = re.search(r"open failed: ([a-z ]+): ?(.*)", said)
            if found is None or time.monotonic() - at > CONNECT_SECONDS:
                continue
            why, detail = found.groups()
            if "prohibited" in why:
                return ConfigError(
                    f"the bastion {self.name} does not forward to {self.server}: {why}",
                    hint="allow it: AllowTcpForwarding and PermitOpen in its sshd_config, or the key's options",
                )
            return TransientError(
                f"the bastion {self.name} can't reach {self.server}: {detail.strip() or why}",
                hint="check the host and the port, as seen from the bastion, then try again",
            )
        return None

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _opened(self) -> _Child:
        for last in (False, False, True):
            child = _Child(self)
            if child.wait(OPEN_SECONDS):
                return child
            said = [text for text, _ in child.words]
            silent = child.running
            child.end()
            # Another process took the port between our choice and ssh's bind.
            if last or not any("Address already in use" in line for line in said):
                break
        if silent:
            raise TransientError(
                f"the bastion {self.name} did not answer within {OPEN_SECONDS} s",
                hint="check ssh.host and the network, then try again",
            )
        raise meaning(said, self.ssh)


class _Child:
    """One ssh, and the thread that starts it, reads its output and lives exactly as long.

    The kernel kills ssh when the thread that started it ends, so that thread must not end first.
    """

    def __init__(self, tunnel: Tunnel) -> None:
        self.words: collections.deque[tuple[str, float]] = collections.deque(maxlen=50)
        self._folder: Path | None = None
        if tunnel.kind == "socket":
            self._folder = scratch(FOLDER)
            self.local = str(self._folder / "s")
        else:
            self.local = str(_free_port())
        self._token = os.urandom(8).hex()
        self._process: subprocess.Popen[str] | None = None
        self._open = threading.Event()
        self._settled = threading.Event()  # open, or ended
        command = [_program(), *arguments(tunnel.ssh, tunnel.server, self.local, self._token)]
        self._thread = threading.Thread(target=self._live, args=(command,), name="ssh tunnel", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Whether the tunnel is open; False if ssh has ended or is not ready in time."""
        self._settled.wait(seconds)
        return self._open.is_set()

    def end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            self._thread.join(2)
            with suppress(ProcessLookupError):
                process.kill()
        self._thread.join(2)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _live(self, command: list[str]) -> None:
        starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid())]
        try:
            process = subprocess.Popen(
                [*starter, *command] if sys.platform == "linux" else command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={
                    **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    "LC_ALL": "C",
                    "SHELL": "/bin/sh",  # for LocalCommand
                },
                start_new_session=True,  # no terminal to prompt on, and Ctrl-C reaches only us
            )
        except OSError as error:
            self.words.append((f"ssh did not start: {error}", time.monotonic()))
            self._settled.set()
            return
        self._process = process
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.strip() == self._token:
                    self._open.set()
                    self._settled.set()
                elif line.strip():
                    self.words.append((line.strip(), time.monotonic()))
        process.wait()
        self._settled.set()


# ---------------------------------------------------------------- how ssh is called


def arguments(ssh: Ssh, server: str, local: str, token: str) -> list[str]:
    """The arguments of `ssh`; none of them is a secret."""
    here = local if local.startswith("/") else f"127.0.0.1:{local}"
    options: dict[str, str | int] = {
        "BatchMode": "yes",
        "ExitOnForwardFailure": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": CONNECT_SECONDS,
        "ServerAliveInterval": ALIVE_SECONDS,
        "ServerAliveCountMax": 3,
        "ForwardAgent": "no",
        "LogLevel": "INFO",
        # Printed once ssh has logged in and is listening.
        "PermitLocalCommand": "yes",
        "LocalCommand": f"echo {token}",
    }
    if ssh.known_hosts is not None:
        hosts = _quoted(_here(ssh.known_hosts, "ssh.known_hosts"))
        options |= {"UserKnownHostsFile": hosts, "GlobalKnownHostsFile": "/dev/null"}
    if ssh.key is not None:
        options |= {"IdentityFile": _quoted(_here(ssh.key, "ssh.key")), "IdentitiesOnly": "yes"}
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    login = ["-l", ssh.user] if ssh.user else []
    way = ["-p", str(ssh.port), "-L", f"{here}:{server}"]
    return ["-F", "none", "-N", "-T", *given, *login, *way, "--", ssh.host]


def _quoted(path: Path) -> str:
    """A path quoted for ssh's options, where % would start a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _here(path: Path, setting: str) -> Path:
    """The file, or the copy that Spark shipped with the job (`spark.files`)."""
    brought = Path.cwd() / path.name
    if not path.exists() and brought.exists():
        with suppress(OSError):
            brought.chmod(0o600)  # Spark's copies are world-readable, and ssh rejects such keys
        return brought
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ConfigError(
            f"{setting}: {path} can't be read on {socket.gethostname()}: {error.strerror}",
            hint="every machine that runs Spark tasks needs it there; or list it in spark.files (under spark.conf)",
        ) from error


def _program() -> str:
    found = shutil.which("ssh")
    if found is None:
        raise ConfigError(
            f"ssh is not installed on {socket.gethostname()}, but a tunnel is configured",
            hint="install OpenSSH's client (Debian: openssh-client) on every machine that runs Spark tasks",
        )
    return found


def _free_port() -> int:
    """A free port of 127.0.0.1, below the ephemeral range."""
    for _ in range(100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return int(probe.getsockname()[1])
    raise TransientError("there is no free port on 127.0.0.1 for a tunnel", hint="try again")


# ---------------------------------------------------------------- what ssh says


def meaning(said: list[str], ssh: Ssh) -> FloodmarkError:
    """The output of an ssh that has ended, as one of our errors."""
    text = "\n".join(said)
    name = f"the bastion {ssh.host}:{ssh.port}"
    hosts = str(ssh.known_hosts or "~/.ssh/known_hosts")
    scan = f"ssh-keyscan -p {ssh.port} {shlex.quote(ssh.host)}"
    if "IDENTIFICATION HAS CHANGED" in text or "REVOKED" in text:
        return ConfigError(
            f"{name} presents a different host key than the one in {hosts}: possibly a man in the middle",
            hint="find out why; replace its line in that file only if the key was changed on purpose",
        )
    if "Host key verification failed" in text or "No matching host key" in text:
        return ConfigError(
            f"the host key of {name} is not in {hosts}",
            hint=f"add the output of `{scan}`, after comparing it with the bastion's own key",
        )
    if "too open" in text or "bad permissions" in text:
        return ConfigError(
            f"ssh.key: {ssh.key} can be read by others, so ssh refuses it", hint=f"chmod 600 {ssh.key}"
        )
    if "Permission denied" in text or "Too many authentication failures" in text:
        which = f"the key {ssh.key}" if ssh.key else "any key from the agent or ~/.ssh"
        return ConfigError(
            f"{name} does not accept {ssh.user or 'this user'} with {which}",
            hint="check ssh.user and ssh.key; a key with a passphrase must be in ssh-agent",
        )
    last = said[-1] if said else "ssh exited without a message"
    if re.search(r"Name or service not known|No address associated|nodename nor servname", text):
        return ConfigError(f"there is no host {ssh.host}", hint="check ssh.host")
    if named := re.search(r"(hostname|username) contains invalid characters", text):
        key = "host" if named[1] == "hostname" else "user"
        return ConfigError(
            f"ssh.{key} has characters that are not allowed in a {named[1]}", hint=f"check ssh.{key}"
        )
    if re.search(r"No user exists for uid|Bad configuration option|[Nn]o matching|usage: ssh", text):
        return ConfigError(
            f"ssh to {name}: {last}", hint="check ssh in the configuration, and OpenSSH's client"
        )
    # `ssh: connect to host b port 22: Connection refused` without the part that our message repeats.
    why = re.sub(r"^ssh: connect to host .* port \d+: ", "", last).rstrip(".")
    return TransientError(
        f"{name} can't be reached: {why}", hint="check ssh.host and the network, then try again"
    )


# Module state, because tunnels belong to the process and nothing could pass them to the tasks of a Spark worker.
_lock = threading.Lock()
_tunnels: dict[tuple[int, Ssh, str, int, Kind], Tunnel] = {}
atexit.register(close_all)
