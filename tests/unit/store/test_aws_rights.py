"""If AWS denies something, the error has the policy statement that allows it."""

from __future__ import annotations

import pytest

from floodmark.model.errors import ConfigError
from floodmark.store.s3 import Answer, allowing, translate

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b"
WHO = "arn:aws:iam::123456789012:user/sync"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            f"User: {WHO} is not authorized to perform: kms:GenerateDataKey on resource: {KEY} because no policy allows it",
            f'add to a policy of {WHO}: {{"Effect": "Allow", "Action": "kms:GenerateDataKey", "Resource": "{KEY}"}}',
        ),
        (
            f"User: {WHO} is not authorized to perform: s3:PutObject on resource: &quot;arn:aws:s3:::b/p/x&quot; because",
            f'add to a policy of {WHO}: {{"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/p/x"}}',
        ),
        (
            "not authorized to perform: redshift-data:ExecuteStatement",
            'add to its policy: {"Effect": "Allow", "Action": "redshift-data:ExecuteStatement", "Resource": "*"}',
        ),
        (
            f"User: {WHO} is not authorized to perform: kms:Decrypt on resource: {KEY} "
            "with an explicit deny in a resource-based policy",
            f"an explicit Deny in a resource-based policy forbids kms:Decrypt on {KEY}: change it",
        ),
        (
            f"User: {WHO} is not authorized to perform: s3:GetObject on resource: {KEY} with an explicit deny",
            f"an explicit Deny in a policy forbids s3:GetObject on {KEY}: change it",
        ),
        ("Access Denied", None),
        ("User loader is not authorized to assume IAM Role arn:aws:iam::123456789012:role/r", None),
    ],
)
def test_a_denied_action_is_reported_with_the_statement_that_allows_it(text: str, hint: str | None) -> None:
    assert allowing(text) == hint


def test_a_bucket_with_a_key_that_may_not_be_used_names_the_key() -> None:
    said = (
        "Client error with status code: 403 Forbidden: <Error><Code>AccessDenied</Code><Message>"
        f"User: {WHO} is not authorized to perform: kms:GenerateDataKey on resource: {KEY} because no identity-based "
        "policy allows the kms:GenerateDataKey action</Message></Error>"
    )
    error = translate(Answer(RuntimeError(said)), "write to", "s3", "b")
    assert isinstance(error, ConfigError) and '"kms:GenerateDataKey"' in str(error.hint)
    plain = translate(Answer(RuntimeError("status code: 403 <Code>AccessDenied</Code>")), "read", "s3", "b")
    assert "s3:ListBucket" in str(plain.hint)
