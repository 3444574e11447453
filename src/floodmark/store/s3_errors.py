"""What the S3 client's errors mean: change something (ConfigError), try again (TransientError), or unknown.

The client reveals most of it only in its text: the status, S3's code, how a connection broke, and whether it
had already tried. Pure. No vendor text is passed on, except the action that AWS names as denied.
"""

from __future__ import annotations

import re

from floodmark.model.errors import ConfigError, FloodmarkError, NoAnswer, TransientError
from floodmark.store.aws_rights import allowing

_BAD_KEYS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "TokenRefreshRequired",
}
_BAD_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
_TRY_AGAIN = {"RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "SlowDown", "Throttling"}


class Answer:
    """What the client's error text reveals. It is never shown: it quotes the server's whole answer."""

    def __init__(self, error: BaseException) -> None:
        text = str(error)
        self.text = text
        self.head = text.partition("\n\nDebug source")[0]
        status = re.search(r"status code: (\d{3})", self.head)
        self.status = int(status[1]) if status else None
        # The form in parentheses concerns one key of a bulk delete.
        code = re.search(r"<Code>(\w+)</Code>|\(code: (\w+)\)", self.head)
        self.code = (code[1] or code[2]) if code else ""
        self.retried = re.search(r"after \d+ retries", self.head) is not None
        kind = re.search(r"HttpError \{\s*kind: (\w+)", text)
        self.http = kind[1] if kind else ""  # Connect, Timeout, Request, Interrupted, Decode, Unknown


def absent(error: FileNotFoundError) -> bool:
    # A proxy's or a wrong server's 404 must not pass for an empty store.
    return Answer(error).code == "NoSuchKey"


def translate(answer: Answer, verb: str, server: str, bucket: str, unsure: bool = False) -> FloodmarkError:
    """What an S3 client error means for the operator; `unsure`: a write whose outcome can't be guessed."""
    if re.search(r"latest/(api/token|meta-data)|169\.254\.|Missing (Secret)?AccessKey", answer.head):
        return ConfigError(
            "no AWS credentials were found",
            hint="set store.access_key_id and store.secret_access_key, the AWS_… variables, or AWS_PROFILE",
        )
    settled = _final(answer, verb, server, bucket)
    # A refusal says nothing about an earlier attempt; but a server that doesn't support the call never did
    # it.
    if settled is not None and not (unsure and answer.retried and answer.status != 501):
        return ConfigError(settled[0], hint=settled[1])
    if answer.status is not None:
        what = f"{server} answered {answer.status}{f' {answer.code}' if answer.code else ''}"
    elif answer.http == "Connect":
        what = (
            f"{server} can't be reached{': its host name is unknown' if 'dns error' in answer.text else ''}"
        )
    elif answer.http == "Timeout":
        what = f"{server} did not answer in time"
    else:
        what = f"the connection to {server} broke"
    kind = NoAnswer if unsure else TransientError
    return kind(
        f"can't {verb} bucket {bucket}: {what}", hint="check store.endpoint and the network, then run again"
    )


def _final(answer: Answer, verb: str, server: str, bucket: str) -> tuple[str, str] | None:
    """The error's text and hint, if trying again can't help."""
    say = f"can't {verb} bucket {bucket} at {server}"
    detail = f" ({answer.code or answer.status})"
    if answer.code in ("NoSuchBucket", "InvalidBucketName"):
        return f"bucket {bucket} does not exist at {server}", "create it, or change store.url"
    if answer.code == "RequestTimeTooSkewed":
        return f"{say}: this machine's clock is wrong{detail}", "set the clock"
    if answer.code in _BAD_KEYS or answer.status == 401:
        return f"{say}: the keys are not valid{detail}", "check store.access_key_id and its secret"
    if answer.status == 403 or answer.code == "AccessDenied":
        rights = "s3:ListBucket on the bucket, s3:GetObject, s3:PutObject and s3:DeleteObject on the prefix"
        return f"{say}: access denied{detail}", allowing(answer.head) or f"allow {rights}"
    if answer.code in _BAD_REGION or "incorrectly configured region" in answer.head:
        return f"{say}: the bucket is in another region", "set store.region to the bucket's region"
    if "InvalidCertificate" in answer.text:
        return f"{say}: its certificate is not trusted", "add its CA to the system's certificates"
    if "InvalidMessage" in answer.text or "BadScheme" in answer.text:
        return f"{say}: it does not speak TLS", "check http or https in store.endpoint"
    if answer.code == "NotImplemented" or answer.status == 501:
        return f"{say}: not supported by the server{detail}", "the store must support conditional writes"
    if answer.code in _TRY_AGAIN or answer.status in (408, 409, 425, 429):
        return None
    if answer.status == 404:
        return f"{say}: the answer is not from an S3 server{detail}", "check store.endpoint"
    if answer.status is not None and answer.status < 500:
        return f"{say}: the request was refused{detail}", "check the store block of the configuration"
    if verb == "open":
        return f"{say}: the settings can't be used", "check store and the AWS_… variables"
    return None
