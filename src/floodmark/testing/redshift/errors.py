"""PostgreSQL's errors in Redshift's words, where programs tell them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping

from floodmark.testing.redshift.faults import ISOLATION
from floodmark.testing.redshift.wire import Fields

_LENGTH = re.compile(r"rs_(varchar|char|varbyte)_(\d+)$")
_WORDS = {"varchar": "character varying", "char": "character", "varbyte": "binary varying"}


def as_redshift(fields: Mapping[str, str], query: int) -> Fields:
    """The fields of an error as Redshift would send them."""
    found = {letter: value for letter, value in fields.items() if letter not in "PpqWFLR"}
    code, domain = found.get("C", ""), found.get("d", "")
    if code == "40001":
        detail = ISOLATION.format(table=100_000 + query, a=query, b=query + 1, pid=4711)
        found.update(C="XX000", M="1023", D=detail)
        found.pop("H", None)
    elif code == "57014" and "timeout" not in found.get("M", "").replace("statement timeout", ""):
        found["M"] = f"Query ({query}) canceled on user's request"
    elif code == "23514" and domain.startswith("rs_"):
        length = _LENGTH.match(domain)
        if length:
            words = f"value too long for type {_WORDS[length[1]]}({length[2]})"
            found = {"S": "ERROR", "V": "ERROR", "C": "22001", "M": words}
        else:
            found = {"S": "ERROR", "V": "ERROR", "C": "22003", "M": "Numeric data overflow"}
    elif code == "23502" and "c" in found:
        found["M"] = f"Cannot insert a NULL value into column {found['c']}"
        found.pop("D", None)
    elif code == "21000" and "MERGE" in found.get("M", ""):
        found["M"] = "Found multiple matches to update the same tuple."
        found.pop("H", None)
    return found
