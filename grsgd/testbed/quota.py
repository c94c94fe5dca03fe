"""A share of the processor for each host: control groups, of version 1 or 2, whichever the machine has."""

import time
from pathlib import Path

from grsgd.control_groups import ROOT

MIN_US = 1000
"""The kernel takes neither shorter periods nor smaller quotas."""
QUOTA_US = 2000
"""Time that a group may compute in a period. A computation shorter than that, after a wait, would not be slowed at all,
so it should be short; but of the order of the kernel's clock tick, which notices that it is used up."""


def create(group: str, cores: float) -> Path:
    """Make a control group of at most ``cores`` cores; returns the file that takes the numbers of its processes.

    Raises OSError where control groups cannot be had.
    """
    folder = parent() / group
    if version_2():
        controllers = ROOT / "cgroup.subtree_control"
        if "cpu" not in controllers.read_text().split():
            controllers.write_text("+cpu")
    folder.mkdir()
    limit(group, cores)
    return folder / "cgroup.procs"


def limit(group: str, cores: float | None):
    """Give the group at most ``cores`` cores from now on; None: as many as there are. Raises OSError."""
    folder = parent() / group
    period = max(MIN_US, round(QUOTA_US / (cores or 1)))
    quota = round(cores * period) if cores is not None else None
    if version_2():
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))


def remove(prefix: str, seconds: float = 5.0):
    """Remove the control groups whose names begin so; their last processes may be about to go. Raises OSError."""
    deadline = time.monotonic() + seconds
    for folder in parent().glob(f"{prefix}*"):
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def parent() -> Path:
    return ROOT if version_2() else ROOT / "cpu"


def version_2() -> bool:
    return (ROOT / "cgroup.controllers").exists()
