"""What a MySQL error means for the operator: change something, decide something, or try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TlsError, TransientError
from floodmark.services.mysql.rows.text import MySQLError, NotTrusted

_LOGIN = {1045, 1130, 1251, 1275, 1524, 1698, 2049, 2054, 2058, 2059, 2061, 3878}
_EXPIRED = {1820, 1862}
_LOCKED = {3118, 3955, 4151}
_RIGHTS = {1044, 1142, 1143, 1227}
_UNKNOWN = {1046, 1049, 1051, 1054, 1109, 1146, 1176}
_SQL = {
    1052, 1060, 1064, 1102, 1103, 1110, 1111, 1112, 1113, 1149, 1247, 1267, 1271, 1305, 1356, 1582, 1630,
}  # fmt: skip
_TOO_LARGE = {1153, 1301, 2020}
_UNREACHABLE = {2002, 2003, 2005}
_CUT = {1053, 1077, 1158, 1159, 1160, 1161, 1317, 1927, 2006, 2012, 2013, 2055}
_TIME_LIMIT = {1907, 1969, 3024}


class UnknownName(ConfigError):
    """The server has no table, column or index with that name."""


@contextmanager
def as_discovered() -> Iterator[None]:
    """For queries on a table discovered earlier: an unknown name means that the table has changed since."""
    try:
        yield
    except UnknownName as error:
        raise TransientError(
            f"the table was changed while it was being read: {error.message}",
            hint="run again: it is then read as it is now",
            table=error.table,
        ) from error


def translated(error: MySQLError, spec: SourceSpec) -> FloodmarkError:
    """The error as one of ours. MySQL's messages never contain a password."""
    code, text = _parts(error)
    where = f"MySQL at {spec.socket or f'{spec.host}:{spec.port}'}"
    if spec.ssh is not None:
        where += f" through {spec.ssh.host}"
    said = f"{where}: {text} ({code})" if code else f"{where}: {text}"
    if code == 2026:
        return TlsError(said, hint=_tls_hint(error))
    if code == 3159:
        return ConfigError(
            said, hint="set source.tls.mode: verify_identity with the server's ca, or required"
        )
    if code in _EXPIRED:
        return ConfigError(
            said,
            hint=f"give {spec.user} a new password (ALTER USER … IDENTIFIED BY …), and update source.url",
        )
    if code in _LOCKED:
        return ConfigError(said, hint=f"ALTER USER '{spec.user}'@'…' ACCOUNT UNLOCK")
    if code in _LOGIN:
        # A server that requires TLS tells a client without it no more than this.
        plain = spec.tls is not None and spec.tls.mode == "disabled"
        also = ", and whether the server requires TLS (source.tls)" if plain else ""
        if spec.tls is not None and spec.tls.cert is not None:
            also = ", and whether the server requires a different certificate than source.tls.cert"
        return ConfigError(said, hint=f"check the user and the password in source.url{also}")
    if code in _RIGHTS:
        return ConfigError(
            said,
            hint=f"GRANT SELECT on the tables to {spec.user} (rights of a role count only after SET DEFAULT ROLE)",
        )
    if code == 1370:  # a function in a `where`
        return ConfigError(said, hint=f"GRANT EXECUTE on it to {spec.user}")
    if code in _UNKNOWN:
        return UnknownName(said, hint="check the names and the `where` in the configuration")
    if code in _SQL:
        return ConfigError(said, hint="check the names and the `where` in the configuration")
    if code in _TOO_LARGE:
        return DataError(said, hint="raise max_allowed_packet on the source, or exclude the column")
    if code == 3854:
        return DataError(
            said,
            hint="a text in the `where`, or in a key of the warehouse, has characters that the column can't hold: correct it there",
        )
    if code in _UNREACHABLE:
        said = f"{where} can't be reached: {text} ({code})"
        return TransientError(said, hint="check source.url and that the server is running, then try again")
    if code in _CUT:
        return TransientError(said, hint="the connection was cut; try again: nothing is lost")
    if code in _TIME_LIMIT:
        return TransientError(
            said, hint="the server's time limit for statements was exceeded; use smaller slices"
        )
    return TransientError(said, hint="try again: nothing is lost")


def _parts(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[-1]) if error.args else type(error).__name__
    return code, text.strip()


def _tls_hint(error: MySQLError) -> str:
    if isinstance(error, NotTrusted) and error.other_host:
        return (
            "the certificate is for another host: correct the host in source.url, or use tls.mode: verify_ca"
        )
    if isinstance(error, NotTrusted):
        return "the server's certificate was not issued by the CA in source.tls.ca"
    return "check source.tls and the server's TLS settings (TLS 1.2 or newer is needed)"
