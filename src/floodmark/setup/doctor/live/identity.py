"""Who we are to the database, what it is, and which of its options are on."""

from __future__ import annotations

from floodmark.services.warehouse.redshift.facts import isolation_queries
from floodmark.services.warehouse.redshift.names import literal
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, tried

_GROUP = "database"


def _one(live: Live, sql: str) -> object:
    """The first cell of a result; Unknown if the database or the user's privileges don't yield one."""
    with live.session(live.first) as session:
        found = tried(session, sql)
    if isinstance(found, Refusal):
        raise Unknown(str(found))
    if not found:
        raise Unknown("no rows: there are none, or this user may not see them")
    return found[0][0]


def _version(live: Live) -> Answer:
    said = str(_one(live, "SELECT version()"))
    return Answer("redshift" in said.lower(), said)


def _user(live: Live) -> Answer:
    with live.session(live.first) as session:
        found = tried(session, "SELECT usesuper, usecreatedb FROM pg_user WHERE usename = current_user")
    if isinstance(found, Refusal) or not found:
        raise Unknown(str(found))
    superuser = bool(found[0][0])
    return Answer(
        not superuser,
        "a superuser: this proves nothing about privileges" if superuser else "an ordinary user",
    )


def isolation(live: Live) -> str:
    """SNAPSHOT or SERIALIZABLE; Unknown if Redshift doesn't show it."""
    everywhere, provisioned = isolation_queries(str(_one(live, "SELECT current_database()")))
    try:
        said = str(_one(live, everywhere))
    except Unknown:
        said = str(_one(live, provisioned))
    return "SERIALIZABLE" if "serial" in said.lower() else "SNAPSHOT"


def _isolation(live: Live) -> Answer:
    level = isolation(live)
    return Answer(level == "SNAPSHOT", level)


def _large_strings(live: Live) -> Answer:
    enabled = str(_one(live, "SELECT is_large_string_enabled()")).lower()
    return Answer(enabled in ("true", "false"), f"is_large_string_enabled() is {enabled}")


def _case(live: Live) -> Answer:
    said = str(_one(live, "SHOW enable_case_sensitive_identifier"))
    return Answer(said.lower() in ("off", "false"), f"enable_case_sensitive_identifier is {said}")


def _zone(live: Live) -> Answer:
    said = str(_one(live, "SHOW timezone"))
    return Answer(said.upper() in ("UTC", "ETC/UTC"), said)


def _default_role(live: Live) -> Answer:
    said = str(_one(live, "SELECT default_iam_role()")).strip()
    return Answer(True, "set" if said and said.lower() != "none" else "not set")


def _assume_role(live: Live) -> Answer:
    with live.session(live.first) as session:
        found = tried(session, "SELECT iam_arn, command_type, identity_type FROM svv_iam_privileges")
    if isinstance(found, Refusal):
        raise Unknown(str(found))
    said = sorted({"{1} on {0} for {2}".format(*(str(cell).strip() for cell in row)) for row in found})
    return Answer(True, ", ".join(said) or "nothing is granted, or this user may not see it")


def _may_assume(live: Live) -> Answer:
    role = live.spec.iam_role or "default"
    if role.lower() == "default":
        role = str(_one(live, "SELECT default_iam_role()")).strip()
        if not role.startswith("arn:"):
            raise Unknown("there is no default role")
    said = str(_one(live, f"SELECT has_assumerole_privilege({literal(role)}, 'copy')")).lower()
    return Answer(said in ("true", "t", "1"), said)


def _leader(live: Live) -> Answer:
    """A statement that runs on the leader node alone, then the same combined with a table."""
    with live.session(live.first) as session:
        session.execute(f"CREATE TABLE {live.path('leader')} (id BIGINT)")
        session.execute(f"INSERT INTO {live.path('leader')} VALUES (1)")
        alone = tried(session, "SELECT current_schema()")
        beside = tried(session, f"SELECT id, current_schema() FROM {live.path('leader')}")
    if isinstance(alone, Refusal):
        return Answer(False, f"refused even alone: {alone}")
    if isinstance(beside, Refusal):
        return Answer(True, str(beside), beside.as_json())
    return Answer(False, "accepted next to a table, too")


PROBES = (
    Probe(_GROUP, "version", "Which version is it?", "Redshift", _version),
    Probe(
        _GROUP, "user", "Is this an ordinary user?", "not a superuser: ordinary privileges are enough", _user
    ),
    Probe(
        _GROUP,
        "isolation",
        "Which isolation level does the database have?",
        "SNAPSHOT, the default of new clusters; every user may see it",
        _isolation,
    ),
    Probe(
        _GROUP,
        "large strings",
        "Does is_large_string_enabled() show whether enable_large_strings_opt_in is on?",
        "true or false; if true, strings inside SUPER may have up to 16,000,000 bytes",
        _large_strings,
    ),
    Probe(
        _GROUP,
        "names",
        "Are names folded to lower case?",
        "enable_case_sensitive_identifier is off",
        _case,
    ),
    Probe(_GROUP, "zone", "Is the session in UTC after SET TIMEZONE?", "UTC", _zone),
    Probe(
        _GROUP,
        "default role",
        "Does default_iam_role() return the default role?",
        "set or not set",
        _default_role,
    ),
    Probe(
        _GROUP,
        "ASSUMEROLE",
        "Which privileges on IAM roles does svv_iam_privileges show?",
        "every user may query it, and sees their own",
        _assume_role,
    ),
    Probe(
        _GROUP,
        "COPY's role",
        "Does has_assumerole_privilege() say that the user may COPY with the configured role or chain?",
        "true",
        _may_assume,
    ),
    Probe(
        _GROUP,
        "leader node",
        "Is a leader-node function refused next to a table?",
        "refused: not supported on Redshift tables",
        _leader,
    ),
)
