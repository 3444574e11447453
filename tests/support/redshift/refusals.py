"""What PostgreSQL accepts and Redshift does not, and small differences inside expressions.

`refuse` raises for a whole statement; `expression` rewrites the few words that PostgreSQL lacks. Both look at
tokens only: they may let a construct through to PostgreSQL, but never refuse a valid one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.redshift.equijoins import refuse_other_joins
from tests.support.redshift.functions import HIDDEN, undocumented
from tests.support.redshift.leader import refuse_leader_only
from tests.support.redshift.tokens import (
    Token,
    closing,
    find,
    has,
    quote,
    raw,
    says,
    syntax_error,
    word,
    word_set,
)
from tests.support.redshift.wire import SqlError

# Words that only Redshift reserves; PostgreSQL takes them for names.
REFUSED_NAMES = word_set(
    """AES128 AES256 ALLOWOVERWRITE ANALYSE AZ64 BACKUP BINARY BLANKSASNULL BYTEDICT BZIP2 CREDENTIALS
    CURRENT_USER_ID DEFLATE DEFRAG DELTA DELTA32K DISABLE EMPTYASNULL ENABLE ENCODE ENCRYPT ENCRYPTION EXPLICIT
    GLOBALDICT256 GLOBALDICT64K GZIP IDENTITY IGNORE LUN LUNS LZO LZOP MINUS MOSTLY8 MOSTLY16 MOSTLY32 OFFLINE OFFSET
    OID OLD NEW OPEN PARALLEL PARTITION PERCENT PERMISSIONS PIVOT RAW READRATIO RECOVER REJECTLOG RESORT RESPECT
    RESTORE SNAPSHOT SYSDATE SYSTEM TAG TDES TEXT255 TEXT32K TIMESTAMP TOP TRUNCATECOLUMNS UNNEST UNPIVOT WALLET
    WITHOUT"""
)
# Those among them that also occur in expressions or clauses.
_KEYWORDS = word_set(
    """BINARY IDENTITY IGNORE MINUS OFFSET OLD NEW PARTITION PERCENT PIVOT RESPECT SYSDATE TIMESTAMP TOP UNNEST UNPIVOT
    WITHOUT OID ENCODE"""
)
_RESERVED = REFUSED_NAMES - _KEYWORDS
_FUNCTIONS = word_set(
    """STRING_AGG ARRAY_AGG UNNEST JSONB_AGG JSON_AGG JSON_BUILD_OBJECT JSONB_BUILD_OBJECT JSONB_BUILD_ARRAY
    JSONB_EACH JSON_EACH JSONB_SET JSONB_TYPEOF JSONB_ARRAY_ELEMENTS TO_JSON TO_JSONB ROW_TO_JSON GEN_RANDOM_UUID
    PG_ADVISORY_LOCK PG_ADVISORY_XACT_LOCK PG_TRY_ADVISORY_LOCK PG_TRY_ADVISORY_XACT_LOCK PG_ADVISORY_UNLOCK
    PG_SLEEP CLOCK_TIMESTAMP STATEMENT_TIMESTAMP TRANSACTION_TIMESTAMP CONVERT_TO CONVERT_FROM ENCODE TO_REGCLASS
    FORMAT TXID_CURRENT TXID_STATUS PG_CURRENT_XACT_ID PG_XACT_STATUS MAKE_DATE MAKE_TIMESTAMP MAKE_INTERVAL
    NUM_NONNULLS EVERY PG_READ_FILE PG_LS_DIR RS_SYSDATE RS_NAME RS_MARKED RS_TYPE REGEXP_MATCHES
    REGEXP_SPLIT_TO_TABLE XMLAGG SHA224 SHA256 SHA384 SHA512"""
)
_TYPES = word_set(
    """BYTEA JSON JSONB UUID XML INET CIDR MACADDR MONEY BIT POINT BOX CIRCLE POLYGON TSVECTOR TSQUERY SERIAL
    BIGSERIAL SMALLSERIAL HSTORE NAME XID"""
)
_AGGREGATES = word_set("SUM AVG COUNT MIN MAX FIRST_VALUE LAST_VALUE STDDEV VARIANCE BOOL_OR BOOL_AND")
# Statements that Redshift does not know at all, by their first words.
_STATEMENTS = (
    *(("CREATE", kind) for kind in (
        "INDEX", "UNIQUE", "SEQUENCE", "DOMAIN", "TYPE", "EXTENSION", "TRIGGER", "RULE", "UNLOGGED", "CAST", "OPERATOR",
        "ROLE", "TABLESPACE", "PUBLICATION", "SUBSCRIPTION", "EVENT", "SERVER", "FOREIGN", "POLICY", "STATISTICS",
        "AGGREGATE", "COLLATION",
    )),
    *(("DROP", kind) for kind in ("INDEX", "SEQUENCE", "DOMAIN", "TYPE", "EXTENSION", "TRIGGER", "RULE")),
    *(("ALTER", kind) for kind in ("INDEX", "SEQUENCE", "DOMAIN", "TYPE", "EXTENSION", "TRIGGER", "RULE")),
    *((kind,) for kind in (
        "SAVEPOINT", "RELEASE", "DO", "LISTEN", "NOTIFY", "UNLISTEN", "REINDEX", "CLUSTER", "CHECKPOINT", "DISCARD",
        "VALUES", "TABLE", "IMPORT", "SECURITY", "REFRESHES",
    )),
)  # fmt: skip
_PHRASES = (
    ("ON", "CONFLICT"), ("RETURNING",), ("FOR", "UPDATE"), ("FOR", "SHARE"), ("FOR", "NO", "KEY"), ("DISTINCT", "ON"),
    ("IS", "DISTINCT", "FROM"), ("IS", "NOT", "DISTINCT", "FROM"), ("LATERAL",), ("TABLESAMPLE",),
    ("MATERIALIZED",), ("NULLS", "NOT", "DISTINCT"), ("OVERRIDING",), ("FETCH", "FIRST"), ("ROLLBACK", "TO"),
    ("ON", "COMMIT"), ("ADD", "COLUMN", "IF"), ("DROP", "COLUMN", "IF"), ("ALTER", "TABLE", "IF"), ("SET", "SCHEMA"),
    ("COMMIT", "AND"), ("PREPARE", "TRANSACTION"),
)  # fmt: skip
_OPERATORS = frozenset(("->", "->>", "@>", "<@"))
_DML = frozenset(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE"))


def refuse(tokens: Sequence[Token]) -> None:
    """Raise for a statement that Redshift would refuse, even inside another one such as EXPLAIN."""
    first = tokens[0].up
    if first in ("EXPLAIN", "PREPARE", "DECLARE") and (inner := _inner(tokens)):
        refuse(inner)
        return
    for words in _STATEMENTS:
        if says(tokens, 0, *words):
            raise syntax_error(tokens[len(words) - 1])
    known = {token.up for token in tokens}
    for words in _PHRASES:
        for at in find(tokens, *words) if known.issuperset(words) else ():
            if words == ("MATERIALIZED",) and first in ("CREATE", "DROP", "REFRESH"):
                continue
            raise syntax_error(tokens[at + len(words) - 1])
    main = tokens[after_with(tokens) :]
    if first in _DML:
        _refuse_words(tokens, first)
        refuse_leader_only(tokens)
    if main and main[0].up in ("UPDATE", "DELETE"):
        refuse_other_joins(main)


def _inner(tokens: Sequence[Token]) -> Sequence[Token]:
    """The statement inside another one."""
    if tokens[0].up == "EXPLAIN":
        inner = tokens[2 if says(tokens, 1, "VERBOSE") else 1 :]
        if inner and inner[0].up not in _DML:  # ANALYZE, options in parentheses
            raise syntax_error(inner[0])
        return inner
    word = "AS" if tokens[0].up == "PREPARE" else "FOR"
    return next((tokens[at + 1 :] for at in find(tokens, word)), ())


def after_with(tokens: Sequence[Token]) -> int:
    """Where the statement proper begins, after WITH and its queries; raises if it can't have a WITH."""
    if tokens[0].up != "WITH":
        return 0
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind == "op":
            depth += (token.text == "(") - (token.text == ")")
        if token.up in ("INSERT", "MERGE") or (depth and token.up in ("UPDATE", "DELETE")):
            raise syntax_error(token)
        if not depth and token.up in ("SELECT", "UPDATE", "DELETE"):
            return at
    return len(tokens)


