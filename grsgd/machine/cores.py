"""Cores and NUMA nodes of the machine on which this process runs, with the numbers that Linux gives them."""

import os
import platform
from pathlib import Path

SYSTEM = Path("/sys/devices/system")


def allowed_cores() -> frozenset[int]:
    """Return the cores on which the calling thread may run."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def machine(proc: Path = Path("/proc")) -> str:
    """Return a text that identifies this machine: equal for all processes of a machine, and different on different
    machines."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def numa_nodes(folder: Path = SYSTEM / "node") -> dict[int, frozenset[int]]:
    """Return the cores of each NUMA node of this machine, by node. Return an empty dictionary if the system has no
    information on NUMA nodes."""
    found = {}
    for node in folder.glob("node[0-9]*"):
        try:
            found[int(node.name.removeprefix("node"))] = cores_in((node / "cpulist").read_text())
        except (OSError, ValueError):
            continue
    return dict(sorted(found.items()))


def with_siblings(core: int, folder: Path = SYSTEM / "cpu") -> frozenset[int]:
    """Return all hardware threads of the physical core that has the hardware thread ``core``. Return only ``core`` if
    the system has no information on hardware threads."""
    try:
        return cores_in((folder / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()) | {core}
    except (OSError, ValueError):
        return frozenset({core})


def cores_in(text: str) -> frozenset[int]:
    """Return the set of cores that ``text``, such as "0-3,8", lists. Raises ValueError if ``text`` is not a list of
    cores."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def cores_in_words(cores: frozenset[int]) -> str:
    """Return ``cores`` as text such as "0-3,8"."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][1] == core - 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
