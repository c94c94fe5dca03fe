"""Linux control groups (cgroups, version 1 or 2) to which this process belongs, and the groups' limits on processor
time."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")


class GroupQuota(NamedTuple):
    """Limit of a control group on processor time: on average ``cores`` cores over each period of ``period`` seconds."""

    cores: float
    period: float


def folders(controller: str, root: Path = ROOT) -> list[Path]:
    """Return the folders, in the file system of control groups, of this process's group and of all groups above it.
    ``controller`` is, for example, ``memory``."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = [root, root / controller]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            folder = (root / (controller if controllers else "")) / path.lstrip("/")
            found += [folder, *(parent for parent in folder.parents if root in parent.parents)]
    return found


def cpu_quota(root: Path = ROOT) -> GroupQuota | None:
    """Return the smallest quota of processor time among this process's control groups; None if no group has a quota."""
    quotas = [quota for folder in folders("cpu", root) if (quota := quota_of(folder)) is not None]
    return min(quotas, default=None)


def quota_of(folder: Path) -> GroupQuota | None:
    """Return the quota of processor time of the control group ``folder``; None if the group has no quota."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return GroupQuota(int(quota) / int(period), int(period) / 1e6)
    except (OSError, ValueError):  # the file does not exist, or says "max" (no quota)
        pass
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return GroupQuota(quota / period, period / 1e6) if quota > 0 else None
