"""Number of bytes of memory that this process may still allocate. The machine's free memory, and the memory limits of
Linux control groups, determine this number."""

import errno
import os
from pathlib import Path

from grsgd.control_groups import ROOT, folders


def available(root: Path = ROOT) -> int:
    """Return the number of bytes of memory that this process may still allocate, including memory that holds only
    cached files."""
    return min([of_machine(), *(left for folder in folders("memory", root) if (left := of_group(folder)) is not None)])


def check_fits(path: str | os.PathLike):
    """Raise OSError if the file ``path`` is larger than the free memory. The error's ``strerror`` names the size of the
    file and the free memory.

    Even a file on a small disk can be larger than the memory, if the file is sparse.
    """
    if (size := os.stat(path).st_size) > (free := available()):
        raise OSError(errno.EFBIG, f"holds {size:,} bytes, and {free:,} bytes of memory are free")


def of_machine() -> int:
    """Return the number of bytes of memory that Linux reports as available. Return the size of the machine's whole
    memory if the system does not report the available memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def of_group(folder: Path) -> int | None:
    """Return the number of bytes of memory that the control group ``folder`` may still allocate; None if the group has
    no limit."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            left = int((folder / limit).read_text()) - int((folder / usage).read_text())
            numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return max(left, 0) + int(numbers.get(cached, 0))
        except (OSError, ValueError):  # the file does not exist, or says "max" (no limit)
            continue
    return None
