"""What an S3 server tells anybody who asks for a bucket: the bucket's Region and the server's clock.

One HEAD request without a signature; AWS answers it with the Region even where it refuses access.
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
class Place:
    """Where a bucket is, as far as its server says."""

    region: str | None = None
    skew: float | None = None  # the server's clock minus this machine's; whole seconds


def place(url: str, endpoint: str | None) -> Place:
    """Ask for the bucket of `s3://bucket/prefix`; what is not answered is not known."""
    bucket = url.removeprefix("s3://").partition("/")[0]
    # Not by the bucket's own host name, which a dot in it would put outside of AWS's certificate.
    base = (endpoint or "https://s3.amazonaws.com").rstrip("/")
    request = urllib.request.Request(f"{base}/{quote(bucket)}", method="HEAD")
    began = time.time()
    try:
        with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return Place()
    return Place(headers.get("x-amz-bucket-region"), _skew(headers.get("Date"), began, time.time()))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the answer that redirects is the one that names the Region."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


def _skew(date: str | None, began: float, ended: float) -> float | None:
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    # The header has whole seconds: the moment lies within the one that it names.
    if began - 1 <= server <= ended:
        return 0.0
    return server - ended if server > ended else server + 1 - began
