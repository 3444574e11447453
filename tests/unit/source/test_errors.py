"""Every MySQL error becomes one of ours."""

from __future__ import annotations

import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TlsError, TransientError
from floodmark.source.errors import _NUMBERS, translated
from floodmark.source.rows.packets import MySQLError, NotTrusted

SPEC = SourceSpec("db", 3306, "reader", "hunter2")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1045, ConfigError), (1044, ConfigError), (1142, ConfigError), (1143, ConfigError), (1227, ConfigError),
        (1049, ConfigError), (1146, ConfigError), (1054, ConfigError), (1064, ConfigError), (1130, ConfigError),
        (2026, ConfigError), (3159, ConfigError),
        (2002, TransientError), (2003, TransientError), (2005, TransientError), (2006, TransientError),
        (2013, TransientError), (1040, TransientError), (1205, TransientError), (1213, TransientError),
        (1317, TransientError), (1927, TransientError), (1969, TransientError), (9999, TransientError),
        (1153, DataError), (2020, DataError), (3854, DataError),
        (1193, ConfigError), (1129, ConfigError), (3696, ConfigError),
        (1047, TransientError), (1290, TransientError), (1412, TransientError), (3169, TransientError),
        (6400, TransientError), (1028, TransientError), (1032, TransientError), (1615, TransientError),
        (8027, TransientError), (8028, TransientError), (9001, TransientError), (2027, TransientError),
        # What can't be computed or is damaged: invalid JSON (MySQL, MariaDB), out of range, a crashed table,
        # a missing tablespace, and numbers of a server to come.
        (3140, DataError), (3141, DataError), (3157, DataError), (4038, DataError), (1690, DataError), (1292, DataError),
        (1194, DataError), (1812, DataError), (7777, DataError),
    ],
)  # fmt: skip
def test_a_code_says_what_the_operator_does_next(code: int, kind: type[FloodmarkError]) -> None:
    error = translated(MySQLError(code, "said MySQL"), SPEC)
    assert isinstance(error, kind)
    assert "db:3306" in error.message and "said MySQL" in error.message and str(code) in error.message
    assert error.hint
    assert "hunter2" not in error.message + error.hint


def test_no_number_has_two_meanings() -> None:
    numbers = [number for some in _NUMBERS.values() for number in some]
    assert len(numbers) == len(set(numbers))


def test_an_untrusted_certificate_is_distinguished_from_another_host_s_whatever_the_wording() -> None:
    refused = NotTrusted(2026, "said OpenSSL")
    error = translated(refused, SPEC)
    assert isinstance(error, TlsError) and "not issued by the CA" in (error.hint or "")
    refused.other_host = True
    assert "for another host" in (translated(refused, SPEC).hint or "")
    plain = translated(MySQLError(2026, "no TLS: a mismatch of certificates"), SPEC)
    assert isinstance(plain, TlsError) and "TLS 1.2 or newer" in (plain.hint or "")
    named = translated(MySQLError(1045, "Access denied for user 'TLS certificate'@'SSL'"), SPEC)
    assert not isinstance(named, TlsError)


def test_an_error_without_a_number_is_transient() -> None:
    for arguments in ((), ("text",)):
        assert isinstance(translated(MySQLError(*arguments), SPEC), TransientError)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("you need (at least one of) the SUPER, REPLICATION CLIENT privilege(s)", "GRANT REPLICATION CLIENT ON *.* TO reader"),
        ("you need (at least one of) the PROCESS privilege(s) for this", "GRANT PROCESS ON *.* TO reader"),
        ("Zugriff verweigert", "check the names"),
    ],
)  # fmt: skip
def test_a_missing_privilege_is_granted_as_the_server_names_it(text: str, hint: str) -> None:
    assert (translated(MySQLError(1227, text), SPEC).hint or "").startswith(hint)
