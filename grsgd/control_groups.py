"""The control groups of this process, in both versions: what they leave it of the machine."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def folders(controller: str, root: Path = ROOT) -> list[Path]:
    """Return the folders of this process's group of a ``controller``, such as memory, and of all groups above it."""
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


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the least quota of those groups, in cores; None if none has one."""
    quotas = [quota for folder in folders("cpu", root) if (quota := quota_of(folder)) is not None]
    return min(quotas, default=None)


def quota_of(folder: Path) -> float | None:
    """Return the cores that a control group has; None if it has no quota."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        pass
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
