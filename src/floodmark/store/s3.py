"""The objects below one prefix of an S3 bucket: requests, the keys they are signed with, and what errors mean.

The client reveals most of an error only in its text: the status, S3's code, how a connection broke, and whether it
had already tried. No vendor text is passed on, except the action that AWS names as denied.
"""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from floodmark.config.load import StoreSpec
from floodmark.model.errors import ConfigError, FloodmarkError, NoAnswer, TransientError
from floodmark.store.folder import NO_DOCUMENT, Object

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, RetryConfig, S3Credential

# An unreachable endpoint fails within about ten seconds, a silent one within twenty.
_CLIENT: ClientConfig = {
    "allow_http": True,
    "connect_timeout": timedelta(seconds=3),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=15),
}
_RETRY: RetryConfig = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=8),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_PART_BYTES = 8 << 20
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


_DENIED = re.compile(
    r"(?:\bUser: (?P<who>arn:[^\s<,]+) is )?not authorized to perform: (?P<action>[\w-]+:\w+)"
    r"(?: on resource: (?:\"|&quot;)?(?P<resource>arn:[^\s\"&<,]+|\*))?",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(
    r"with an explicit deny(?: in an? (?P<where>[\w -]*?(?:policy|boundary)))?", re.IGNORECASE
)


def allowing(text: str) -> str | None:
    """What to do about an action that AWS denied; None if its message names no action."""
    denied = _DENIED.search(text)
    if denied is None:
        return None
    who, action, resource = denied["who"], denied["action"], (denied["resource"] or "*").rstrip(".")
    forbidden = _FORBIDDEN.search(text, denied.end())
    if forbidden is not None:
        return f"an explicit Deny in a {forbidden['where'] or 'policy'} forbids {action} on {resource}: change it"
    statement = json.dumps({"Effect": "Allow", "Action": action, "Resource": resource})
    return f"add to a policy of {who}: {statement}" if who else f"add to its policy: {statement}"


def signing_keys(spec: StoreSpec) -> Callable[[], S3Credential] | None:
    """The keys to sign with; None leaves it to the client: variables, web identity, container, instance."""
    if spec.access_key_id is not None:
        fixed: S3Credential = {
            "access_key_id": spec.access_key_id,
            "secret_access_key": spec.secret_access_key or "",
            "token": None,
            "expires_at": None,
        }
        return lambda: fixed
    if any(
        os.environ.get(f"AWS_{name}")
        for name in ("ACCESS_KEY_ID", "WEB_IDENTITY_TOKEN_FILE", "SKIP_SIGNATURE")
    ):
        return None
    return _profile if _profile_section() is not None else None


def _profile() -> S3Credential:
    section = _profile_section() or {}
    return {
        "access_key_id": section.get("aws_access_key_id", ""),
        "secret_access_key": section.get("aws_secret_access_key", ""),
        "token": section.get("aws_session_token"),
        "expires_at": datetime.now(UTC)
        + timedelta(minutes=5),  # then the file is read again, since keys rotate
    }


def _profile_section() -> dict[str, str] | None:
    """The profile with keys in AWS's credentials file, which the client does not read itself."""
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    wanted = os.environ.get("AWS_PROFILE")
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        parser.read(file, encoding="utf-8")
    name = wanted or "default"
    section = dict(parser[name]) if parser.has_section(name) else {}
    if "aws_access_key_id" in section and "aws_secret_access_key" in section:
        return section
    if wanted:
        raise ConfigError(
            f"AWS profile {wanted} has no keys in {file}",
            hint=f"for SSO or roles: eval $(aws configure export-credentials --profile {wanted} --format env)",
        )
    return None


class Bucket:
    """The objects below one prefix of an S3 bucket."""

    def __init__(self, spec: StoreSpec) -> None:
        self.bucket, _, prefix = spec.url.removeprefix("s3://").partition("/")
        self.prefix = prefix.strip("/")
        self._server = spec.endpoint or "S3"
        self._seen = spec.endpoint is None  # AWS itself refuses a write to a bucket that doesn't exist
        settings: dict[str, Any] = {}
        if spec.region:
            settings["region"] = spec.region
        if spec.endpoint:
            # Both, explicitly: the environment's AWS_ENDPOINT_URL_S3 would override `endpoint`.
            endpoint = spec.endpoint.rstrip("/")
            settings |= {
                "endpoint": endpoint,
                "aws_endpoint_url_s3": endpoint,
                "virtual_hosted_style_request": False,
            }
        keys = signing_keys(spec)
        if keys is not None:
            # Not as settings: a session token in the environment would be combined with them.
            settings |= {"credential_provider": keys, "skip_signature": False}
        with self._errors("open"):
            self._store = S3Store(
                self.bucket,
                prefix=self.prefix or None,
                client_options=_CLIENT,
                retry_config=_RETRY,
                **settings,
            )

    def get(self, path: str, most: int) -> bytes | None:
        return self.tagged(path, most)[0]

    def tagged(self, path: str, most: int) -> tuple[bytes | None, str | None]:
        with self._errors("read"):
            answer = self._answer(path)
            self._seen = True
            if answer is None:
                return None, None
            data = NO_DOCUMENT if answer.meta["size"] > most else answer.bytes().to_bytes()
            return data, answer.meta["e_tag"]

    def uri(self, path: str) -> str:
        return "/".join(part for part in (f"s3://{self.bucket}", self.prefix, path) if part)

    def end(self, path: str, size: int) -> tuple[int, bytes, str | None] | None:
        with self._errors("read"):
            answer = self._answer(path, {"range": {"suffix": size}})
            if answer is None:
                return None
            return answer.meta["size"], answer.bytes().to_bytes(), answer.meta["e_tag"]

    def create(self, path: str, data: bytes) -> bool:
        self._must_exist()
        with self._errors("write", unsure=True):
            try:
                obstore.put(self._store, path, data, mode="create")
            except AlreadyExistsError as error:
                # 409 doesn't mean "exists" but "another write is under way, try again"; the client conflates
                # the two.
                if Answer(error).status == 409:
                    raise NoAnswer(
                        f"{self._server} was busy with another write of {path}", hint="run again"
                    ) from None
                return False
            return True

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> str | None:
        self._must_exist()
        body = data if isinstance(data, Path | bytes) else memoryview(data).cast("B")
        with self._errors("write"):
            return obstore.put(self._store, path, body, chunk_size=_PART_BYTES, max_concurrency=4)["e_tag"]

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        with self._errors("write"):
            try:
                obstore.put(self._store, path, data, mode={"e_tag": tag})
            except BaseError as error:
                if Answer(error).status == 501:  # a server without conditional writes
                    obstore.put(self._store, path, data)
                elif isinstance(error, PreconditionError) or Answer(error).status in (409, 412):
                    return False
                else:
                    raise
            return True

    def list(self, parent: str, after: str, prefix: str) -> Iterator[Object]:
        with self._errors("list"):
            pages = obstore.list(self._store, parent or None, offset=after or None, chunk_size=1000)
            for page in pages:
                for item in page:
                    yield Object(item["path"], item["size"], item["last_modified"], item["e_tag"])
                # Without subfolders all servers sort alike, so everything that follows is beyond the prefix,
                # too.
                if after and page and page[-1]["path"] > prefix and not page[-1]["path"].startswith(prefix):
                    break
        self._seen = True

    def folders(self, prefix: str) -> Iterator[str]:
        with self._errors("list"):
            found = obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        self._seen = True
        yield from (path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, paths: Sequence[str]) -> None:
        self._must_exist()
        with self._errors("delete from"):
            try:
                obstore.delete(self._store, paths)
            except FileNotFoundError as error:
                if not absent(error):
                    raise

    def versioned(self, path: str) -> bool:
        with self._errors("read"):
            try:
                return obstore.head(self._store, path)["version"] not in (None, "null")
            except FileNotFoundError:  # a HEAD request has no body that would say more
                return False

    def stream(self, path: str) -> Iterator[bytes] | None:
        with self._errors("read"):
            answer = self._answer(path)
            return None if answer is None else self._chunks(answer)

    def _answer(self, path: str, options: GetOptions | None = None) -> obstore.GetResult | None:
        """The server's answer; None if it says that there is no such object."""
        try:
            return obstore.get(self._store, path, options=options)
        except FileNotFoundError as error:
            if absent(error):
                return None
            raise

    def _chunks(self, answer: obstore.GetResult) -> Iterator[bytes]:
        with self._errors("read"):
            for chunk in answer.stream(min_chunk_size=_PART_BYTES):
                yield bytes(chunk)

    def _must_exist(self) -> None:
        """Checks before the first write that the bucket exists: some servers silently create one."""
        if not self._seen:
            self.get("pipeline.json", 1 << 20)

    @contextmanager
    def _errors(self, verb: str, unsure: bool = False) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            # Without the cause: its text may quote a session token from the request.
            raise translate(Answer(error), verb, self._server, self.bucket, unsure) from None
