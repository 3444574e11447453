"""What a MySQL error means for the operator: change something, decide something, or try again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TlsError, TransientError
from floodmark.source.rows.packets import MySQLError, NotTrusted

Meaning = Literal[
    "log-in", "expired", "locked", "blocked", "plain", "rights", "execute", "name", "statement", "packet", "text",
    "unreachable", "cut", "time limit", "busy", "value",
]  # fmt: skip

# The numbers of MySQL 9.7, MariaDB 10.11 and common proxies that a log-in or a SELECT can end with.
_NUMBERS: dict[Meaning, tuple[int, ...]] = {
    "log-in": (1045, 1130, 1251, 1275, 1524, 1698, 2049, 2054, 2058, 2059, 2061, 3878),
    "expired": (1820, 1862),
    "locked": (3118, 3955, 4151),
    "blocked": (1129, 4150),
    "plain": (3159,),
    "rights": (1044, 1142, 1143, 1227),
    "execute": (1370,),
    "name": (1046, 1049, 1051, 1054, 1109, 1146, 1176),
    # Also functions, character sets, time zones and regular expressions in a `where`.
    "statement": (
        1052, 1060, 1064, 1102, 1103, 1110, 1111, 1112, 1113, 1115, 1128, 1139, 1149, 1193, 1210, 1235, 1241, 1242,
        1247, 1253, 1267, 1271, 1273, 1298, 1305, 1327, 1356, 1449, 1525, 1575, 1582, 1583, 1584, 1630, 4078, 4079,
        *range(3685, 3701),
    ),
    "packet": (1153, 1301, 2020),
    "text": (3854,),
    "unreachable": (2002, 2003, 2005),
    # Also killed, shut down, or idle for too long.
    "cut": (
        1053, 1077, 1078, 1079, 1080, 1152, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2006,
        2012, 2013, 2055, 3169, 4031,
    ),
    "time limit": (1907, 1931, 1969, 3024),
    # What passes by itself: locks and deadlocks, too many connections or queries, no memory, disk or file handle
    # left, a node that joins, fails over or is offline, a table that was altered (8027 and 8028 on TiDB), a remote table out of reach.
    "busy": (
        1004, 1015, 1016, 1018, 1020, 1021, 1023, 1024, 1026, 1027, 1028, 1030, 1032, 1037, 1038, 1040, 1041, 1042, 1043, 1047, 1105,
        1114, 1135, 1180, 1203, 1205, 1206, 1213, 1226, 1257, 1290, 1296, 1297, 1412, 1429, 1430, 1615, 1637, 1684,
        1689, 1836, 1874, 1878, 3015, 3032, 3044, 3058, 3100, 3101, 3132, 3133, 3168, 3170, 3572, 3796, 3797, 3950,
        3985, 4081, 4082, 4139, 4145, 6094, 6400, 6401, 8027, 8028,
    ),
}  # fmt: skip
_MEANINGS: dict[int, Meaning] = {number: meaning for meaning, some in _NUMBERS.items() for number in some}


def meaning(code: int) -> Meaning:
    """What an error's number means. A server's number that is not listed will not pass by itself.

    Those from 2000 on are the client's, and from 9000 on those of proxies and of servers that only speak the
    protocol: what they say is about a connection.
    """
    listed = _MEANINGS.get(code)
    if listed is not None:
        return listed
    return "value" if 1000 <= code < 2000 or 3000 <= code < 9000 else "busy"


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
    code, text = parts(error)
    where = f"MySQL at {spec.socket or f'{spec.host}:{spec.port}'}"
    if spec.ssh is not None:
        where += f" through {spec.ssh.host}"
    said = f"{where}: {text} ({code})" if code else f"{where}: {text}"
    if code == 2026:
        return TlsError(said, hint=_tls_hint(error))
    kind = meaning(code)
    if kind == "unreachable":
        said = f"{where} can't be reached: {text} ({code})"
    if kind == "rights" and (missing := _PRIVILEGES.search(text)):
        return ConfigError(said, hint=f"GRANT {missing[1].split(', ')[-1]} ON *.* TO {spec.user}")
    return _CLASSES.get(kind, ConfigError)(said, hint=hint_for(kind, spec))


# How a server names the privileges of which one is missing; the last one is the least.
_PRIVILEGES = re.compile(r"\bthe ([A-Z][A-Z_ ]+(?:, [A-Z_ ]+)*) privilege")


_CLASSES: dict[Meaning, type[FloodmarkError]] = {
    "name": UnknownName,
    **dict.fromkeys(("packet", "text", "value"), DataError),
    **dict.fromkeys(("unreachable", "cut", "time limit", "busy"), TransientError),
}  # all others: ConfigError


# What to do about each; `also`: what else may be wrong.
_HINTS: dict[Meaning, str] = {
    "log-in": "check the user and the password in source.url, or in the environment variable that it names{also}",
    "expired": "give {user} a new password (ALTER USER … IDENTIFIED BY …), and update source.url",
    "locked": "ALTER USER '{user}'@'…' ACCOUNT UNLOCK",
    "blocked": "too many log-ins failed: check source.url, then have the server unblock this client",
    "plain": "set source.tls.mode: verify_identity with the server's ca, or required",
    "rights": "check the names, or GRANT SELECT on the tables to {user} (rights of a role count only after SET DEFAULT ROLE)",
    "execute": "GRANT EXECUTE on it to {user}",  # a function in a `where`
    "name": "check the names and the `where` in the configuration",
    "statement": "check the names and the `where` in the configuration",
    "packet": "raise max_allowed_packet on the source, or exclude the column",
    "text": "a text in the `where`, or in a key of the warehouse, has characters that the column can't hold: correct it there",
    "unreachable": "check source.url and that the server is running, then try again",
    "cut": "the connection was cut; try again: nothing is lost",
    "time limit": "the server's time limit for statements was exceeded; use smaller slices",
    "busy": "try again: nothing is lost",
    "value": "trying again will not help: correct the value or the definition at the source, or exclude the column",
}


def hint_for(kind: Meaning, spec: SourceSpec) -> str:
    """What to do about it."""
    return _HINTS[kind].format(user=spec.user, also=_also(spec))


def _also(spec: SourceSpec) -> str:
    """What else may be wrong: a server that requires TLS tells a client without it no more than this."""
    if spec.tls is not None and spec.tls.cert is not None:
        return ", and whether the server requires a different certificate than source.tls.cert"
    if spec.tls is not None and spec.tls.mode == "disabled":
        return ", and whether the server requires TLS (source.tls)"
    return ""


def parts(error: Exception) -> tuple[int, str]:
    """The number and the text of a driver's error."""
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
