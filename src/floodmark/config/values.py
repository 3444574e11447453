"""Parses values as people write them: timestamps, durations, `${NAME}`, URLs, paths. Pure except for the environment.

A variable's value never changes the structure around it, and no error quotes a value. What can't be meant is a
ValueError, whose text follows the key's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from floodmark.model.times import spelled
from floodmark.model.warehouse import WAREHOUSES

_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}?")


class VariableError(ValueError):
    """A `${NAME}` that can't be expanded."""

    def __init__(self, said: str, missing: Sequence[str] = ()) -> None:
        super().__init__(said)
        self.missing = tuple(missing)  # the unset variables


def timestamp(text: str) -> str:
    """A timestamp in its canonical form, `YYYY-MM-DD HH:MM:SS[.ffffff]`; else ValueError."""
    try:
        return spelled(text)
    except ValueError:
        raise ValueError(
            "is not a timestamp; write YYYY-MM-DD or YYYY-MM-DD HH:MM:SS[.ffffff], without a time zone"
        ) from None


def duration(text: str) -> float:
    """`7d`, `24h`, `30m` or `30s` in seconds; else ValueError."""
    match = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if match is None:
        raise ValueError("is not a duration; write a number and a unit, such as 7d, 24h, 30m or 30s")
    return float(int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]])


def expand(text: str) -> str:
    """The text with every `${NAME}` replaced by that environment variable (`$${` is a literal `${`)."""
    _check_variables(text)
    return _VARIABLE.sub(_variable, text)


def _check_variables(text: str) -> None:
    names = [m[2] if m[0].endswith("}") else "" for m in _VARIABLE.finditer(text) if not m[1]]
    if any(not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names):
        raise VariableError("has a ${ without a variable's name; write ${NAME}, or $${ for a literal ${")
    if missing := list(dict.fromkeys(name for name in names if name not in os.environ)):
        what = "variables {} are" if len(missing) > 1 else "variable {} is"
        raise VariableError(f"environment {what.format(', '.join(missing))} not set", missing)


def _variable(match: re.Match[str]) -> str:
    return match[0][1:] if match[1] else os.environ[match[2]]


@dataclass(frozen=True)
class Url:
    """The parts of a URL, decoded."""

    scheme: str
    user: str
    password: str = field(repr=False)
    host: str
    port: int | None
    path: str
    query: dict[str, str]


def url(template: str) -> Url:
    """Splits a URL first and expands its variables afterwards, so that a password may contain any character.

    Literal text is percent-decoded; a variable's value is not, unless the variable is the whole URL.
    """
    _check_variables(template)
    values: list[str] = []

    def slot(match: re.Match[str]) -> str:
        values.append(_variable(match))
        return f"\ue000{len(values) - 1}\ue001"

    whole = re.fullmatch(r"\$\{[^}]*\}", template)
    text = expand(template) if whole else _VARIABLE.sub(slot, template)

    def filled(part: str) -> str:
        return re.sub("\ue000(\\d+)\ue001", lambda m: values[int(m[1])], unquote(part))

    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError("is not a URL")
    user_info, _, rest = rest.rpartition("@")
    place, _, query = rest.partition("?")
    address, _, path = place.partition("/")
    user, _, password = user_info.partition(":")
    host, port = _address(filled(address))
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return Url(
        scheme.lower(), filled(user), filled(password), host, port, filled(path),
        {filled(name): filled(value) for name, _, value in pairs},
    )  # fmt: skip


def _address(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d*))?", text)
    if match is None or (match[3] and not 0 < int(match[3]) < 65_536):
        raise ValueError("has an invalid host or port; write host:port")
    return match[1] or match[2] or "", int(match[3]) if match[3] else None


def zone(name: str) -> str:
    """The name of a time zone, or `server`."""
    if name.lower() in ("server", "utc"):
        return name.lower() if name.lower() == "server" else "UTC"
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError("must be server, UTC or the name of a time zone, such as Europe/Paris") from None
    return name


_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]+:role/[\w+=.@/-]+", re.ASCII)


def role(value: str) -> str:
    """`default`, a role's ARN, or a chain of ARNs as COPY requires it: with commas, without spaces."""
    if value.strip().lower() == "default":
        return "default"
    chain = [part.strip() for part in value.split(",")]
    if not all(_ROLE.fullmatch(part) for part in chain):
        raise ValueError(
            "must be default, a role's ARN (arn:aws:iam::ACCOUNT:role/NAME), or a chain of ARNs: ARN,ARN"
        )
    return ",".join(chain)


