"""The memory that this process may still take: of the machine, and of the control groups that it is in."""

import errno
import os
from pathlib import Path

from grsgd.control_groups import ROOT, folders


def available(root: Path = ROOT) -> int:
    """Return the bytes of memory that are free, or would be if what is only cached were given up."""
    return min([of_machine(), *(left for folder in folders("memory", root) if (left := of_group(folder)) is not None)])


def check_fits(path: str | os.PathLike):
    """Raise OSError, whose ``strerror`` says both sizes, for a file larger than the memory that is free.

    A sparse file, which takes no disk, may be of any size.
    """
    if (size := os.stat(path).st_size) > (free := available()):
        raise OSError(errno.EFBIG, f"holds {size:,} bytes, and {free:,} bytes of memory are free")


def of_machine() -> int:
    """Return the bytes that the system says are available; where it does not, all that there are."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def of_group(folder: Path) -> int | None:
    """Return the bytes that a control group may still take; None if it has no limit."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            left = int((folder / limit).read_text()) - int((folder / usage).read_text())
            numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return max(left, 0) + int(numbers.get(cached, 0))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
