"""Choice of a checkpoint in the memory of hosts after the loss of a host, and transfer of the checkpoint's states (one
per rank) to the hosts that need them."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from grsgd.comm.watchdog import within
from grsgd.errors import RunFileError
from grsgd.files import atomic_write
from grsgd.job.host_memory import HostFolder
from grsgd.job.resume import Resumed, load, together, with_all_ranks
from grsgd.training.checkpoint_file import Header, verify
from grsgd.training.checkpoint_folder import Found, file_of, make_place, name_of
from grsgd.training.memory_folder import headers

PIECE = 2**26
"""Largest number of bytes of a rank's state that one message carries."""
SLOWEST = 5e5
"""Smallest rate, in bytes per second, that a network between hosts is expected to have. The time limit for the transfer
of ranks' states between hosts follows from `SLOWEST`."""


def find(mpi, memory: HostFolder, folder: Path, timeout: float, ranks: int, least: int) -> Resumed | None:
    """Return this rank's part of the newest usable checkpoint in memory, for a run of the first ``ranks`` processes.
    Only checkpoints that were taken after more than ``least`` samples are considered. Return None on all ranks if no
    usable checkpoint exists. All processes must call this function.

    A checkpoint is usable if each rank's state exists undamaged on some host. The function prints why a checkpoint that
    is newer than the chosen checkpoint cannot be used. ``folder`` has the model snapshots from which the accuracy curve
    is computed.
    """
    first = [memory.hosts.index(host) for host in memory.hosts]
    with within(timeout, "looking for checkpoints in memory"):
        told = mpi.allgather(headers(memory.folder) if first[mpi.rank] == mpi.rank else [])
    found = {(header.samples, header.id): header.ranks for of_host in told for header in of_host}
    if not found and mpi.rank == 0:
        print(f"{memory.folder.parent}: no host has a checkpoint in memory", file=sys.stderr, flush=True)
    for samples, id in sorted(found, reverse=True):
        if samples <= least:
            break
        checkpoint = Found(samples, found[samples, id])
        there = _undamaged(mpi, memory, told, (samples, id), timeout)
        missing = next((rank for rank in range(checkpoint.ranks) if not any(rank in states for states in there)), None)
        problem, resumed = f"the state of rank {missing} of {checkpoint.ranks} is on no host, or damaged", None
        if missing is None:
            # free the memory of newer checkpoints
            memory.remove_except(mpi.rank, {name_of(each) for each, _ in found if each <= samples})
            problem = _fetch(mpi, memory, checkpoint, there, ranks, timeout)
        if not problem:
            problem, resumed = together(mpi, timeout, partial(load, memory.folder, checkpoint, mpi.rank, ranks))
        if resumed:
            resumed = with_all_ranks(mpi, timeout, resumed, ranks)
            return replace(resumed, folder=folder, memory=memory.folder, on_disk=least)
        if mpi.rank == 0:
            line = f"{name_of(samples)} in memory: {problem}: the run uses an older checkpoint"
            print(line, file=sys.stderr, flush=True)
    return None


def _undamaged(mpi, memory: HostFolder, told: list[list[Header]], which: tuple, timeout: float) -> list[set[int]]:
    """Return one set of ranks per process. The set of a process has the ranks whose states in a checkpoint were found
    undamaged on the process's host. The processes of a host share the checks, so each state on the host is in the set
    of only one process."""
    here = [process for process, host in enumerate(memory.hosts) if host == memory.hosts[mpi.rank]]
    own = sorted(header.rank for header in told[here[0]] if (header.samples, header.id) == which)
    undamaged = set()
    for rank in own[here.index(mpi.rank) :: len(here)]:
        path = memory.folder / name_of(which[0]) / file_of(rank)
        with suppress(RunFileError):
            if verify(path).id == which[1]:
                undamaged.add(rank)
    with within(timeout, "looking for damaged states in memory"):
        return mpi.allgather(undamaged)


def _fetch(mpi, memory: HostFolder, checkpoint: Found, there: list[set[int]], ranks: int, timeout: float) -> str:
    """Copy states (ranks' parts of a checkpoint) from other hosts to each host that needs and lacks them. Return the
    reason why a host cannot store a state; "" if all states were stored.

    The job ends if the transfer takes longer than ``timeout`` seconds plus the time that all states take at the rate
    `SLOWEST`.
    """
    place = memory.folder / name_of(checkpoint.samples)
    transfers = list(_transfers(memory.hosts, checkpoint, there, ranks))
    own = {rank: (place / file_of(rank)).stat().st_size for source, _, rank in transfers if source == mpi.rank}
    with within(timeout, "telling all ranks the sizes of states in memory"):
        sizes = mpi.allgather(own)
    limit = timeout + sum(sizes[source][rank] for source, _, rank in transfers) / SLOWEST
    with within(limit, "fetching states from the memory of other hosts"):
        problem = _exchange(mpi, place, transfers, sizes)
        return next(filter(None, mpi.allgather(problem)), "")


def _exchange(mpi, place: Path, transfers: list[tuple[int, int, int]], sizes: list[dict[int, int]]) -> str:
    """Send and receive the ranks' states for which ``transfers`` names this process. Return the reason why a received
    state cannot be stored in the folder ``place``; "" if all states were stored."""
    sending, problem = [], ""
    for source, to, rank in transfers:
        if source == mpi.rank:
            content = np.fromfile(place / file_of(rank), np.uint8)
            sending += [mpi.Isend(piece, to, rank) for piece in _pieces(content)]
    for source, to, rank in transfers:
        if to == mpi.rank:
            content = np.empty(sizes[source][rank], np.uint8)
            for piece in _pieces(content):
                mpi.Recv(piece, source, rank)
            try:
                make_place(place)
                with atomic_write(place / file_of(rank)) as temporary:
                    content.tofile(temporary)
            except OSError as error:
                problem = f"{place}: {error.strerror or error}"
    for request in sending:
        request.Wait()
    return problem


def _transfers(
    hosts: list[str], checkpoint: Found, there: list[set[int]], ranks: int
) -> Iterable[tuple[int, int, int]]:
    """Yield (process that sends, process that receives, rank of the state) for each state that a host needs and lacks.

    On each host the process with the lowest number receives. If the job has another number of ranks than the
    checkpoint, the host of rank 0 needs the states of all ranks. Hosts without rank 0 need only the state of rank 0 in
    this case.
    """
    for host in dict.fromkeys(hosts):
        here = [process for process, other in enumerate(hosts) if other == host]
        if checkpoint.ranks == ranks:
            needed = {process if process < ranks else 0 for process in here}
        else:
            needed = {*range(checkpoint.ranks)} if 0 in here else {0}
        for rank in sorted(needed - set().union(*(there[process] for process in here))):
            holders = [process for process, states in enumerate(there) if rank in states]
            yield holders[here[0] % len(holders)], here[0], rank


def _pieces(content: np.ndarray) -> list[np.ndarray]:
    return [content[begin : begin + PIECE] for begin in range(0, content.size, PIECE)]
