"""The product's time limits, divided by about ten: a stall ends within seconds, by the same limit as it normally would.

Workers serve several experiments, so each limit consults the plan when it is used.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from labinject.plan import PLAN, once

WAREHOUSE = {"connect": 3.0, "question": 3.0, "lock": 6.0, "statement": 6.0, "idle": 3.0, "grace": 1.0}


def install() -> None:
    """Wrap everything that has a limit; once per process."""
    from floodmark.source import session as connect
    from floodmark.source.rows.stream import RowStream
    from floodmark.store import s3

    if not once(s3.Bucket):
        return
    _store(s3)
    opened = connect._connect

    def linked(spec: Any, read_timeout: int, connect_timeout: int, *more: Any) -> Any:
        if _hurry():
            read_timeout, connect_timeout = max(2, read_timeout // 10), min(connect_timeout, 2)
        return opened(spec, read_timeout, connect_timeout, *more)

    connect._connect = linked
    answer: Any = RowStream
    reading = answer.__init__

    def read(self: Any, link: Any, wanted: Any, seconds: int, *more: Any) -> None:
        reading(self, link, wanted, max(2, seconds // 10) if _hurry() else seconds, *more)

    answer.__init__ = read
    if _hurry():
        _command()


def _hurry() -> bool:
    return bool(PLAN.raw.get("hurry"))


def _store(s3: Any) -> None:
    client, retry, begin = s3._CLIENT, s3._RETRY, s3.Bucket.__init__
    short = {"connect_timeout": timedelta(seconds=1), "read_timeout": timedelta(seconds=2)}

    def began(self: Any, spec: Any) -> None:
        s3._CLIENT = {**client, **short} if _hurry() else client
        s3._RETRY = {**retry, "retry_timeout": timedelta(seconds=1)} if _hurry() else retry
        begin(self, spec)

    s3.Bucket.__init__ = began


def _command() -> None:
    """The limits that apply only in the command's own process."""
    from floodmark.host import retry
    from floodmark.load.redshift.steps import Limits
    from floodmark.log import log
    from floodmark.spark import context

    running: Any = context
    running.SLICE, running.DESERTED = retry.Retries(3, 0.1, factor=3.0, seconds=2.0), 30.0
    log.COMMITTING = retry.Retries(seconds=3.0)
    limited: Any = Limits
    limits = limited.__init__

    def short(self: Any, *args: Any, **options: Any) -> None:
        limits(self, *args, **{**WAREHOUSE, **options})

    limited.__init__ = short
