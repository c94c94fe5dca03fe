"""All-gather and reduce-scatter in steps, for any pattern of partners. In each step, a rank sends to one partner and
receives from one partner.

An array consists of one block per rank, and each rank owns one block. In a step of the all-gather, every rank has one
other rank as its source. The rank receives all blocks that the source has and the rank lacks. The reduce-scatter has
the steps of the all-gather in reverse order. In each step of the reduce-scatter, a rank sends partial sums of blocks to
the rank from which the rank later receives these blocks in the all-gather. After the reduce-scatter, each rank has the
sum of the block that it owns. In the reduce-scatter every rank sends each block except its own block once: (n-1)/n of
the array, for any pattern of partners and any n.

Sums are bit-identical on all ranks, because only the owner of a block computes the sum of the block, from partial sums
in a fixed order.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from coding.partition import part
from grsgd.comm.allreduce.pieces import add
from grsgd.comm.communicator import Communicator

Sources = Sequence[Sequence[int]]
"""``sources[step][rank]``: the rank from which ``rank`` receives blocks in the all-gather.

Steps are numbered in the order of the reduce-scatter, and the all-gather has the steps in the opposite order. In each
step every rank is the source of exactly one rank.
"""
Runs = tuple[tuple[int, int], ...]
"""Ranges of consecutive blocks: pairs (number of the first block in a range, number of the first block after the
range)."""


class Step(NamedTuple):
    """The messages of one rank in one step of a reduce-scatter and of an all-gather.

    In the all-gather the rank receives the blocks ``got`` from the rank ``source``, and sends the blocks ``given`` to
    the rank ``dest``. In the reduce-scatter the rank sends the blocks ``got`` to ``source``, and receives the blocks
    ``given`` from ``dest``.
    """

    source: int
    dest: int
    got: Runs
    given: Runs


class Plan:
    """The steps of all ranks in an all-reduce.

    ``place[rank]`` is the number of the block that ``rank`` owns. Blocks are numbered such that blocks which are sent
    in one step have consecutive numbers as far as possible. If n is a power of two and partners form pairs, a rank
    sends one contiguous piece of the array per step.

    The constructor raises ValueError if some rank would not receive all blocks in these steps.
    """

    def __init__(self, sources: Sources):
        self.size = len(sources[0])
        self.place = places_of_blocks(sources)
        self._sources = sources
        self._dests = [inverse(step) for step in sources]
        self._held = holdings(sources, [1 << place for place in self.place])
        self._steps: dict[int, tuple[Step, ...]] = {}
        if set(self._held[0]) != {(1 << self.size) - 1}:
            raise ValueError(f"these {len(sources)} steps do not bring all {self.size} blocks to all ranks")

    def steps(self, rank: int) -> tuple[Step, ...]:
        """Return the steps of ``rank``, in the order of the reduce-scatter."""
        if rank not in self._steps:
            self._steps[rank] = tuple(self._step(number, rank) for number in range(len(self._sources)))
        return self._steps[rank]

    def _step(self, number: int, rank: int) -> Step:
        source, dest, held = self._sources[number][rank], self._dests[number][rank], self._held[number + 1]
        return Step(source, dest, runs(held[source] & ~held[rank]), runs(held[rank] & ~held[dest]))


class Share:
    """The calling rank's data of an all-reduce of x over the ranks of a plan.

    Parameters
    ----------
    number
        Number of the calling rank among the ranks of the plan.
    ranks
        Number in the communicator of each rank of the plan. By default, a rank's numbers in the plan and in the
        communicator are equal.
    blocks
        Number of blocks of x. The plan sums the first blocks of x, one block per rank of the plan. By default, x has
        one block per rank of the plan.
    """

    def __init__(self, x, plan: Plan, number: int, ranks: Sequence[int] | None = None, blocks: int | None = None):
        self.x, self.steps = x, plan.steps(number)
        self.ranks = range(plan.size) if ranks is None else ranks
        self.blocks = plan.size if blocks is None else blocks
        place = plan.place[number]
        self.own = (place, place + 1)

    def slices(self, *places: tuple[int, int]) -> list[slice]:
        """Return slices of x for ``places``, ranges (begin, end) of block numbers. Ranges without elements are left
        out."""
        found = []
        for begin, end in places:
            begin, end = part(begin, self.blocks, self.x.size)[0], part(end, self.blocks, self.x.size)[0]
            if begin < end:
                found.append(slice(begin, end))
        return found

    def scale(self, factor: float):
        """Multiply the block of x that the calling rank owns by ``factor``."""
        for place in self.slices(self.own) if factor != 1 else ():
            self.x[place] *= factor


def reduce_scatter(comm: Communicator, shares: Sequence[Share], tag: int):
    """Schedule that computes, in the array ``x`` of each of ``shares``, the sum over all ranks of the block that this
    rank owns.

    All ``shares`` make each step at the same time. The blocks of ``x`` that other ranks own are overwritten by partial
    sums.
    """
    with ExitStack() as borrowed:
        scratches = [borrowed.enter_context(comm.borrow(share.x, share.x.size)) for share in shares]
        for steps in zip(*(share.steps for share in shares), strict=True):
            arriving, pending = [], []
            for share, scratch, step in zip(shares, scratches, steps, strict=True):
                for place in share.slices(*step.given):
                    arriving.append((share.x[place], scratch[place]))
                    pending.append(comm.Irecv(scratch[place], share.ranks[step.dest], tag))
                dest = share.ranks[step.source]
                pending.extend(comm.Isend(share.x[place], dest, tag) for place in share.slices(*step.got))
            yield pending
            for x, incoming in arriving:
                add(x, incoming)


def all_gather(comm: Communicator, shares: Sequence[Share], tag: int):
    """Schedule, run after `reduce_scatter`, that copies the block that each rank owns to all other ranks, in the array
    ``x`` of each of ``shares``."""
    for steps in zip(*(share.steps[::-1] for share in shares), strict=True):
        pending = []
        for share, step in zip(shares, steps, strict=True):
            source, dest = share.ranks[step.source], share.ranks[step.dest]
            pending.extend(comm.Irecv(share.x[place], source, tag) for place in share.slices(*step.got))
            pending.extend(comm.Isend(share.x[place], dest, tag) for place in share.slices(*step.given))
        yield pending


def allreduce(comm: Communicator, shares: Sequence[Share], tag: int, scale: float):
    """Schedule that sets the array ``x`` of each of ``shares`` to ``scale`` times the sum of ``x`` over all ranks."""
    yield from reduce_scatter(comm, shares, tag)
    for share in shares:
        share.scale(scale)
    yield from all_gather(comm, shares, tag)


def holdings(sources: Sources, own: Sequence[int]) -> list[list[int]]:
    """Return the set of blocks that each rank holds after each step of the all-gather: one list of sets per step. A set
    of blocks is a whole number, whose bit b is 1 if block b is in the set.

    The lists are in the order of the reduce-scatter. The last list is ``own``, the blocks that each rank holds before
    the all-gather.
    """
    held = [list(own)]
    for step in reversed(sources):
        held.append([mine | held[-1][source] for mine, source in zip(held[-1], step, strict=True)])
    return held[::-1]


def places_of_blocks(sources: Sources) -> list[int]:
    """Return the number of the block that each rank owns, chosen such that blocks which are sent in one step have
    consecutive numbers.

    The most blocks are sent together in the last steps of the all-gather. So ranks are sorted by the lowest-numbered
    block that a rank holds before the last step. Ties are broken by the lowest-numbered block that a rank holds before
    the second-to-last step, and so on.
    """
    size = len(sources[0])
    held = holdings(sources, [1 << rank for rank in range(size)])[1:]
    order = sorted(range(size), key=lambda rank: [lowest(step[rank]) for step in held])
    return inverse(order)


def runs(bits: int) -> Runs:
    """Return the ranges of consecutive bits that are 1 in the number ``bits``, the lowest range first."""
    found, passed = [], 0
    while bits:
        begin = lowest(bits)
        bits >>= begin
        length = lowest(~bits)
        bits >>= length
        found.append((passed + begin, passed + begin + length))
        passed += begin + length
    return tuple(found)


def lowest(bits: int) -> int:
    """Return the position, counted from 0, of the lowest bit that is 1 in the number ``bits``."""
    return (bits & -bits).bit_length() - 1


def inverse(permutation: Sequence[int]) -> list[int]:
    """Return the inverse of ``permutation``: the index of each number in ``permutation``. Raises ValueError if a number
    is missing."""
    found = [-1] * len(permutation)
    for place, number in enumerate(permutation):
        found[number] = place
    if -1 in found:
        raise ValueError(f"{found.index(-1)} is missing")
    return found
