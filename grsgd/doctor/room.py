"""Facts and findings about the resources of each rank: free memory, shared memory, and limits of its process."""

import os
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grsgd import memory
from grsgd.doctor.findings import Finding, by_ranks
from grsgd.runs.numbers import human_bytes

GROUP = "room"
SHARED = Path("/dev/shm")
MIN_SHARED_BYTES = 256 * 2**20
"""Free bytes of /dev/shm below which messages may not fit. MPI libraries and all-reduces through shared memory write to
/dev/shm. Docker's default size of /dev/shm is 64 MiB."""
MIN_LOCKED_BYTES = 2**30
"""Limit of locked memory, in bytes. A lower limit is a fault on a host with InfiniBand, which locks all message
buffers."""
FILES_PER_RANK, OTHER_FILES = 4, 256
"""Number of open files that a rank may need for each rank of the job, and number of open files for all other
purposes."""


class RoomFacts(NamedTuple):
    """Facts about the memory and the limits of one rank. Sizes are in bytes, and -1 means no limit."""

    free: int
    shared: int | None
    """Size of /dev/shm in bytes; None if the system has no /dev/shm to which this process may write."""
    shared_free: int | None
    locked: int
    """Limit of locked memory in bytes."""
    files: int
    """Limit of the number of open files of the process."""
    address_space: int
    has_rdma: bool
    """Whether the host has an active InfiniBand port, which reads and writes locked memory."""


def facts(shared: Path = SHARED, devices: Path = Path("/sys/class/infiniband")) -> RoomFacts:
    """Return the facts about the memory and the limits of this process."""
    try:
        usage = shutil.disk_usage(shared)
        size, free = (usage.total, usage.free) if os.access(shared, os.W_OK) else (None, None)
    except OSError:
        size = free = None
    return RoomFacts(
        memory.available(),
        size,
        free,
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        resource.getrlimit(resource.RLIMIT_AS)[0],
        has_infiniband(devices),
    )


def has_infiniband(devices: Path) -> bool:
    """Return whether the folder ``devices`` lists an active InfiniBand port. ``devices`` also lists Ethernet cards,
    which do not count."""
    for port in devices.glob("*/ports/*"):
        try:
            layer, state = ((port / name).read_text() for name in ("link_layer", "state"))
        except OSError:
            continue
        if "InfiniBand" in layer and "ACTIVE" in state:
            return True
    return False


def limit(value: int, unit: str = "bytes") -> str:
    """Return the text of a limit of this process, such as "1.00 GiB" or "unlimited". ``value`` is the limit in
    ``unit``, which is "bytes" or "files"."""
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return human_bytes(value) if unit == "bytes" else f"{value:,}"


def findings(ranks: Sequence[RoomFacts]) -> list[Finding]:
    """Return the findings about the memory and the limits of all ranks."""
    needed = FILES_PER_RANK * len(ranks) + OTHER_FILES
    return [
        Finding(GROUP, "free memory", by_lowest([room.free for room in ranks])),
        shared_memory(ranks),
        Finding(
            GROUP,
            "locked memory",
            by_ranks([limit(room.locked) for room in ranks]),
            "ask for `ulimit -l unlimited` on the hosts of the job: InfiniBand locks the memory of all messages"
            if any(room.has_rdma and 0 <= room.locked < MIN_LOCKED_BYTES for room in ranks)
            else "",
        ),
        Finding(
            GROUP,
            "open files",
            by_ranks([limit(room.files, "files") for room in ranks]),
            f"raise the limit to {needed} or more: `ulimit -n {needed}`"
            if any(0 <= room.files < needed for room in ranks)
            else "",
        ),
        Finding(
            GROUP,
            "address space",
            by_ranks([limit(room.address_space) for room in ranks]),
            "remove the limit (`ulimit -v unlimited`): CUDA and shared libraries map far more than they use"
            if any(room.address_space >= 0 for room in ranks)
            else "",
        ),
    ]


def by_lowest(sizes: Sequence[int]) -> str:
    """Return the lowest of ``sizes`` (bytes, one per rank) as text, with its rank if there are several ranks."""
    lowest = min(range(len(sizes)), key=sizes.__getitem__)
    return human_bytes(sizes[lowest]) + (f" at least (rank {lowest})" if len(sizes) > 1 else "")


def shared_memory(ranks: Sequence[RoomFacts]) -> Finding:
    """Return the finding about /dev/shm. The finding reports a fault if /dev/shm is missing, or has little free
    space."""
    lowest = min(ranks, key=lambda room: -1 if room.shared_free is None else room.shared_free)
    rank = ranks.index(lowest)
    if lowest.shared is None:
        value = f"none that can be written to (rank {rank})"
        return Finding(GROUP, "/dev/shm", value, "mount a tmpfs on /dev/shm to which all users can write")
    value = f"{human_bytes(lowest.shared_free)} of {human_bytes(lowest.shared)} free"
    remedy = ""
    if lowest.shared_free < MIN_SHARED_BYTES:
        remedy = "make /dev/shm larger (`docker run --shm-size=8g`), or delete files there that ended jobs have left"
    return Finding(GROUP, "/dev/shm", value + (f" (rank {rank})" if len(ranks) > 1 else ""), remedy)
