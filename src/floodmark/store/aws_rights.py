"""Turns AWS's "not authorized to perform" into the policy statement that would allow it.

Only the action, the resource and the principal are taken from AWS's text. Pure.
"""

from __future__ import annotations

import json
import re

_DENIED = re.compile(
    r"(?:\bUser: (?P<who>arn:[^\s<,]+) is )?not authorized to perform: (?P<action>[\w-]+:\w+)"
    r"(?: on resource: (?:\"|&quot;)?(?P<resource>arn:[^\s\"&<,]+|\*))?",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(
    r"with an explicit deny(?: in an? (?P<where>[\w -]*?(?:policy|boundary)))?", re.IGNORECASE
)


def allowing(text: str) -> str | None:
    """What to do about an action that AWS denied; None if its message names no action."""
    denied = _DENIED.search(text)
    if denied is None:
        return None
    who, action, resource = denied["who"], denied["action"], (denied["resource"] or "*").rstrip(".")
    forbidden = _FORBIDDEN.search(text, denied.end())
    if forbidden is not None:
        return f"an explicit Deny in a {forbidden['where'] or 'policy'} forbids {action} on {resource}: change it"
    statement = json.dumps({"Effect": "Allow", "Action": action, "Resource": resource})
    return f"add to a policy of {who}: {statement}" if who else f"add to its policy: {statement}"
