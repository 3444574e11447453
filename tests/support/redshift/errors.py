"""Errors as Redshift words them: its executor's, and PostgreSQL's where programs distinguish them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.support.redshift.functions import HIDDEN
from tests.support.redshift.wire import Fields, SqlError

ISOLATION = "Serializable isolation violation on table - {table}, transactions forming the cycle are: {a}, {b} (pid:{pid})"
_RULE = "-" * 47
_LENGTH = re.compile(r"rs_(varchar|char|varbyte)_(\d+)$")
_WORDS = {"varchar": "character varying", "char": "character", "varbyte": "binary varying"}
# Type names in messages: the stand-in's domains, and PostgreSQL's names where Redshift's differ.
_TYPES = (
    (re.compile(r"\b(?:pg_catalog\.)?rs_varchar_\d+|\btext\b"), "character varying"),
    (re.compile(r"\b(?:pg_catalog\.)?rs_char_\d+"), "character"),
    (re.compile(r"\b(?:pg_catalog\.)?rs_varbyte_\d+|\bbytea\b"), "binary varying"),
    (re.compile(r"\b(?:pg_catalog\.)?rs_decimal_\w+"), "numeric"),
    (re.compile(r"\bjsonb\b"), "super"),
    (re.compile(r"\bunknown\b"), '"unknown"'),
)


def internal_error(message: str, code: int, context: str, query: int = 0) -> SqlError:
    """An error as Redshift's executor words it: XX000, with the substance in the detail."""
    detail = (
        f"\n  {_RULE}\n  error:  {message}\n  code:      {code}\n  context:   {context}\n  query:     {query}\n"
        f"  location:  dory_util.cpp:1509\n  process:   worker_thread [pid=4711]\n  {_RULE}\n"
    )
    return SqlError("XX000", message, detail)


def spectrum_error(code: int, context: str, query: int = 0) -> SqlError:
    """An error of the Parquet reader; it truncates the context."""
    return internal_error("Spectrum Scan Error", code, context[:400], query)


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
    elif code == "42883":
        words = found.get("M", "").replace(HIDDEN, "")
        for pattern, word in _TYPES:
            words = pattern.sub(word, words)
        found["M"] = words
    elif code == "23514" and domain == "rs_joined":
        words = "CONCAT() result too long for type varchar(65535)"
        found = internal_error("Invalid input", 8001, words, query).fields
    elif code == "23514" and domain == "rs_text":
        words = "Value too long for type character varying(65535)"
        found = internal_error("Value too long for character type", 8001, words, query).fields
    elif code == "23514" and domain == "rs_sum":
        found = internal_error("Numeric data overflow (addition)", 1058, "", query).fields
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
