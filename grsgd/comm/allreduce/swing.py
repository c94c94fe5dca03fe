"""Swing, an all-reduce for any number of ranks. Its partners are nearer to each other than the partners of halving and
doubling.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). In step
s of the reduce-scatter, an even rank r exchanges with rank r + rho(s), an odd rank r with r - rho(s), modulo n. The
distance rho(s) is the sum of (-2)^i for i = 0 .. s: 1, -1, 3, -5, 11, ... The all-gather takes the steps in reverse
order. In the first steps, half of the array goes to one neighbour, a quarter to the other neighbour, and an eighth to a
rank at distance three. Messages go to the left and to the right in turns.

The sums over all subsets of the distances of the first ceil(log2 n) steps, with alternating signs, are 2^ceil(log2 n)
different consecutive numbers. So for even n each block can reach all ranks. If n is no power of two, a block could
reach some ranks in two ways. In this module a rank receives each block once, in the earliest possible step of the
all-gather. So each rank sends 2(n-1)/n of the array for every even n. If n is no power of two, the blocks of a step do
not all lie side by side. A rank then sends several messages per step.

With odd n, the last rank does not take part in the steps. Meanwhile the last rank exchanges blocks with all other ranks
directly. In the reduce-scatter and in the all-gather, it sends one message of 1/n of the array to each rank, and
receives such a message from each rank. The last rank sends 2(n-1)/n of the array, as all other ranks do. The method for
odd n is inferred, because the text of the paper was not available.

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
    """Schedule that does a reduce-scatter and an all-gather with the partners of Swing. The ranks form the ring in the
    order of their numbers."""
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
    """Schedule for all ranks except the last rank, if n is odd. It sums up all blocks except the last block over all
    ranks.

    Meanwhile the calling rank exchanges two blocks with the last rank: the last block, and the calling rank's own
    block.
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
    """Schedule for the last rank, if n is odd. It sums up the last block, and receives the other blocks from their
    owners."""
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
    """Return the steps of an even number ``n`` of ranks."""
    return Plan(swing_partners(n))


def swing_partners(n: int, mirrored: bool = False) -> Sources:
    """Return the partner per step and rank; with ``mirrored``, distances to the left and to the right are swapped."""
    distances = [-rho(step) if mirrored else rho(step) for step in range((n - 1).bit_length())]
    return [[(rank + (-distance if rank % 2 else distance)) % n for rank in range(n)] for distance in distances]


def rho(step: int) -> int:
    """Return the distance of a step, to the right of even ranks and to the left of odd ranks: 1, -1, 3, -5, 11, ..."""
    return (1 - (-2) ** (step + 1)) // 3
