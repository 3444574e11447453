"""A table's state: the commit log and its fold, the published watermarks, the claim and its lease.

The log is the truth of what was extracted, the warehouse's ledger of what was loaded; all else is derived.
"""

from floodmark.state.claims import Changed, Claimed, claim, refuse_if_held
from floodmark.state.fold import ClaimInfo, DataCommit, FileRef, State, begun_anew
from floodmark.state.lease import Holder, Lease, holder, this_process
from floodmark.state.loaded import LedgerRow, Loaded, condense, unloaded
from floodmark.state.log import Log, Taken, draft
from floodmark.state.older import Older
from floodmark.state.publish import Watermark, examine, parse
from floodmark.state.watermark import (
    Checkpoint,
    Copy,
    Failure,
    commit_path,
    daily_path,
    document,
    observe,
    primary_path,
    session_path,
    stamp,
)

__all__ = [
    "Changed", "Checkpoint", "ClaimInfo", "Claimed", "Copy", "DataCommit", "Failure", "FileRef", "Holder", "Lease",
    "LedgerRow", "Loaded", "Log", "Older", "State", "Taken", "Watermark", "begun_anew", "claim", "commit_path", "condense",
    "daily_path", "document", "draft", "examine", "holder", "observe", "parse", "primary_path", "refuse_if_held",
    "session_path", "stamp", "this_process", "unloaded",
]  # fmt: skip
