"""Which way arrays in GPU memory travel between ranks: every way is tried and timed at the start of a run.

``direct``: the MPI library reads and writes GPU memory itself (`grsgd.comm.direct`). ``staged``: pieces through pinned
host memory (`grsgd.comm.staged`). ``ipc``: ranks of one host copy out of each other's memory, others are staged
(`grsgd.comm.ipc`).
"""

import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from grsgd import launch
from grsgd.comm.communicator import Communicator
from grsgd.comm.direct import Direct
from grsgd.comm.driver import Driver
from grsgd.comm.ipc import SHORT, Ipc
from grsgd.comm.staged import PIECE, Staged
from grsgd.config import ConfigError
from grsgd.gpu import Memory
from grsgd.replica import Flat

SIZES = (1, SHORT // 4 + 1, 2 * PIECE // 4 + 3)
"""float32 elements of the messages that are tried: within one piece, beyond `SHORT`, and several pieces."""
LARGEST_TIMED = 64 * 2**20
REPEATS = 5


class Choice(NamedTuple):
    """``device_end`` is for `Communicator`, None on the CPU. ``found``: seconds of a message by way, or why not."""

    name: str
    device_end: Callable | None
    found: dict[str, float | str]
    nbytes: int = 0
    """Of the message that was timed."""

    def __str__(self):
        """What was found, for the run file."""
        times = (f"{way} {x if isinstance(x, str) else f'{1e3 * x:.3g} ms'}" for way, x in self.found.items())
        return "; ".join(times) + (f" ({self.nbytes} bytes)" if self.nbytes else "")


def choose(mpi, device: torch.device, wanted: str, nbytes: int, timeout: float = 10.0) -> Choice:
    """How the ranks of ``mpi`` send each other arrays on ``device``; collective.

    ``wanted``: one of the ways, or ``auto`` for the fastest with a message of ``nbytes``. A way must prove itself with
    messages between all neighbours. Raises ConfigError, on all ranks, if the wanted one does not.
    """
    kinds = mpi.allgather(device.type)
    if len(set(kinds)) > 1:
        without = [rank for rank, kind in enumerate(kinds) if kind != "cuda"]
        raise ConfigError(f"device: ranks {without} have no GPU, the others have; allowed: cpu, or a GPU for all ranks")
    if device.type != "cuda":
        return Choice("host", None, {})
    ways = device_ends(mpi, Memory())
    if mpi.size == 1:
        return Choice("none", ways["staged"], {})
    nbytes = min(nbytes, LARGEST_TIMED)
    found: dict[str, float | str] = {}
    for way in ways if wanted == "auto" else [wanted]:
        trouble = why_not(way, mpi, ways[way], device, timeout)
        found[way] = trouble or max(mpi.allgather(seconds(mpi, ways[way], device, nbytes, timeout)))
    usable = [way for way in found if isinstance(found[way], float)]
    if not usable:
        reasons = "; ".join(f"{way}: {trouble}" for way, trouble in found.items())
        raise ConfigError(f"comm.transfer = {wanted!r} cannot be used here: {reasons}")
    fastest = min(usable, key=found.get)
    return Choice(fastest, ways[fastest], found, nbytes)


def device_ends(mpi, memory) -> dict[str, Callable]:
    """What makes the end of a communicator, by way; collective."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    ends = {
        "direct": partial(Direct, memory=memory),
        "ipc": partial(Ipc, memory=memory, host=host.Get_group()),
        "staged": partial(Staged, memory=memory),
    }
    host.Free()
    return ends


def why_not(way: str, mpi, device_end: Callable, device: torch.device, timeout: float) -> str | None:
    """Why the ranks of ``mpi`` cannot use a way, None if they can; collective, with the same answer everywhere."""
    trouble = None
    if way == "direct":
        trouble = first(mpi, why_library_cannot("cupy") if launch.local_rank(mpi) == 0 else None)
    elif way == "ipc":
        end = device_end(mpi)
        trouble = None if any(mpi.allgather(len(end.near) > 1)) else "no two ranks share a host"
        trouble = trouble or first(mpi, why_closed(mpi, end, device))
    if trouble is None:
        try:
            Driver(mpi.rank, timeout, "inline").run(trial(Communicator(mpi.Dup(), device_end), device))
        except Exception as error:  # whatever libraries may raise: then another way is taken
            trouble = f"{type(error).__name__}: {error}"
        trouble = first(mpi, trouble)
    return trouble


def why_closed(mpi, end: Ipc, device: torch.device) -> str | None:
    """Why this rank cannot open the memory of all others of its host, None if it can; collective."""
    try:
        handle, _ = end.memory.handle(Flat.zeros(1, torch.float32, device).array)
    except Exception as error:  # whatever the driver may say
        handle = str(error)
    handles = mpi.allgather(handle)
    for rank in end.near:
        if isinstance(handles[rank], str):
            return f"rank {rank} cannot share its memory: {handles[rank]}"
        try:
            end.memory.open(handles[rank])
        except Exception as error:
            return f"the memory of rank {rank} cannot be opened: {error}"
    return None


def first(mpi, trouble: str | None) -> str | None:
    """The lowest rank's trouble, if any has one."""
    troubles = [f"rank {rank}: {text}" for rank, text in enumerate(mpi.allgather(trouble)) if text is not None]
    return troubles[0] if troubles else None


def trial(comm: Communicator, device: torch.device):
    """Schedule: messages of several sizes by every verb; raises RuntimeError if they do not arrive as they were sent.

    They are sent while the GPU still computes them.
    """
    rank, n = comm.rank, comm.size
    for size in SIZES:
        positions = torch.arange(size, dtype=torch.float32, device=device) % 1024
        mine, got = (Flat.zeros(size, torch.float32, device) for _ in range(2))
        for sender, receiver in (((rank - 1) % n, (rank + 1) % n), ((rank + 1) % n, (rank - 1) % n)):
            mine.tensor.copy_(positions + rank)
            got.tensor.zero_()
            yield comm.Irecv(got.array, sender), comm.Issend(mine.array, receiver)
            check(got, positions + sender, f"{4 * size} bytes from rank {sender}")
        got.tensor.copy_(mine.tensor)
        yield comm.Ibcast(got.array, 0)
        check(got, positions, f"a broadcast of {4 * size} bytes")
        yield comm.Iallreduce(mine.array)
        check(mine, n * positions + n * (n - 1) / 2, f"a sum of {4 * size} bytes")


def check(got: Flat, expected: torch.Tensor, what: str):
    if not torch.equal(got.tensor, expected):
        raise RuntimeError(f"{what} did not arrive as it was sent")


def seconds(mpi, device_end: Callable, device: torch.device, nbytes: int, timeout: float) -> float:
    """Seconds in which a message to the next rank arrives while all ranks send one; median."""
    comm, driver = Communicator(mpi.Dup(), device_end), Driver(mpi.rank, timeout, "inline")
    mine, got = (Flat.zeros(max(nbytes // 4, 1), torch.float32, device) for _ in range(2))

    def exchange():
        yield comm.Irecv(got.array, (mpi.rank - 1) % mpi.size), comm.Isend(mine.array, (mpi.rank + 1) % mpi.size)

    times = []
    for _ in range(REPEATS + 1):  # the first one makes buffers and connections
        mpi.Barrier()
        begin = time.perf_counter()
        driver.run(exchange())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


# ---- whether a library reads GPU memory: one that cannot ends the process that asks it to


JOB = ("PMI", "PRTE", "PRRTE", "SLURM", "HYDRA", "HYDI", "MPIR_", "OMPI_COMM", "OMPI_UNIVERSE", "OMPI_APP", "OMPI_FILE")
"""Beginnings of the environment variables that make a process a part of this job."""


def why_library_cannot(kind: str, timeout: float = 60.0) -> str | None:
    """Why the MPI library cannot send arrays of the module ``kind``, None if it can: a process of its own tries it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(JOB)}
    command = [sys.executable, "-m", "grsgd.transfer", kind]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"the MPI library has not sent GPU memory within {timeout:g} s"
    if ended.returncode:
        said = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        return f"the MPI library cannot send GPU memory ({said[0]})"
    return None


def send_to_oneself(kind: str):
    """Of the process that tries it: raises RuntimeError, or ends at once, if arrays of a module do not arrive."""
    from mpi4py import MPI

    xp = importlib.import_module(kind)
    for size in (100, 2**21):
        mine, got = xp.arange(size, dtype="float32"), xp.zeros(size, "float32")
        float(mine[-1])  # waits until it has been computed
        requests = [MPI.COMM_SELF.Irecv(got, 0), MPI.COMM_SELF.Isend(mine, 0)]
        MPI.Request.Waitall(requests)
        if not bool((mine == got).all()):
            raise RuntimeError(f"{mine.nbytes} bytes did not arrive as they were sent")


if __name__ == "__main__":
    send_to_oneself(sys.argv[1])
