"""What an S3 server tells anyone about a bucket: its Region and the server's clock.

One unsigned HEAD request; AWS answers it with the Region even if it denies access.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import quote

ANSWER_SECONDS = 4.0


@dataclass(frozen=True)
class BucketHead:
    """What the server says about a bucket."""

    region: str | None = None
    skew: float | None = None  # the server's clock minus this machine's; whole seconds


def bucket_head(url: str, endpoint: str | None) -> BucketHead:
    """Asks for the bucket of `s3://bucket/prefix`; unanswered fields stay None."""
    bucket = url.removeprefix("s3://").partition("/")[0]
    # Not by the bucket's own host name: with a dot in it, AWS's certificate does not match.
    base = (endpoint or "https://s3.amazonaws.com").rstrip("/")
    request = urllib.request.Request(f"{base}/{quote(bucket)}", method="HEAD")
    began = time.time()
    try:
        with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return BucketHead()
    return BucketHead(headers.get("x-amz-bucket-region"), _skew(headers.get("Date"), began, time.time()))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the redirecting answer is the one that names the Region."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


def _skew(date: str | None, began: float, ended: float) -> float | None:
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    # The header has whole seconds: the moment is somewhere within that second.
    if began - 1 <= server <= ended:
        return 0.0
    return server - ended if server > ended else server + 1 - began
