"""A bastion: OpenSSH's server as a private, throw-away service, with its own keys.

Listens on 127.0.0.1, accepts any client that has `key`, and forwards anywhere. If started by root it runs as nobody:
as root it would need a user and a folder that only an installation creates.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from floodmark.setup.services.process import HOST, ServerProcess, binary, free_ports

_HINT = "run `make setup`, or install Debian's package openssh-server"


class Sshd(ServerProcess):
    """A bastion that only forwards. `settings` are lines of its sshd_config."""

    name = "sshd"

    def __init__(self, *, settings: str = "") -> None:
        unpacked = Path(sys.prefix) / "openssh" / "usr"
        found = unpacked / "sbin" / "sshd"
        self._sshd = str(found) if found.exists() else binary(("sshd",), _HINT)
        self._keygen = binary(("ssh-keygen",), "install Debian's package openssh-client")
        super().__init__()
        self.host, self.port = HOST, free_ports(1)[0]
        self.settings = settings
        me = pwd.getpwuid(os.geteuid())
        self._as: list[str] = []
        if os.geteuid() == 0:
            me = pwd.getpwnam("nobody")
            # Changing the user clears the parent-death signal, so set it again.
            self._as = ["setpriv", f"--reuid={me.pw_uid}", f"--regid={me.pw_gid}", "--clear-groups",
                        "--pdeathsig=KILL", "--"]  # fmt: skip
        self._owner, self.user = (me.pw_uid, me.pw_gid), me.pw_name
        self._parts = "".join(
            f"{setting} {unpacked / 'lib' / 'openssh' / program}\n"
            for setting, program in (("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth"))
            if (unpacked / "lib" / "openssh" / program).exists()  # in OpenSSH 9.8 and later
        )
        self.client = self.folder / "client"
        self.key, self.known_hosts = self.client / "key", self.client / "known_hosts"

    def start(self) -> None:
        """Start it; the first time, create its keys first."""
        if not self.client.exists():
            self.client.mkdir()
            self.new_key(self.key)
            shutil.copy(self.key.with_suffix(".pub"), self.folder / "authorized_keys")
            self.new_host_key()
            self.trust()
        (self.folder / "sshd_config").write_text(
            f"ListenAddress {HOST}:{self.port}\nHostKey {self.folder / 'host_key'}\nPidFile none\nUsePAM yes\n"
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nLogLevel VERBOSE\n{self._parts}{self.settings}\n"
        )
        for file in (self.folder, self.folder / "authorized_keys", self.folder / "host_key"):
            os.chown(file, *self._owner)
        command = [*self._as, self._sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self.launch(command, self._answers, 20)

    def new_host_key(self) -> None:
        """Create a new host key for the next start."""
        (self.folder / "host_key").unlink(missing_ok=True)
        self.new_key(self.folder / "host_key")

    def trust(self) -> None:
        """Write the current host key into the client's known_hosts."""
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {kind} {key}\n")

    def new_key(self, path: Path) -> Path:
        """Create a key pair, with the private key at `path`."""
        subprocess.run(
            [self._keygen, "-q", "-t", "ed25519", "-N", "", "-C", "floodmark test", "-f", str(path)],
            check=True, stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return path

    def ssh(self, **others: Any) -> dict[str, Any]:
        """The config's `ssh` section."""
        about = {"host": self.host, "port": self.port, "user": self.user}
        return {**about, "key": str(self.key), "known_hosts": str(self.known_hosts), **others}

    def connections(self) -> list[int]:
        """The processes that serve clients, two for each."""
        if not self.running:
            return []
        pairs = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                pairs.append((int(file.parent.name), int(file.read_text().rpartition(")")[2].split()[1])))
        first = [pid for pid, parent in pairs if parent == self.pid]
        return first + [pid for pid, parent in pairs if parent in first]

    def cut(self) -> None:
        """Kill the existing connections; new ones are accepted."""
        for pid in self.connections():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop at once, with all connections: an sshd that stops normally leaves existing ones open."""
        self.kill()

    def kill(self) -> None:
        """The same."""
        left = self.connections()
        super().kill()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as link:
                return link.recv(4) == b"SSH-"
        except OSError:
            return False
