"""From a statement's text to its plan: what Redshift would do with it, in terms of PostgreSQL.

Pure: looks at the text and the session's settings only. Unknown statements pass through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tests.support.redshift.alters import alter_table
from tests.support.redshift.copy import read_copy, run_copy
from tests.support.redshift.ddl import create_table
from tests.support.redshift.merges import merge
from tests.support.redshift.plans import Context, Plan, script
from tests.support.redshift.postgres import literal
from tests.support.redshift.refusals import after_with, expression, refuse
from tests.support.redshift.rights import assumerole, with_syslog
from tests.support.redshift.tokens import Token, fold, has, lex, says, sql_of, syntax_error, word_set
from tests.support.redshift.wire import SqlError

_POSTGRES_SETTINGS = word_set(
    "DATESTYLE EXTRA_FLOAT_DIGITS SEARCH_PATH STATEMENT_TIMEOUT TIMEZONE CLIENT_ENCODING APPLICATION_NAME SEED"
)
_REDSHIFT_SETTINGS = word_set(
    """ANALYZE_THRESHOLD_PERCENT AUTO_MV AUTOCOMMIT CAST_SUPER_NULL_ON_ERROR DEFAULT_GEOMETRY_ENCODING
    DESCRIBE_FIELD_NAME_IN_UPPERCASE DOWNCASE_DELIMITED_IDENTIFIER ENABLE_CASE_SENSITIVE_IDENTIFIER
    ENABLE_CASE_SENSITIVE_SUPER_ATTRIBUTE ENABLE_NUMERIC_ROUNDING ENABLE_RESULT_CACHE_FOR_SESSION ENABLE_VACUUM_BOOST
    ERROR_ON_NONDETERMINISTIC_UPDATE INTERVAL_FORBID_COMPOSITE_LITERALS JSON_SERIALIZATION_ENABLE
    JSON_SERIALIZATION_PARSE_NESTED_STRINGS MAX_CONCURRENCY_SCALING_CLUSTERS MAX_CURSOR_RESULT_SET_SIZE
    MV_ENABLE_AQMV_FOR_SESSION NAVIGATE_SUPER_NULL_ON_ERROR PARSE_SUPER_NULL_ON_ERROR PG_FEDERATION_REPEATABLE_READ
    QUERY_GROUP SPECTRUM_ENABLE_PSEUDO_COLUMNS ENABLE_SPECTRUM_OID SPECTRUM_QUERY_MAXERROR STORED_PROC_LOG_MIN_MESSAGES
    USE_FIPS_SSL WLM_QUERY_SLOT_COUNT SESSION_TIMEOUT"""
)
CASE = "enable_case_sensitive_identifier"


def understand(sql: str, settings: Mapping[str, str]) -> Plan:
    """The plan for one statement."""
    tokens = lex(sql)
    if not tokens:
        return Plan(sql)
    if any(token.kind == "op" and token.text == ";" for token in tokens):
        raise SqlError("42601", "cannot insert multiple commands into a prepared statement")
    names: set[str] = set()
    folded: list[Token] = []
    for token in tokens:
        if token.named:
            token, long = fold(token, settings.get(CASE, "off") in ("on", "true", "1"))
            names |= {long} if long else set()
        folded.append(token)
    tokens = folded
    if says(tokens, 0, "SET") and len(tokens) > 1 and tokens[1].name == "floodmark":
        return _control(sql, tokens)
    refuse(tokens)
    plan = _STATEMENTS.get(tokens[0].up, _other)(sql, tokens)
    history = any(token.name == "sys_query_history" for token in tokens if token.named)
    return replace(plan, names=frozenset(names), history=history)


def target(tokens: Sequence[Token], at: int) -> str:
    """The table name at a position."""
    if at >= len(tokens) or not tokens[at].named:
        raise syntax_error(tokens[at] if at < len(tokens) else None)
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].text == ".":
        end += 2
    return "".join(token.text for token in tokens[at:end])


def _other(sql: str, tokens: Sequence[Token]) -> Plan:
    label = _labelling(tokens)
    if label is None:
        return Plan(sql, sql_of(expression(tokens)))
    named = [*tokens[:label], *lex(literal("floodmark.query_group")), *tokens[label + 1 :]]
    return Plan(sql, sql_of(expression(named)), label=tokens[label + 2].value)


def _labelling(tokens: Sequence[Token]) -> int | None:
    """The position of the setting's name in set_config('query_group', '…', …)."""
    for at in range(2, len(tokens) - 2):
        setting, value = tokens[at], tokens[at + 2]
        if setting.kind == value.kind == "string" and setting.value == "query_group":
            return at if tokens[at - 2].name == "set_config" else None
    return None


