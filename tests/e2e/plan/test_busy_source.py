"""Rows that change while a plan is being made: whatever the order of questions and changes, none of them is an error."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from floodmark.source import identity
from floodmark.source import ranges as edges
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source


@pytest.mark.parametrize(("module", "question"), [(identity, "answers"), (edges, "nth"), (edges, "last")])
def test_a_watermark_row_that_changes_between_two_queries_is_not_a_source_set_back(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, module: ModuleType, question: str
) -> None:
    workspace.execute(create_orders(), fill_orders(100))
    workspace.synced("orders")
    if question == "nth":  # not asked without news
        workspace.execute("UPDATE orders SET note = 'news' WHERE id = 7")
    real = getattr(module, question)
    changed: list[bool] = []

    def asked(*args: Any, **more: Any) -> Any:
        answer = real(*args, **more)
        if not changed:
            changed.append(True)
            workspace.execute("UPDATE orders SET note = 'meanwhile' WHERE id = 700")
        return answer

    monkeypatch.setattr(module, question, asked)
    workspace.synced("orders")
    monkeypatch.undo()
    workspace.synced("orders")
    assert changed
    assert workspace.compare("orders").equal
