"""What only Redshift's leader node can do, and so can't be combined in one query with tables on compute nodes.

Pure: looks at tokens. Any relation outside the catalog counts as being on compute nodes; for functions that includes
views and the STL, STV, SVL, SVV and SYS relations, as AWS documents it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.redshift.functions import BEFORE_NAMES
from tests.support.redshift.tokens import Token, closing, word_set
from tests.support.redshift.wire import SqlError

# AWS's list of leader node-only functions, including deprecated ones, and PostgreSQL's catalog functions.
_FUNCTIONS = word_set(
    """CURRENT_SCHEMA CURRENT_SCHEMAS HAS_ASSUMEROLE_PRIVILEGE HAS_COLUMN_PRIVILEGE HAS_DATABASE_PRIVILEGE
    HAS_SCHEMA_PRIVILEGE HAS_TABLE_PRIVILEGE SUBSTR FACTORIAL LOG AGE ISFINITE NOW GET_BIT GET_BYTE SET_BIT SET_BYTE
    TO_ASCII VERSION GENERATE_SERIES FORMAT_TYPE PG_GET_EXPR PG_GET_USERBYID PG_GET_VIEWDEF PG_GET_CONSTRAINTDEF
    PG_TABLE_IS_VISIBLE OBJ_DESCRIPTION COL_DESCRIPTION INET_SERVER_ADDR DEFAULT_IAM_ROLE"""
)
_WORDS = word_set("CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP")
_BEFORE_RELATIONS = word_set("FROM JOIN INTO UPDATE USING")
_AFTER_FROM = word_set(
    "WHERE GROUP ORDER HAVING LIMIT UNION EXCEPT INTERSECT MINUS ON SET SELECT VALUES WHEN QUALIFY WINDOW"
)
_FROM_INSIDE = word_set("EXTRACT TRIM BTRIM SUBSTRING OVERLAY POSITION")  # EXTRACT(day FROM a)
_SYSTEM = ("stl_", "stv_", "svl_", "sys_", "svcs_")
REFUSAL = "Specified types or functions (one per INFO message) not supported on Redshift tables."


class LeaderOnly(SqlError):
    """The refusal, and the notices before it."""

    def __init__(self, *infos: str) -> None:
        super().__init__("0A000", REFUSAL)
        self.infos = infos


@dataclass(frozen=True)
class Relation:
    """A relation that a statement names."""

    schema: str
    name: str

    @property
    def catalog(self) -> bool:
        """Whether it lives on the leader node."""
        return self.schema == "information_schema" or self.name.startswith("pg_")

    @property
    def system(self) -> bool:
        """Whether it is one of Redshift's system views or tables."""
        return self.catalog or self.name.startswith((*_SYSTEM, "svv_"))


def refuse_leader_only(tokens: Sequence[Token]) -> None:
    """Raise if a statement combines leader-only features with data on compute nodes."""
    functions = list(_functions(tokens))
    if not functions and not any(_catalog_name(token) for token in tokens):
        return
    found = set(relations(tokens))
    if tokens[0].up == "CREATE" and any(token.up == "TABLE" for token in tokens[:5]):
        found.add(Relation("", "the new table"))
    if functions and any(not relation.catalog for relation in found):
        if "substr" in functions:
            raise SqlError("0A000", "SUBSTR() function is not supported (Hint: use SUBSTRING instead)")
        raise LeaderOnly(*(f'Function "{name}()" not supported.' for name in functions))
    leader = [r for r in found if r.catalog or r.name.startswith("svv_")]
    if leader and any(not relation.system for relation in found):
        raise LeaderOnly(*(f'Table "{relation.name}" not supported.' for relation in leader))


def _functions(tokens: Sequence[Token]) -> Iterator[str]:
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else None
        if not token.named or (
            before is not None and before.text == "." and tokens[at - 2].name != "pg_catalog"
        ):
            continue
        called = at + 1 < len(tokens) and tokens[at + 1].text == "("
        if before is not None and before.up in BEFORE_NAMES:
            called = False
        if token.up in _WORDS or (called and token.name.upper() in _FUNCTIONS):
            yield token.name


def _catalog_name(token: Token) -> bool:
    return token.named and token.name.startswith(("pg_", "svv_", "information_schema"))


def relations(tokens: Sequence[Token]) -> Iterator[Relation]:
    """The relations that a statement reads or writes, except common table expressions."""
    common = _common(tokens)
    lists: list[bool] = [False]  # for each open parenthesis: whether a list of relations is being read
    owners: list[str] = [""]  # and the word before it
    for at, token in enumerate(tokens):
        if token.kind == "op" and token.text == "(":
            lists.append(False)
            owners.append(tokens[at - 1].up if at else "")
        elif token.kind == "op" and token.text == ")":
            if len(lists) > 1:
                lists.pop()
                owners.pop()
        elif token.up in _BEFORE_RELATIONS and owners[-1] not in _FROM_INSIDE:
            lists[-1] = True
            yield from _relation(tokens, at + 1, common)
        elif token.up in _AFTER_FROM:
            lists[-1] = False
        elif token.kind == "op" and token.text == "," and lists[-1]:
            yield from _relation(tokens, at + 1, common)


def _relation(tokens: Sequence[Token], at: int, common: frozenset[str]) -> Iterator[Relation]:
    while at < len(tokens) and tokens[at].text == "(":  # (t JOIN u …); a subquery has its own FROM
        at += 1
    if at >= len(tokens) or not tokens[at].named or tokens[at].up in ("SELECT", "WITH", "ONLY"):
        return
    parts = [tokens[at].name]
    while at + 2 < len(tokens) and tokens[at + 1].text == "." and tokens[at + 2].named:
        at += 2
        parts.append(tokens[at].name)
    called = at + 1 < len(tokens) and tokens[at + 1].text == "("
    if called and tokens[at].up in _FUNCTIONS:
        return
    if len(parts) == 1 and parts[0] in common:
        return
    yield Relation(parts[-2] if len(parts) > 1 else "", parts[-1])


def _common(tokens: Sequence[Token]) -> frozenset[str]:
    """The names defined by WITH."""
    found = set()
    for at, token in enumerate(tokens):
        if (
            not token.named
            or at == 0
            or not (tokens[at - 1].up in ("WITH", "RECURSIVE") or tokens[at - 1].text == ",")
        ):
            continue
        end = at + 1
        if end < len(tokens) and tokens[end].text == "(":
            end = closing(tokens, end) + 1
        if end + 1 < len(tokens) and tokens[end].up == "AS" and tokens[end + 1].text == "(":
            found.add(token.name)
    return frozenset(found)