def _begin(sql: str, tokens: Sequence[Token]) -> Plan:
    """Accepts any isolation level and ignores it: the database has only one."""
    mode = "READ ONLY" if has(tokens, "READ", "ONLY") else ""
    return Plan(sql, f"BEGIN {mode}".strip())


def _set(sql: str, tokens: Sequence[Token]) -> Plan:
    at = 2 if len(tokens) > 1 and tokens[1].up in ("SESSION", "LOCAL") else 1
    if at >= len(tokens):
        raise syntax_error(None)
    if tokens[at].up in ("TRANSACTION", "CHARACTERISTICS"):
        return Plan(sql, run=script(tag="SET"))
    if says(tokens, at, "TIME", "ZONE") or tokens[at].up == "AUTHORIZATION":
        return Plan(sql, sql_of(tokens))
    setting = tokens[at].name
    if setting.upper() in _POSTGRES_SETTINGS:
        if (
            setting == "statement_timeout"
            and not tokens[-1].text.strip("'").isdigit()
            and tokens[-1].up != "DEFAULT"
        ):
            raise SqlError("22023", f'invalid value for parameter "statement_timeout": {tokens[-1].text}')
        return Plan(sql, sql_of(tokens))
    mine = _ours(tokens[at])
    rewritten = sql_of([*tokens[:at], *lex(mine), *tokens[at + 1 :]])

    def run(context: Context) -> str:
        context.backend.query(rewritten)
        context.settings[setting] = tokens[-1].value if tokens[-1].kind == "string" else tokens[-1].name
        return "SET"

    return Plan(sql, run=run)


def _ours(token: Token) -> str:
    """The name under which the stand-in keeps a Redshift setting."""
    if token.name.upper() not in _REDSHIFT_SETTINGS:
        raise SqlError("42704", f'unrecognized configuration parameter "{token.name}"')
    return f"floodmark.{token.name}"


def _show(sql: str, tokens: Sequence[Token]) -> Plan:
    if len(tokens) == 2 and tokens[1].up not in (*_POSTGRES_SETTINGS, "ALL", "SERVER_VERSION"):
        name = tokens[1].name
        ours = literal(_ours(tokens[1]))
        default = literal("unset" if name == "query_group" else "off")
        return Plan(sql, f"SELECT coalesce(nullif(current_setting({ours}, true), ''), {default}) AS {name}")
    return Plan(sql, sql_of(tokens))


def _reset(sql: str, tokens: Sequence[Token]) -> Plan:
    if len(tokens) == 2 and tokens[1].up not in (*_POSTGRES_SETTINGS, "ALL"):
        return Plan(sql, f"SET {_ours(tokens[1])} TO ''")
    return Plan(sql, sql_of(tokens))


def _control(sql: str, tokens: Sequence[Token]) -> Plan:
    """SET floodmark.fault TO '…': a fault switch, for tests in other processes."""
    if len(tokens) != 6 or tokens[3].name != "fault" or tokens[5].kind != "string":
        raise syntax_error(tokens[-1])

    def run(context: Context) -> str:
        context.services.faults.command(tokens[5].value)
        return "SET"

    return Plan(sql, run=run)


def _lock(sql: str, tokens: Sequence[Token]) -> Plan:
    for token in tokens:
        if token.up in ("IN", "MODE", "NOWAIT", "ONLY"):
            raise syntax_error(token)
    return Plan(sql, sql_of(tokens))


def _copy(sql: str, tokens: Sequence[Token]) -> Plan:
    return Plan(sql, run=partial(run_copy, read_copy(tokens)))


def _truncate(sql: str, tokens: Sequence[Token]) -> Plan:
    """TRUNCATE commits the transaction around it."""
    at = 2 if says(tokens, 1, "TABLE") else 1
    table = target(tokens, at)
    if any(token.text == "," or token.up in ("CASCADE", "RESTART", "CONTINUE", "ONLY") for token in tokens):
        raise syntax_error(tokens[-1])
    return Plan(sql, run=script(f"TRUNCATE TABLE {table}", tag="TRUNCATE TABLE", commits=True))


