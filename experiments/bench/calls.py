"""Benchmark of the time that the Python code of one call of an all-reduce takes.

The time is measured on one of two ranks. The messages of the unmeasured rank count as already arrived, so that the
measured rank never waits. For comparison, the table has the time in which NumPy adds two arrays and scales the sum.
The last column has the greatest number of bytes that a call allocates.

In rows of the table named ``cold``, 2 MiB were written before each call, as a model's step does between two calls.
"""

import mmap
import tracemalloc
from collections.abc import Callable
from time import perf_counter

import numpy as np

from experiments.bench.side_by_side import announce, median_and_range, report, start
from grsgd.comm.allreduce import ALLREDUCE, get_ready
from grsgd.comm.allreduce.shared_sums import PIECE_BYTES, Buffers
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.shared_memory import SharedMemory, total_bytes

SIZES = (4 << 10, 64 << 10, 1 << 20)
VARIANTS = ("ring", "halving-doubling", "mpi", "shared")
ROUNDS, CALLS, COLD_CALLS = 25, 100, 200
FAR_AHEAD = 1 << 40
"""A phase number in shared memory that is greater than the number of any phase that a rank reaches."""


class Come:
    """A request of MPI for a message that has already arrived."""

    def Test(self) -> bool:
        return True


class Pretended:
    """A backend that pretends to be rank 0 of two ranks; every message from rank 1 has already arrived."""

    rank, size, lost, survives_deaths, shares_memory, hosts = 0, 2, (), False, True, None

    def Isend(self, array, dest, tag):
        return Come()

    Irecv = Isend

    def Iallreduce(self, array):
        return Come()


def communicator() -> Communicator:
    """Return the communicator of rank 0 of two ranks; rank 0 never waits for messages or shared memory of rank 1."""
    comm = Communicator(Pretended())
    memory = SharedMemory(mmap.mmap(-1, total_bytes(2, 2 * PIECE_BYTES)), 0, 2, 2 * PIECE_BYTES)
    comm.shared[0] = Buffers(comm, memory)
    memory.flags[1, :2] = FAR_AHEAD
    memory.flags[1, 2] = -1
    return comm


@np.errstate(over="ignore", invalid="ignore")  # the sums of repeated calls overflow, and their values are not used
def main():
    mpi, quick = start()
    comm, driver, rows = communicator(), MpiDriver(progress_mode="inline"), []
    junk = np.zeros(2 << 18)
    for nbytes in SIZES:
        announce(mpi, f"calls: {nbytes >> 10} KiB")
        x, other = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
        contenders = {"NumPy alone": lambda x=x, other=other: add_and_scale(x, other)}
        for name in VARIANTS:
            get_ready(comm, name, x)
            contenders[name] = lambda name=name, x=x: driver.run(ALLREDUCE[name](comm, x, scale=0.5))
        for name, call in contenders.items():
            call()
            hot = [seconds(call, 5 if quick else CALLS) * 1e6 for _ in range(2 if quick else ROUNDS)]
            cold = [after_others(call, junk) * 1e6 for _ in range(2 if quick else COLD_CALLS)]
            texts = [median_and_range(taken, ".1f") for taken in (hot, cold)]
            rows.append([f"{nbytes >> 10} KiB", name, *texts, allocated(call)])
    headers = ["size", "", "us", "us, cold", "bytes allocated"]
    report(mpi, "One call of an all-reduce, without messages, median (min-max)", headers, rows)


def add_and_scale(x, other):
    x += other
    x *= 0.5


def seconds(call: Callable, calls: int) -> float:
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls


def after_others(call: Callable, junk: np.ndarray) -> float:
    junk += 1
    return seconds(call, 1)


def allocated(call: Callable) -> int:
    """Return the greatest number of bytes that ``call`` keeps allocated at once, Python objects included."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main()
