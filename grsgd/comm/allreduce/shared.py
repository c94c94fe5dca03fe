"""All-reduce of ranks on one host, through memory that these ranks share (`grsgd.comm.shared_memory`).

Rank j adds up part j of all ranks' arrays, in the order of the ranks, and writes the sum to shared memory. Each element
is therefore summed by one rank, in the order of the ranks 0 to n-1, and the sums are bit-identical on all ranks and in
all runs.

An array that lies in shared memory (`in_shared_memory`) is summed in place, with as many reads and writes of memory as
if each rank copied its array once. An array outside shared memory is copied through a buffer in shared memory, in
pieces that stay in the cache. If an array is short, every rank sums the whole array, so that no rank waits for sums
that other ranks compute.

Each rank writes a number that counts its finished phases to shared memory, and the other ranks poll this number
(`grsgd.comm.allreduce.shared_sums.Reached`).
"""

from contextlib import ExitStack
from functools import lru_cache

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.pieces import in_range
from grsgd.comm.allreduce.shared_sums import PIECE_BYTES, Buffers
from grsgd.comm.communicator import Communicator
from grsgd.comm.shared_memory import NoSharedMemory, allocate
from grsgd.models.flat import Flat

SHORT_BYTES = 1024 * 1024
"""Largest total size in bytes of the arrays of all ranks for which every rank sums the whole arrays instead of one
part."""


@in_range
def shared_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sets x to ``scale`` times the sum of x over all ranks, in place, through memory that
    the ranks share.

    Ranks that cannot share memory, such as simulated ranks, send the parts of x by messages (`parts_allreduce`).

    Raises NoSharedMemory on all ranks if x is in GPU memory, if the ranks are on several hosts, or if the operating
    system grants no shared memory.
    """
    if comm.size == 1 or x.size == 0:
        return
    if not comm.backend.shares_memory:
        yield from parts_allreduce(comm, x, tag, scale, comm.size)
        return
    check_host_memory(x)
    buffers = comm.shared.get(tag)
    if buffers is None:
        memory = yield from allocate(comm, 2 * PIECE_BYTES, tag)
        buffers = comm.shared.setdefault(tag, Buffers(comm, memory))
    count(comm, x, comm.size)
    if is_short(comm, x):
        yield from buffers.sum_short(x, scale)
        return
    yield from buffers.sum_long(x, scale, comm.shared.get(VECTORS, ()))


def is_short(comm: Communicator, x) -> bool:
    """Return True if x is so short that every rank sums the whole x instead of one part."""
    return comm.size * x.nbytes <= SHORT_BYTES


def check_host_memory(x):
    """Raise NoSharedMemory if x is not a NumPy array."""
    if type(x) is not np.ndarray:
        raise NoSharedMemory("the arrays lie in the memory of GPUs")


def in_shared_memory(comm: Communicator, flat: Flat):
    """Generator (schedule), run on all ranks at once, that returns a copy of the parameter vector or gradient ``flat``
    in memory shared by the ranks. `shared_allreduce` sums an array in shared memory in place, without copies.

    The schedule returns ``flat`` itself if the ranks cannot share enough memory, or if `shared_allreduce` would copy
    the array in any case. The shared memory is freed when neither ``comm`` nor any array in this memory is used any
    more.
    """
    array = flat.array
    if comm.size == 1 or not comm.backend.shares_memory or type(array) is not np.ndarray:
        return flat
    if is_short(comm, array):
        return flat
    try:
        memory = yield from allocate(comm, array.nbytes, tags.ARRAYS)
    except NoSharedMemory:
        return flat
    comm.shared.setdefault(VECTORS, []).append(memory)
    moved = Flat.of(memory.rows(array.dtype)[comm.rank, : array.size])
    moved.tensor.copy_(flat.tensor)
    return moved


VECTORS = "vectors"
"""Key in a communicator's dictionary ``shared`` under which it stores the list of shared memories that hold whole
arrays. The other keys of ``shared`` are tags, under which `shared_allreduce` stores its buffers."""


def parts_allreduce(comm: Communicator, x, tag: int, scale: float, owners: int, beyond=None):
    """Generator (schedule) that computes, by messages, the same sums as `shared_allreduce`, bit for bit. In
    `parts_allreduce`, ranks send each other as many bytes as they read from each other's memory in `shared_allreduce`.

    ``owners``: number of ranks that each sum one part of x. ``beyond(part)``: a schedule that changes the sum of a part
    of x, for example by adding the sums of other hosts, before other ranks receive the sum.
    """
    n, me = comm.size, comm.rank
    others = [rank for rank in range(n) if rank != me]
    parts = [x[begin:end] for begin, end in bounds_of(x.size, n, owners)]
    mine = parts[me]
    with ExitStack() as stack:
        scratch = [stack.enter_context(comm.borrow(x, mine.size))[: mine.size] for _ in others]
        rows = [*scratch[:me], mine, *scratch[me:]]
        arriving = [comm.Irecv(rows[rank], rank, tag) for rank in others if mine.size]
        leaving = [comm.Isend(parts[rank], rank, tag) for rank in others if parts[rank].size]
        yield arriving
        total = rows[0]
        for row in rows[1:]:
            if row is mine:  # from now on, add into this rank's part, because a + b and b + a have equal bits
                total, row = row, total
            total += row
        if scale != 1:
            total *= scale
        yield leaving  # wait until x has been sent, before sums from other ranks overwrite x
    if beyond is not None:
        yield from beyond(mine)
    arriving = [comm.Irecv(parts[rank], rank, tag) for rank in others if parts[rank].size]
    leaving = [comm.Isend(mine, rank, tag) for rank in others if mine.size]
    yield arriving + leaving


def bounds_of(size: int, ranks: int, owners: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the part of an array of ``size`` elements that each rank sums. Only the first ``owners``
    ranks sum a part, and all other ranks have empty parts."""
    return [part(rank, owners, size) if rank < owners else (0, 0) for rank in range(ranks)]


def count(comm: Communicator, x, owners: int):
    """Count the bytes that an all-reduce exchanges through shared memory as sent: this rank's array x, which other
    ranks read, and the sums that this rank writes for other ranks."""
    for rank, messages, nbytes in exchanged(comm.rank, comm.size, owners, x.size, x.itemsize):
        comm.traffic.count_messages(comm.members[rank], messages, nbytes)


@lru_cache(maxsize=1024)
def exchanged(rank: int, ranks: int, owners: int, size: int, itemsize: int) -> list[tuple[int, int, int]]:
    """Return (other rank, number of messages, number of bytes) for each rank with which ``rank`` exchanges parts of an
    array of ``size`` elements."""
    sizes = [(end - begin) * itemsize for begin, end in bounds_of(size, ranks, owners)]
    written = sizes[rank]
    return [
        (other, (read > 0) + (written > 0), read + written)
        for other, read in enumerate(sizes)
        if other != rank and read + written
    ]
