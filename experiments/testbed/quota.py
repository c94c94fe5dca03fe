"""A share of the processor for each host: control groups, of version 1 or 2, whichever the machine has."""

import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""A group that has used up its share waits for the next period: short, so that a throttled step is slow evenly."""


def create(group: str, cores: float) -> Path:
    """Make a control group of at most ``cores`` cores; returns the file that takes the numbers of its processes.

    Raises OSError where control groups cannot be had.
    """
    folder = parent() / group
    quota = f"{cores * PERIOD_US:.0f}"
    if version_2():
        with suppress(OSError):  # if it is refused, cpu.max is not there below
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(quota)
    return folder / "cgroup.procs"


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
