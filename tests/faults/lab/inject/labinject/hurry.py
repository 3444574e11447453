"""The product's time limits, divided by ten or so: a stall ends in seconds, by the limit that would have ended it.

Workers serve several experiments, so that each limit looks at the plan when it is used.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from labinject.plan import PLAN

WAREHOUSE = {"connect": 3.0, "question": 3.0, "lock": 6.0, "statement": 6.0, "idle": 3.0, "grace": 1.0}


def install() -> None:
    """Put the layer around whatever has a limit; once per process."""
    from floodmark import store
    from floodmark.mysql import connect
    from floodmark.mysql.answer import Answer

    if hasattr(store._Bucket, "hurried"):
        return
    store._Bucket.hurried = True
    _store(store)
    opened = connect._connect

    def linked(spec: Any, read_timeout: int, connect_timeout: int, *more: Any) -> Any:
        if _hurry():
            read_timeout, connect_timeout = max(2, read_timeout // 10), min(connect_timeout, 2)
        return opened(spec, read_timeout, connect_timeout, *more)

    connect._connect = linked
    reading = Answer.__init__

    def read(self: Any, link: Any, wanted: Any, seconds: int, *more: Any) -> None:
        reading(self, link, wanted, max(2, seconds // 10) if _hurry() else seconds, *more)

    Answer.__init__ = read  # type: ignore[method-assign]
    if _hurry():
        _command()


def _hurry() -> bool:
    return bool(PLAN.raw.get("hurry"))


def _store(store: Any) -> None:
    client, retry, begin = store._CLIENT, store._RETRY, store._Bucket.__init__
    short = {"connect_timeout": timedelta(seconds=1), "read_timeout": timedelta(seconds=2)}

    def began(self: Any, spec: Any) -> None:
        store._CLIENT = {**client, **short} if _hurry() else client
        store._RETRY = {**retry, "retry_timeout": timedelta(seconds=1)} if _hurry() else retry
        begin(self, spec)

    store._Bucket.__init__ = began


def _command() -> None:
    """What only the command itself waits for."""
    from floodmark import spark
    from floodmark.state.log import Log
    from floodmark.warehouse.redshift_steps import Limits

    spark.PAUSES, spark.PATIENCE, spark.DESERTED = (0.1, 0.3), 2.0, 30.0
    log, limits = Log.__init__, Limits.__init__

    def patient(self: Any, *args: Any, **options: Any) -> None:
        log(self, *args, **{**options, "patience": 3.0})

    def limited(self: Any, *args: Any, **options: Any) -> None:
        limits(self, *args, **{**WAREHOUSE, **options})

    Log.__init__, Limits.__init__ = patient, limited