def _create(sql: str, tokens: Sequence[Token]) -> Plan:
    at = 1
    while at < len(tokens) and tokens[at].up in ("LOCAL", "TEMP", "TEMPORARY"):
        at += 1
    if not says(tokens, at, "TABLE"):
        if says(tokens, at, "USER") and (plan := with_syslog(sql, tokens)) is not None:
            return plan
        if says(tokens, at, "DATABASE"):
            return Plan(sql, sql_of(tokens), outside="CREATE DATABASE cannot run inside a transaction block")
        return _other(sql, tokens)
    at += 4 if says(tokens, at + 1, "IF", "NOT", "EXISTS") else 1
    rewritten, domains = create_table(tokens, at)
    return Plan(sql, sql_of(rewritten), domains=frozenset(domains))


def _alter(sql: str, tokens: Sequence[Token]) -> Plan:
    if says(tokens, 1, "TABLE"):
        return alter_table(sql, tokens)
    if says(tokens, 1, "USER") and (plan := with_syslog(sql, tokens)) is not None:
        return plan
    levels = {"SNAPSHOT": "repeatable read", "SERIALIZABLE": "serializable"}
    if says(tokens, 1, "DATABASE") and says(tokens, 3, "ISOLATION", "LEVEL") and tokens[-1].up in levels:
        level = literal(levels[tokens[-1].up])
        words = f"ALTER DATABASE {tokens[2].text} SET default_transaction_isolation TO {level}"
        return Plan(sql, words, outside="ALTER DATABASE cannot run inside a transaction block")
    return _other(sql, tokens)


def _grant(sql: str, tokens: Sequence[Token]) -> Plan:
    return assumerole(sql, tokens) if says(tokens, 1, "ASSUMEROLE") else _other(sql, tokens)


def _insert(sql: str, tokens: Sequence[Token]) -> Plan:
    if not says(tokens, 1, "INTO"):
        raise syntax_error(tokens[1] if len(tokens) > 1 else None)
    return Plan(sql, sql_of(expression(tokens)), writes=target(tokens, 2))


def _update(sql: str, tokens: Sequence[Token]) -> Plan:
    return Plan(sql, sql_of(expression(tokens)), writes=target(tokens, 1))


def _delete(sql: str, tokens: Sequence[Token]) -> Plan:
    rewritten = list(tokens) if says(tokens, 1, "FROM") else [tokens[0], *lex("FROM"), *tokens[1:]]
    return Plan(sql, sql_of(expression(rewritten)), writes=target(rewritten, 2))


def _with(sql: str, tokens: Sequence[Token]) -> Plan:
    """WITH before a SELECT, or before a DELETE or UPDATE, which needs the table's write lock like any other."""
    at = after_with(tokens)
    if at < len(tokens) and tokens[at].up in ("DELETE", "UPDATE"):
        named = at + (2 if says(tokens, at + 1, "FROM") else 1)
        return Plan(sql, sql_of(expression(tokens)), writes=target(tokens, named))
    return _other(sql, tokens)


def _vacuum(sql: str, tokens: Sequence[Token]) -> Plan:
    return Plan(sql, run=script(tag="VACUUM"), outside="VACUUM cannot run inside a transaction block")


def _analyze(sql: str, tokens: Sequence[Token]) -> Plan:
    named = len(tokens) > 1 and tokens[1].up != "COMPRESSION"
    return Plan(sql, run=script(*([f"ANALYZE {target(tokens, 1)}"] if named else []), tag="ANALYZE"))


def _cancel(sql: str, tokens: Sequence[Token]) -> Plan:
    if len(tokens) < 2 or tokens[1].kind != "number":
        raise syntax_error(tokens[1] if len(tokens) > 1 else None)
    return Plan(sql, run=script(f"SELECT pg_cancel_backend({tokens[1].text})", tag="CANCEL"))


def _not_here(sql: str, tokens: Sequence[Token]) -> Plan:
    raise SqlError("0A000", f"the stand-in has no {tokens[0].up}")


_STATEMENTS = {
    "BEGIN": _begin, "START": _begin, "SET": _set, "SHOW": _show, "RESET": _reset, "LOCK": _lock, "COPY": _copy,
    "TRUNCATE": _truncate, "CREATE": _create, "ALTER": _alter, "INSERT": _insert, "UPDATE": _update,
    "DELETE": _delete, "MERGE": merge, "VACUUM": _vacuum, "ANALYZE": _analyze, "CANCEL": _cancel, "UNLOAD": _not_here,
    "GRANT": _grant, "REVOKE": _grant, "WITH": _with,
}  # fmt: skip
