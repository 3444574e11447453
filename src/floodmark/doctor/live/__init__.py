"""`doctor --redshift-live`: everything that we assume of Redshift, asked of a live one.

In a schema and below a prefix of its own, which are removed afterwards; nothing else is read or written.
"""

from __future__ import annotations

from floodmark.doctor.live.place import Scale
from floodmark.doctor.live.run import GROUPS, PROBES, Report, examine_live

__all__ = ["GROUPS", "PROBES", "Report", "Scale", "examine_live"]
