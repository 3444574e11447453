"""Read by every Python that has this folder on its PYTHONPATH: arms the faults that LAB_PLAN names, if any."""

import os

if os.environ.get("LAB_PLAN"):
    import labinject

    labinject.arm_when_imported(os.environ["LAB_PLAN"])
