"""Single values as people write them: timestamps, durations, `${NAME}`, URLs. Pure but for the environment.

A variable's value never changes the structure around it, and no error quotes a value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote
from zoneinfo import ZoneInfo

# More rows than any table has, and still a number that MySQL and Arrow can count to.
MOST_ROWS = 10**15

_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}?")


def timestamp(text: str) -> str:
    """A timestamp of the contract in its one spelling, `YYYY-MM-DD HH:MM:SS[.ffffff]`; else ValueError."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(\.\d{1,6})?)?", text.strip())
    problem = "is not a timestamp; write YYYY-MM-DD or YYYY-MM-DD HH:MM:SS[.ffffff], without a zone"
    if match is None:
        raise ValueError(problem)
    date, time, fraction = match.group(1), match.group(2) or "00:00:00", match.group(3) or ""
    try:
        datetime.fromisoformat(f"{date} {time}")
    except ValueError:
        raise ValueError(problem) from None
    return f"{date} {time}{fraction}"


def duration(text: str) -> float:
    """`7d`, `24h`, `30m` or `30s` in seconds; else ValueError."""
    match = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if match is None:
        raise ValueError("is not a duration; write a number and a unit, as 7d, 24h, 30m or 30s")
    return float(int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]])


def expand(text: str) -> str:
    """The text with every `${NAME}` replaced by that environment variable (`$${` is a literal `${`)."""
    _check_variables(text)
    return _VARIABLE.sub(_variable, text)


def _check_variables(text: str) -> None:
    names = [m[2] if m[0].endswith("}") else "" for m in _VARIABLE.finditer(text) if not m[1]]
    if any(not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names):
        raise ValueError("has a ${ that names no variable; write ${NAME}, or $${ for the characters ${")
    if missing := list(dict.fromkeys(name for name in names if name not in os.environ)):
        what = "variables {} are" if len(missing) > 1 else "variable {} is"
        raise ValueError(f"environment {what.format(', '.join(missing))} not set")


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
    """Part a URL first and fill its variables in afterwards: a password may hold any character as it is.

    Literal text is percent-decoded, the value of a variable is not, unless the variable is the whole URL.
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
        raise ValueError("has a host and port that can't be read; write host:port")
    return match[1] or match[2] or "", int(match[3]) if match[3] else None


def zone(name: str) -> str:
    """The name of a time zone, or `server`."""
    if name.lower() in ("server", "utc"):
        return name.lower() if name.lower() == "server" else "UTC"
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError("must be server, UTC or the name of a time zone, as Europe/Paris") from None
    return name


_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]+:role/[\w+=.@/-]+", re.ASCII)


def role(value: str) -> str:
    """`default`, a role's ARN, or a chain of them as COPY wants it: with commas, without blanks."""
    if value.strip().lower() == "default":
        return "default"
    chain = [part.strip() for part in value.split(",")]
    if not all(_ROLE.fullmatch(part) for part in chain):
        raise ValueError(
            "must be default, a role's ARN (arn:aws:iam::ACCOUNT:role/NAME), or a chain of ARNs: ARN,ARN"
        )
    return ",".join(chain)
