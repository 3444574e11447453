"""Read by every Python that has this folder on its PYTHONPATH: arms the faults that LAB_PLAN names, if any."""

import os

if os.environ.get("LAB_PLAN"):
    import labinject

    labinject.arm_when_imported(os.environ["LAB_PLAN"])

if "faketime" in os.environ.get("LD_PRELOAD", ""):
    # With the monotonic clock left alone, libfaketime 0.9.10 answers every sleep of Python 3.11 and newer with EINVAL
    # (wolfcw/libfaketime, issue 426). It does not touch this kind of waiting.
    import threading
    import time

    def _sleep(seconds: float) -> None:
        threading.Event().wait(seconds)

    time.sleep = _sleep
