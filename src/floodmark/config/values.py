"""Parses values as people write them: timestamps, durations, `${NAME}`, URLs. Pure except for the environment.

A variable's value never changes the structure around it, and no error quotes a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from floodmark.model.times import spelled

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
