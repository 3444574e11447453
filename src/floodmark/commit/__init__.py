"""A table's state: the commit log and its fold, the published watermarks, the claim and its lease.

The log is the source of truth for extraction, the warehouse's ledger for loading; everything else is derived.
"""

from floodmark.commit.claim import Changed, Claimed, claim, refuse_if_held
from floodmark.commit.counts import Older
from floodmark.commit.document import (
    Checkpoint,
    Copy,
    Failure,
    Flaw,
    commit_path,
    daily_path,
    document,
    observe,
    primary_path,
    session_path,
)
from floodmark.commit.fold import (
    ClaimInfo,
    Data,
    DataCommit,
    Extraction,
    FileRef,
    Progress,
    State,
    begun_anew,
)
from floodmark.commit.lease import Holder, Lease, holder, this_process
from floodmark.commit.load_status import Loaded, condense, unloaded
from floodmark.commit.log import Log, Taken, draft
from floodmark.commit.publish import Watermark, examine, parse

__all__ = [
    "Changed", "Checkpoint", "ClaimInfo", "Claimed", "Copy", "Data", "DataCommit", "Extraction", "Failure", "FileRef",
    "Flaw", "Holder", "Lease", "Loaded", "Log", "Older", "Progress", "State", "Taken", "Watermark", "begun_anew",
    "claim", "commit_path", "condense", "daily_path", "document", "draft", "examine", "holder", "observe", "parse",
    "primary_path", "refuse_if_held", "session_path", "this_process", "unloaded",
]  # fmt: skip
