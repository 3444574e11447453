"""Imported by every Python with this folder on its PYTHONPATH: arms the faults that LAB_PLAN names, if any."""

import os

if os.environ.get("LAB_PLAN"):
    import labinject

    labinject.arm_when_imported(os.environ["LAB_PLAN"])

if "faketime" in os.environ.get("LD_PRELOAD", ""):
    # With the monotonic clock left alone, libfaketime 0.9.10 fails every sleep of Python 3.11 and newer with EINVAL
    # (wolfcw/libfaketime, issue 426). This way of waiting is not affected.
    import threading
    import time
    from typing import SupportsIndex

    def _sleep(seconds: float | SupportsIndex) -> None:
        threading.Event().wait(float(seconds))

    time.sleep = _sleep
