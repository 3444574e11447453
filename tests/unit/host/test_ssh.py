"""How ssh is called, and what its messages mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.config.load import Ssh
from floodmark.host.ssh import arguments, meaning
from floodmark.model.errors import ConfigError, TransientError

BASTION = Ssh("bastion", 2222, "me", None, None)


def options(ssh: Ssh, local: str = "20001") -> list[str]:
    return arguments(ssh, "db.internal:3306", local, "token")


def test_the_local_end_is_on_the_loopback_or_a_socket() -> None:
    assert "127.0.0.1:20001:db.internal:3306" in options(BASTION)
    assert "/tmp/f/s:db.internal:3306" in options(BASTION, "/tmp/f/s")


def test_host_keys_are_checked_and_ssh_never_prompts() -> None:
    given = options(BASTION)
    for option in (
        "StrictHostKeyChecking=yes",
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "UpdateHostKeys=no",
    ):
        assert given[given.index(option) - 1] == "-o"
    assert given[:2] == ["-F", "none"]


def test_a_bastion_s_name_is_never_parsed_as_an_option() -> None:
    assert options(Ssh("-oProxyCommand=x"))[-2:] == ["--", "-oProxyCommand=x"]


def test_with_a_key_only_that_key_is_offered(tmp_path: Path) -> None:
    key = tmp_path / "my key 100%"
    key.write_text("")
    given = options(Ssh("bastion", key=key))
    assert f'IdentityFile="{tmp_path}/my key 100%%"' in given and "IdentitiesOnly=yes" in given
    assert not any(option.startswith("Identit") for option in options(BASTION))


@pytest.mark.parametrize(
    ("said", "kind", "part"),
    [
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", ConfigError, "a different host key"),
        ("No ED25519 host key is known for bastion\nHost key verification failed.", ConfigError, "is not in ~/.ssh"),
        ("me@bastion: Permission denied (publickey).", ConfigError, "does not accept me"),
        ("Permissions 0644 for 'k' are too open.\nPermission denied", ConfigError, "read by others"),
        ("ssh: Could not resolve hostname bastion: Name or service not known", ConfigError, "no host bastion"),
        ("ssh: Could not resolve hostname bastion: Temporary failure in name resolution", TransientError, "Temporary"),
        ("hostname contains invalid characters", ConfigError, "ssh.host has characters"),
        ("remote username contains invalid characters", ConfigError, "ssh.user has characters"),
        ("No user exists for uid 4711", ConfigError, "4711"),
        ("ssh: connect to host bastion port 2222: Connection refused", TransientError, "reached: Connection refused"),
        ("ssh: connect to host bastion port 2222: No route to host", TransientError, "reached: No route to host"),
        ("kex_exchange_identification: Connection closed by remote host", TransientError, "closed by remote host"),
        ("Timeout, server bastion not responding.", TransientError, "not responding"),
        ("", TransientError, "without a message"),
    ],
)  # fmt: skip
def test_what_ssh_says_is_one_clear_error(said: str, kind: type[Exception], part: str) -> None:
    error = meaning(said.splitlines(), BASTION)
    assert type(error) is kind
    assert part in error.message and "\n" not in error.message and error.hint