def _refuse_words(tokens: Sequence[Token], first: str) -> None:
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind == "op":
            depth += (token.text == "(") - (token.text == ")")
        following = tokens[at + 1].text if at + 1 < len(tokens) else ""
        if token.kind == "op" and (token.text in _OPERATORS or token.text == "["):
            raise SqlError("42883", f"operator does not exist: {token.text}")
        if token.text == "::" and at + 1 < len(tokens) and tokens[at + 1].up in _TYPES:
            raise SqlError("42704", f'type "{tokens[at + 1].name}" does not exist')
        if token.kind != "word":
            continue
        if following == "(":
            _refuse_call(tokens, at)
        elif token.up in _RESERVED and first != "CREATE":
            raise syntax_error(token)
        if token.up == "ARRAY" and following == "[":
            raise syntax_error(token)
        if token.up == "VALUES" and (depth or first not in ("INSERT", "MERGE")):  # FROM (VALUES …)
            raise syntax_error(token)
        if token.up == "AS" and at + 1 < len(tokens) and tokens[at + 1].up in _TYPES and following != "(":
            end = tokens[at + 2].text if at + 2 < len(tokens) else ""
            if end == ")":
                raise SqlError("42704", f'type "{tokens[at + 1].name}" does not exist')


def _refuse_call(tokens: Sequence[Token], at: int) -> None:
    """Raise for a function that Redshift lacks, or a window function without its frame."""
    up = tokens[at].up
    if up in _FUNCTIONS:
        raise SqlError("42883", f"function {tokens[at].name}() does not exist")
    if up == "FILTER" and at and tokens[at - 1].text == ")":
        raise syntax_error(tokens[at + 1])
    if up in _AGGREGATES:
        end = closing(tokens, at + 1)
        if says(tokens, end + 1, "OVER") and end + 2 < len(tokens) and tokens[end + 2].text == "(":
            frame = tokens[end + 3 : closing(tokens, end + 2)]
            if has(frame, "ORDER", "BY") and not has(frame, "ROWS"):
                raise SqlError(
                    "0A000", "Aggregate window functions with an ORDER BY clause require a frame clause"
                )