def text(value: str) -> str:
    """Text that is not blank."""
    if not value.strip():
        raise ValueError("is empty")
    return value


def absolute(value: Any, base: Path) -> Any:
    """A path, relative to the file's folder; anything but text stays as it is."""
    return base / Path(value).expanduser() if isinstance(value, str) and value else value


def existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def source_url(template: Any) -> dict[str, Any]:
    """The fields of a SourceSpec that its URL gives."""
    form = "write mysql://user:password@host:3306/database"
    found = _service(template, form)
    if found.scheme not in ("mysql", "mariadb"):
        raise ValueError(f"is not a MySQL URL; {form}")
    if not found.user:
        raise ValueError(f"has no user; {form}")
    if set(found.query) - {"socket"}:
        raise ValueError(
            "has options after ?; only socket is allowed there, the others are keys of the source block"
        )
    if not found.host and "socket" not in found.query:
        raise ValueError(f"has no host; {form}")
    if "/" in found.path:
        raise ValueError(f"has more than one database; {form}")
    return {
        **_server(found, 3306),
        "host": found.host or "localhost",
        "database": found.path or None,
        "socket": found.query.get("socket"),
    }


def warehouse_url(template: Any, base: Path) -> dict[str, Any]:
    """The fields of a WarehouseSpec that its URL gives."""
    form = f"write {' or '.join(kind.example for kind in WAREHOUSES.values())}"
    files = [scheme for scheme, kind in WAREHOUSES.items() if kind.port is None]
    if isinstance(template, str) and re.match(rf"({'|'.join(files)}):|\$\{{[^}}]*\}}$", template):
        place = expand(template)
        scheme, _, rest = place.partition(":")
        if scheme in files:
            name = rest.removeprefix("///")
            if name == rest or name in ("", "/", ":memory:") or name.endswith("/"):
                raise ValueError(f"has no file; write three slashes and a path: {WAREHOUSES[scheme].example}")
            return {"kind": scheme, "path": absolute(name, base)}
    found = _service(template, form)
    kind = WAREHOUSES.get(found.scheme)
    if kind is None or kind.port is None:
        labels = " nor ".join(kind.can.label for kind in WAREHOUSES.values())
        raise ValueError(f"is neither {labels}; {form}")
    if not (found.user and found.host and found.path) or "/" in found.path or found.query:
        raise ValueError(f"must have a user, a host and a database; write {kind.example}")
    return {"kind": found.scheme, **_server(found, kind.port)}


def _service(template: Any, form: str) -> Url:
    if not isinstance(template, str):
        raise ValueError("must be text")
    try:
        return url(template)
    except VariableError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; {form}") from None


def _server(found: Url, port: int) -> dict[str, Any]:
    return {
        "host": found.host,
        "port": found.port or port,
        "user": found.user,
        "password": found.password,
        "database": found.path,
    }


def store_url(place: Any, base: Path) -> str:
    """`s3://bucket/prefix`, or the absolute path of a folder."""
    if not isinstance(place, str):
        raise ValueError("must be text")
    scheme, separator, rest = place.partition("://")
    if not separator:
        return str(absolute(text(place), base))
    if scheme == "file" and rest.startswith("/"):
        return url(place).path.join(("/", ""))
    if scheme != "s3":
        raise ValueError("must be s3://bucket/prefix or a folder")
    if not rest.partition("/")[0] or ".." in rest.split("/") or re.search(r"[?#\s@]|//", rest):
        raise ValueError("must be a bucket with an optional prefix: s3://bucket/prefix")
    return place.rstrip("/")


def matching(pattern: str, said: str) -> Callable[[str], str]:
    """A check that text matches a pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(said)
        return value

    return check


endpoint = matching(r"https?://[^/@?#\s]+/?", "must be http://host:port or https://host:port")
web_address = matching(r"https?://[^/?#\s]+[^\s]*", "must be http://… or https://…")
receiver = matching(
    r"[A-Za-z][A-Za-z0-9+.-]*://\S+",
    "must be an Apprise URL, such as mailto://user:password@host or slack://…",
)


def statement_timeout(seconds: float) -> float:
    if not 60 <= seconds <= 86_400:
        raise ValueError("must be between 1m and 24h, the longest that Redshift lets a statement run")
    return seconds
