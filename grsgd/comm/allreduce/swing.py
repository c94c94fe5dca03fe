"""Swing, an all-reduce for any number n of ranks, whose partners are nearer to each other than the partners of halving
and doubling.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). In step
s of the reduce-scatter, an even rank r exchanges with rank r + rho(s), and an odd rank r with rank r - rho(s), modulo
n. The distance rho(s) is the sum of (-2)^i for i = 0 .. s: 1, -1, 3, -5, 11, ... The all-gather has the steps of the
reduce-scatter in reverse order. In the first three steps, a rank sends half of the array to one neighbour, a quarter to
the other neighbour, and an eighth to a rank at distance three. Successive messages of a rank go alternately to the left
and to the right.

The sums over all subsets of the distances of the first ceil(log2 n) steps, with alternating signs, are 2^ceil(log2 n)
different consecutive numbers. So if n is even, each block of the array can reach all ranks. If n is no power of two, a
block could reach some ranks in two ways. In this module a rank receives each block once, in the earliest possible step
of the all-gather. So each rank sends 2(n-1)/n of the array for every even n. If n is no power of two, the blocks that a
rank sends in a step are not contiguous, and the rank sends several messages per step.

If n is odd, the last rank does not take part in the steps, and exchanges blocks with all other ranks directly. In the
reduce-scatter and in the all-gather, the last rank sends 1/n of the array to each other rank, and receives as much from
each other rank. So the last rank sends 2(n-1)/n of the array, like all other ranks. The method for odd n was inferred,
because the text of the paper was not available.

A schedule is a generator that yields each object it waits for.
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
    """Schedule that sums x over all ranks by a reduce-scatter and an all-gather with the partners of Swing. The ranks
    form a ring in the order of their numbers."""
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
    """Schedule of Swing for all ranks except the last rank, if the number of ranks is odd. All ranks except the last
    rank compute the sums of all blocks except the last block.

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
    """Schedule of Swing for the last rank, if the number of ranks is odd. The last rank computes the sum of the last
    block, and receives the other blocks from their owners."""
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
    """Return the plan of Swing's steps for ``n`` ranks. ``n`` must be even."""
    return Plan(swing_partners(n))


def swing_partners(n: int, mirrored: bool = False) -> Sources:
    """Return the partner of each rank in each step of Swing on a ring of ``n`` ranks. If ``mirrored`` is True, left and
    right are swapped."""
    distances = [-rho(step) if mirrored else rho(step) for step in range((n - 1).bit_length())]
    return [[(rank + (-distance if rank % 2 else distance)) % n for rank in range(n)] for distance in distances]


def rho(step: int) -> int:
    """Return the distance between partners in ``step`` of Swing, to the right of even ranks and to the left of odd
    ranks: 1, -1, 3, -5, 11, ..."""
    return (1 - (-2) ** (step + 1)) // 3
