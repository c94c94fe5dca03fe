"""Swing, an all-reduce for any number n of ranks, in which partners are nearer to each other on a ring than in
recursive halving and doubling.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). In step
s of Swing's reduce-scatter, an even rank r exchanges blocks with rank r + rho(s), and an odd rank r with rank r -
rho(s), modulo n. The distance rho(s) between partners in step s is the sum of (-2)^i for i = 0 .. s: 1, -1, 3, -5, 11,
... The steps of Swing's all-gather are the steps of its reduce-scatter in reverse order. In the first three steps, a
rank sends half of the array to one neighbour, a quarter to the other neighbour, and an eighth to a rank at distance
three. In successive steps of Swing, a rank sends alternately to the left and to the right.

Add up any subset of the distances of the first ceil(log2 n) steps, with alternating signs: the possible sums are
2^ceil(log2 n) consecutive numbers, and no two subsets have equal sums. Each block of the array can therefore reach all
ranks if n is even. If n is not a power of two, a block could reach some ranks by two paths. In this module a rank
receives each block only once, in the earliest step of the all-gather in which its partner has the block. For every even
n, each rank therefore sends 2(n-1)/n of the array. If n is not a power of two, the blocks that a rank sends in one step
are not contiguous, so the rank sends several messages per step.

If n is odd, the last rank takes no part in the steps of Swing, and exchanges blocks with all other ranks directly. For
odd n, the last rank sends 1/n of the array to each other rank, and receives 1/n from each, both in the reduce-scatter
and in the all-gather. For odd n, the last rank therefore sends 2(n-1)/n of the array, like all other ranks. The text of
the paper was not available, so the method for odd n is a guess at the method of the paper.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from contextlib import ExitStack
from functools import lru_cache

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.exchanges import Plan, Share, Sources, all_gather, allreduce, reduce_scatter
from grsgd.comm.allreduce.pieces import add, in_range
from grsgd.comm.communicator import Communicator


@in_range
def swing_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums x over all ranks by a reduce-scatter and an all-gather with the partners of Swing.
    The ranks form a ring in the order of their numbers."""
    n = comm.size
    if n == 1 or x.size == 0:
        return
    if n % 2 == 0:
        yield from allreduce(comm, [Share(x, swing_plan(n), comm.rank)], tag, scale)
    elif comm.rank < n - 1:
        yield from beside_the_last(comm, Share(x, swing_plan(n - 1), comm.rank, blocks=n), tag, scale)
    else:
        yield from as_the_last(comm, x, tag, scale)


def beside_the_last(comm: Communicator, share: Share, tag: int, scale: float):
    """Generator (schedule) of the all-reduce Swing for all ranks except the last rank, if the number of ranks is odd.
    In this schedule, all ranks except the last rank compute the sums of all blocks except the last block.

    During the steps of Swing, the calling rank exchanges two blocks with the last rank: the last block, and the block
    that the calling rank owns.
    """
    last, x = comm.size - 1, share.x
    block = slice(*part(last, share.blocks, x.size))
    own = share.slices(share.own)
    with ExitStack() as borrowed:
        theirs = [borrowed.enter_context(comm.borrow(x, p.stop - p.start))[: p.stop - p.start] for p in own]
        handed_over = [comm.Isend(x[block], last, tag), *(comm.Irecv(incoming, last, tag) for incoming in theirs)]
        yield from reduce_scatter(comm, [share], tag)
        yield handed_over
        for place, incoming in zip(own, theirs, strict=True):
            add(x[place], incoming)
    share.scale(scale)
    finished = [comm.Irecv(x[block], last, tag), *(comm.Isend(x[place], last, tag) for place in own)]
    yield from all_gather(comm, [share], tag)
    yield finished


def as_the_last(comm: Communicator, x, tag: int, scale: float):
    """Generator (schedule) of the all-reduce Swing for the last rank, if the number of ranks is odd. The last rank
    computes the sum of the last block, and receives the sums of all other blocks from the ranks that own the blocks."""
    last = comm.size - 1
    block = x[slice(*part(last, comm.size, x.size))]
    blocks = {}
    for rank, place in enumerate(swing_plan(last).place):
        begin, end = part(place, comm.size, x.size)
        if begin < end:
            blocks[rank] = x[begin:end]
    with ExitStack() as borrowed:
        theirs = [borrowed.enter_context(comm.borrow(x, block.size))[: block.size] for _ in range(last)]
        receiving = [comm.Irecv(incoming, rank, tag) for rank, incoming in enumerate(theirs)]
        yield [comm.Isend(theirs_of, rank, tag) for rank, theirs_of in blocks.items()] + receiving
        for incoming in theirs:
            add(block, incoming)
    if scale != 1:
        block *= scale
    receiving = [comm.Irecv(finished, rank, tag) for rank, finished in blocks.items()]
    yield receiving + [comm.Isend(block, rank, tag) for rank in range(last)]


@lru_cache(maxsize=8)
def swing_plan(n: int) -> Plan:
    """Return the `Plan` (partners and blocks in each step) of the all-reduce Swing for ``n`` ranks. ``n`` must be
    even."""
    return Plan(swing_partners(n))


def swing_partners(n: int, mirrored: bool = False) -> Sources:
    """Return the partner of each rank in each step of Swing on a ring of ``n`` ranks. If ``mirrored`` is True, messages
    to the left and messages to the right are swapped."""
    distances = [-rho(step) if mirrored else rho(step) for step in range((n - 1).bit_length())]
    return [[(rank + (-distance if rank % 2 else distance)) % n for rank in range(n)] for distance in distances]


def rho(step: int) -> int:
    """Return the distance between partners in ``step`` of Swing: 1, -1, 3, -5, 11, ... to the right of even ranks and
    to the left of odd ranks."""
    return (1 - (-2) ** (step + 1)) // 3
