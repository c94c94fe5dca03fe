"""Hosts and processes of the ranks of a job, and the ranks whose processes have ended."""

import os
from collections.abc import Collection
from pathlib import Path


def hosts(mpi) -> list[str]:
    """Return the host name of every rank; to be called on all ranks."""
    from mpi4py import MPI

    return mpi.allgather(MPI.Get_processor_name())


def processes(mpi) -> list[tuple[str, int]]:
    """Return (text with host name and PID namespace, PID) of every rank's process; to be called on all ranks."""
    from mpi4py import MPI

    try:
        place = f"{MPI.Get_processor_name()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        place = f"rank {mpi.rank}"  # a text that differs between ranks, so that no two ranks count as being on one host
    return mpi.allgather((place, os.getpid()))


def ended_ranks(processes: list[tuple[str, int]], rank: int) -> set[int]:
    """Return the ranks on the host of ``rank`` whose processes have ended."""
    return {other for other, (place, pid) in enumerate(processes) if place == processes[rank][0] and has_ended(pid)}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("X", "Z")
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self/stat").exists()


def other_hosts(processes: list[tuple[str, int]], rank: int, ranks: Collection[int]) -> dict[str, list[int]]:
    """Return a dictionary from host name to the host's ranks. The returned dictionary has only hosts all of whose ranks
    are in ``ranks``. The host of the rank ``rank`` is not in the returned dictionary."""
    places: dict[str, list[int]] = {}
    for other, (place, _) in enumerate(processes):
        places.setdefault(place, []).append(other)
    return {
        place.split()[0]: found
        for place, found in places.items()
        if place != processes[rank][0] and set(found) <= set(ranks)
    }
