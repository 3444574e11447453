"""What tests of the whole pipeline share beyond tests/conftest.py."""

from __future__ import annotations

import duckdb
import pytest

from floodmark.testing.redshift import RedshiftStandIn
from tests.conftest import Workspace
from tests.verifying import Verifying


@pytest.fixture(params=["duckdb", "redshift"])
def place(request: pytest.FixtureRequest) -> Verifying:
    """A workspace with DuckDB, and one with the stand-in for Redshift."""
    if request.param == "duckdb":
        workspace: Workspace = request.getfixturevalue("workspace")

        def change(*statements: str) -> None:
            with duckdb.connect(str(workspace.warehouse)) as link:
                link.execute("SET TimeZone = 'UTC'")
                for statement in statements:
                    link.execute(statement)

        return Verifying(workspace, change, "main")
    redshift: RedshiftStandIn = request.getfixturevalue("redshift")
    s3: Workspace = request.getfixturevalue("redshift_workspace")
    schema = str(s3.config["warehouse"]["schema"])
    return Verifying(s3, lambda *statements: _run(redshift, schema, *statements), schema)


def _run(redshift: RedshiftStandIn, schema: str, *statements: str) -> None:
    redshift.execute(f"SET search_path TO {schema}", *statements)
