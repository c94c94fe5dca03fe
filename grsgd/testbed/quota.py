"""Limits of the processor time that each host of a testbed may use, set by Linux control groups of version 1 or 2."""

import time
from pathlib import Path

from grsgd.control_groups import ROOT

MIN_US = 1000
"""Microseconds of the shortest period, and of the smallest quota, that the kernel accepts for a control group."""
QUOTA_US = 2000
"""Microseconds of processor time that a control group may use in each period (its quota).

The quota should be small, because a computation that is shorter than the quota is not slowed down. The quota should not
be far below the kernel's clock tick, because the kernel notices only at a tick that a quota is used up.
"""


def create(group: str, cores: float) -> Path:
    """Create the control group ``group``, whose processes may use at most ``cores`` cores. Return the file to which the
    ids of processes must be written so that the processes join the group.

    Raises OSError if this machine does not allow control groups.
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
    """Limit the control group ``group`` to ``cores`` cores from now on; None removes the limit. Raises OSError."""
    folder = parent() / group
    period = max(MIN_US, round(QUOTA_US / (cores or 1)))
    quota = round(cores * period) if cores is not None else None
    if version_2():
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))


def remove(prefix: str, seconds: float = 5.0):
    """Remove the control groups whose names begin with ``prefix``, when their processes have ended.

    Raises OSError if the processes in these groups do not end within ``seconds``.
    """
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
