"""Who gets into Redshift and how: TLS, IAM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from redshift_connector.iam_helper import IamHelper

from floodmark.config.load import Iam, Tls, WarehouseSpec
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.errors import ConfigError
from floodmark.setup.services.s3 import SeaweedFS
from tests.support.data_api import stubbed
from tests.support.redshift import RedshiftStandIn


@pytest.fixture(scope="module")
def over_tls(seaweed: SeaweedFS) -> Iterator[RedshiftStandIn]:
    with RedshiftStandIn(seaweed, tls=True) as server:
        yield server


def securely(server: RedshiftStandIn, tls: Tls | None, **more: Any) -> Redshift:
    limits = replace(server.limits, attempts=1)
    about = {"host": server.host, "port": server.port, "user": server.user, "database": server.database}
    spec = WarehouseSpec("redshift", "public", **{**about, "password": server.password, **more}, tls=tls)
    return Redshift(SocketTransport(spec, limits), iam_role=server.role)


def test_tls_is_verified_with_the_given_ca(over_tls: RedshiftStandIn) -> None:
    for mode in ("verify_identity", "verify_ca"):
        assert securely(over_tls, Tls(mode, ca=over_tls.ca)).rows("orders") == 0
    with pytest.raises(ConfigError, match="TLS"):
        securely(over_tls, None).rows("orders")


@pytest.mark.parametrize(
    ("iam", "service", "operation", "asked", "user", "password"),
    [
        (Iam(cluster="c1", region="eu-central-1"), "redshift", "get_cluster_credentials",
         {"ClusterIdentifier": "c1", "DbUser": "awsuser", "DbName": "dev", "AutoCreate": False, "DbGroups": []},
         "DbUser", "DbPassword"),
        (Iam(workgroup="group", region="eu-central-1"), "redshift-serverless", "get_credentials",
         {"dbName": "dev", "workgroupName": "group"}, "dbUser", "dbPassword"),
    ],
)  # fmt: skip
def test_iam_gives_the_password_of_a_cluster_or_a_workgroup(
    over_tls: RedshiftStandIn,
    monkeypatch: pytest.MonkeyPatch,
    iam: Iam,
    service: str,
    operation: str,
    asked: dict[str, Any],
    user: str,
    password: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client, stubber = stubbed(service)
    later = datetime(2099, 1, 1, tzinfo=UTC)
    given: dict[str, Any] = {user: over_tls.user, password: over_tls.password}
    given |= {"Expiration": later} if service == "redshift" else {"expiration": later}
    if service == "redshift":
        # A host that is not one of AWS's names is taken for a custom domain first.
        stubber.add_client_error(operation, "CustomCnameAssociationFault", "no such domain")
    stubber.add_response(operation, given, asked)
    stubber.activate()
    monkeypatch.setattr(IamHelper, "get_boto3_redshift_client", staticmethod(lambda *about: client))
    warehouse = securely(over_tls, Tls("verify_identity", ca=over_tls.ca), password=None, iam=iam)
    assert warehouse.rows("orders") == 0
    stubber.assert_no_pending_responses()
    assert over_tls.password not in repr(warehouse._transport._spec)  # type: ignore[attr-defined]
