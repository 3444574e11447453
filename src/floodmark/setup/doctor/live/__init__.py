"""`doctor --redshift-live`: checks everything that we assume about Redshift against a live one.

It works in its own schema and store prefix, removes both afterwards, and reads and writes nothing else.
"""

from __future__ import annotations

from floodmark.setup.doctor.live.place import Scale
from floodmark.setup.doctor.live.run import GROUPS, PROBES, Report, examine_live

__all__ = ["GROUPS", "PROBES", "Report", "Scale", "examine_live"]