def expression(tokens: Sequence[Token]) -> list[Token]:
    """Translate Redshift's words inside expressions to PostgreSQL's."""
    found: list[Token] = []
    ends: list[int] = []  # of sums
    spoken = -1  # the last token already covered by another one
    for at, token in enumerate(tokens):
        if at <= spoken:
            continue
        while at - 1 in ends:
            ends.remove(at - 1)
            found.append(raw(")"))
        following = tokens[at + 1].text if at + 1 < len(tokens) else ""
        before = tokens[at - 1].text if at else ""
        if token.up == "SYSDATE" and before != ".":
            found.append(raw("pg_catalog.rs_sysdate()"))
        elif token.up in ("NVL", "ISNULL") and following == "(":
            found.append(word("coalesce"))
        elif token.up in ("PG_CLASS", "PG_ATTRIBUTE"):
            found.append(word(f"rs_{token.name}"))  # with names of more than 63 bytes
        elif token.up == "FORMAT_TYPE" and following == "(":
            found.append(word("rs_type"))  # shows Redshift's types for the stand-in's domains
        elif token.up == "SUM" and following == "(" and before != ".":
            end = closing(tokens, at + 1)
            ends.append(closing(tokens, end + 2) if says(tokens, end + 1, "OVER") else end)
            found.append(raw("rs_checked.sum(pg_catalog.sum"))
        elif undocumented(tokens, at):
            found.append(raw(quote(HIDDEN + token.name)))
        elif token.up == "MINUS":
            found.append(word("EXCEPT"))
        elif (
            token.up == "MAX"
            and before == "("
            and following == ")"
            and tokens[at - 2].up in ("VARCHAR", "VARYING")
        ):
            found.append(raw("65535"))
        elif token.up in ("VARBYTE", "VARBINARY") and (before == "::" or before.upper() == "AS"):
            found.append(word("bytea"))  # of any length: the column that takes the value checks it
            spoken = closing(tokens, at + 1) if following == "(" else spoken
        elif token.up == "SUPER" and (before == "::" or before.upper() == "AS") and following != ".":
            raise SqlError("0A000", "the stand-in has no cast to SUPER: use JSON_PARSE")
        elif (
            before == "("
            and following == ","
            and token.kind == "word"
            and at > 1
            and tokens[at - 2].up == "DATEADD"
        ):
            found.append(raw(f"'{token.name}'"))
        else:
            found.append(token)
    return [*found, *(raw(")") for _ in ends)]
