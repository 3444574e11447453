"""The server and the table that a session has read, compared with those that were planned for."""

from __future__ import annotations

import pytest

from floodmark.model.errors import FloodmarkError
from floodmark.model.origin import UNKNOWN_SOURCE, SourceChanged, SourceId, Sources

HERE = SourceId("hostname=a/port=3306/server_id=1", "2025-01-01 00:00:00", 7)


def test_sources_differ_only_in_what_is_known_of_both() -> None:
    assert HERE.differs(HERE) is None and HERE.differs(UNKNOWN_SOURCE) is None
    assert HERE.differs(SourceId(HERE.server, HERE.created)) is None
    assert HERE.differs(SourceId("hostname=b/port=3306/server_id=2")) == "server"
    assert HERE.differs(SourceId(HERE.server, HERE.created, 8)) == "table"
    assert HERE.differs(SourceId(HERE.server, "2025-01-02 00:00:00")) == "table"


def test_what_was_read_elsewhere_is_refused_once_and_for_another_plan_then_for_good() -> None:
    sources, results = Sources(), [SourceId("hostname=b/port=3306/server_id=2")] * 2

    def read() -> None:
        sources.expect("shop.orders", HERE)
        sources.check("shop.orders", results.pop() if results else HERE)

    with pytest.raises(SourceChanged, match=r"a:3306 \(server_id 1\) and b:3306 \(server_id 2\)") as changed:
        sources.twice(read)
    assert not results and changed.value.code == 4 and isinstance(changed.value, FloodmarkError)
    results.append(SourceId(HERE.server, HERE.created, 8))
    sources.twice(read)
    assert sources.doubted("shop.orders") and not sources.doubted("shop.others")
