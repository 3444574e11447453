"""Privileges that PostgreSQL lacks: SYSLOG ACCESS of users, and which IAM roles they may use (ASSUMEROLE)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.redshift.plans import Plan, script
from tests.support.redshift.postgres import literal
from tests.support.redshift.tokens import Token, find, says, split, sql_of, syntax_error

SYSLOG = "rs_syslog"  # the role whose members see everybody's sessions, statements and loads
DEFAULT_ROLE = (
    "default-aws-iam-role"  # its name in SVV_IAM_PRIVILEGES: a separate privilege, whatever its ARN
)
_TABLE = "pg_catalog.rs_assumerole"


def with_syslog(sql: str, tokens: Sequence[Token]) -> Plan | None:
    """The plan of a CREATE USER or ALTER USER with SYSLOG ACCESS; None without it."""
    at = next(find(tokens, "SYSLOG", "ACCESS"), None)
    if at is None or len(tokens) < 5:
        return None
    if not (says(tokens, at + 2, "UNRESTRICTED") or says(tokens, at + 2, "RESTRICTED")):
        raise syntax_error(tokens[at + 2] if at + 2 < len(tokens) else None)
    user, rest = tokens[2].text, [*tokens[:at], *tokens[at + 3 :]]
    if rest[-1].up == "WITH":
        rest.pop()
    change = (
        f"GRANT {SYSLOG} TO {user}" if tokens[at + 2].up == "UNRESTRICTED" else f"REVOKE {SYSLOG} FROM {user}"
    )
    others = [sql_of(rest)] if len(rest) > 3 else []
    return Plan(sql, run=script(*others, change, tag=f"{tokens[0].up} USER"))


def assumerole(sql: str, tokens: Sequence[Token]) -> Plan:
    """GRANT ASSUMEROLE ON 'arn[,arn]' | default | ALL TO user | PUBLIC FOR COPY | ALL; REVOKE likewise. A chain is one privilege."""
    grants = tokens[0].up == "GRANT"
    on, to, for_ = (next(find(tokens, word), None) for word in ("ON", "TO" if grants else "FROM", "FOR"))
    if on is None or to is None or for_ is None or not on < to < for_:
        raise syntax_error(tokens[-1])
    roles = [_role(part) for part in split(tokens[on + 1 : to], ",")]
    users = [part[-1].name for part in split(tokens[to + 1 : for_], ",") if part]
    commands = [" ".join(token.text.lower() for token in part) for part in split(tokens[for_ + 1 :], ",")]
    steps = []
    for role in roles:
        for user in users:
            for command in commands:
                named = (("grantee", user), ("role", role), ("command", command))
                if grants:
                    steps.append(f"INSERT INTO {_TABLE} VALUES ({', '.join(literal(v) for _, v in named)})")
                else:
                    same = [f"{column} = {literal(value)}" for column, value in named if value != "all"]
                    steps.append(f"DELETE FROM {_TABLE} WHERE {' AND '.join(same)}")
    return Plan(sql, run=script(*steps, tag=tokens[0].up))


def _role(part: Sequence[Token]) -> str:
    if len(part) != 1 or not (part[0].kind == "string" or part[0].up in ("ALL", "DEFAULT")):
        raise syntax_error(part[0] if part else None)
    if part[0].kind == "string":
        return part[0].value
    return DEFAULT_ROLE if part[0].up == "DEFAULT" else part[0].text.lower()
