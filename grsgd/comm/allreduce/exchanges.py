"""All-gather and reduce-scatter in steps of one partner each, for any pattern of partners.

An array lies in as many blocks as there are ranks, and each rank owns one. In a step of the all-gather every rank gets
from one other, its source, all blocks that this has and it has not. The reduce-scatter is the same backwards: in each
step a rank hands its partial sums of those blocks over to the one from which it will get them, and what it owns is
summed up in the end. So every rank sends each block once but its own, (n-1)/n of the array, whatever the pattern and n.

Sums are bit-identical everywhere: a block is summed at its owner, from partial sums that come in a fixed order.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from coding.partition import part
from grsgd.comm.allreduce.pieces import add
from grsgd.comm.communicator import Communicator

Sources = Sequence[Sequence[int]]
"""By step of the reduce-scatter, and by rank, from whom the rank gets blocks in that step of the all-gather, which has
the steps in opposite order. In each step every rank is the source of one rank."""
Runs = tuple[tuple[int, int], ...]
"""Consecutive places of blocks: begin and end of each run."""


class Step(NamedTuple):
    """A rank's part in a step: in the all-gather it gets the blocks at the places ``got`` from ``source``, and gives
    those at ``given`` to ``dest``; in the reduce-scatter it sends and receives the other way round."""

    source: int
    dest: int
    got: Runs
    given: Runs


class Plan:
    """The steps of all ranks.

    ``place[rank]``: where the rank's own block lies. Blocks that travel together lie side by side as far as they can:
    with n a power of two and partners in pairs, what a rank sends in a step is one run.

    Raises ValueError if some rank would not get all blocks.
    """

    def __init__(self, sources: Sources):
        self.size = len(sources[0])
        self.place = places_of_blocks(sources)
        self._sources = sources
        self._dests = [inverse(step) for step in sources]
        self._held = holdings(sources, [1 << place for place in self.place])
        self._steps: dict[int, tuple[Step, ...]] = {}
        if set(self._held[0]) != {(1 << self.size) - 1}:
            raise ValueError(f"{len(sources)} steps do not bring all {self.size} blocks to all ranks")

    def steps(self, rank: int) -> tuple[Step, ...]:
        """Return the steps of a rank, in the order of the reduce-scatter."""
        if rank not in self._steps:
            self._steps[rank] = tuple(self._step(number, rank) for number in range(len(self._sources)))
        return self._steps[rank]

    def _step(self, number: int, rank: int) -> Step:
        source, dest, held = self._sources[number][rank], self._dests[number][rank], self._held[number + 1]
        return Step(source, dest, runs(held[source] & ~held[rank]), runs(held[rank] & ~held[dest]))


class Share:
    """The calling rank's part in an all-reduce of x over the ranks of a plan.

    Parameters
    ----------
    number
        That of the calling rank in the plan.
    ranks
        What the communicator calls the ranks of the plan; by default the same.
    blocks
        How many blocks x has, the plan's first; by default as many as the plan.
    """

    def __init__(self, x, plan: Plan, number: int, ranks: Sequence[int] | None = None, blocks: int | None = None):
        self.x, self.steps = x, plan.steps(number)
        self.ranks = range(plan.size) if ranks is None else ranks
        self.blocks = plan.size if blocks is None else blocks
        place = plan.place[number]
        self.own = (place, place + 1)

    def slices(self, *places: tuple[int, int]) -> list[slice]:
        """Return where runs of blocks lie in x, without those of no elements."""
        found = []
        for begin, end in places:
            begin, end = part(begin, self.blocks, self.x.size)[0], part(end, self.blocks, self.x.size)[0]
            if begin < end:
                found.append(slice(begin, end))
        return found

    def scale(self, factor: float):
        """Multiply what the rank owns."""
        for place in self.slices(self.own) if factor != 1 else ():
            self.x[place] *= factor


def reduce_scatter(comm: Communicator, shares: Sequence[Share], tag: int):
    """Schedule: sum up, in every share's x, the block that this rank owns. The shares go side by side, step by step;
    what else lies in x is overwritten by partial sums."""
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
    """Schedule: bring the block that each rank owns to all ranks, in every share's x."""
    for steps in zip(*(share.steps[::-1] for share in shares), strict=True):
        pending = []
        for share, step in zip(shares, steps, strict=True):
            source, dest = share.ranks[step.source], share.ranks[step.dest]
            pending.extend(comm.Irecv(share.x[place], source, tag) for place in share.slices(*step.got))
            pending.extend(comm.Isend(share.x[place], dest, tag) for place in share.slices(*step.given))
        yield pending


def allreduce(comm: Communicator, shares: Sequence[Share], tag: int, scale: float):
    """Schedule: set the x of each share to ``scale`` times its sum."""
    yield from reduce_scatter(comm, shares, tag)
    for share in shares:
        share.scale(scale)
    yield from all_gather(comm, shares, tag)


def holdings(sources: Sources, own: Sequence[int]) -> list[list[int]]:
    """Return by step which blocks each rank holds after it in the all-gather, as the bits of a number; the last ones
    are ``own``, those that it begins with."""
    held = [list(own)]
    for step in reversed(sources):
        held.append([mine | held[-1][source] for mine, source in zip(held[-1], step, strict=True)])
    return held[::-1]


def places_of_blocks(sources: Sources) -> list[int]:
    """Return where each rank's block lies, so that those that travel together lie side by side.

    They travel together most in the last steps of the all-gather: ranks are sorted by what they hold before these, by
    the lowest block of it.
    """
    size = len(sources[0])
    held = holdings(sources, [1 << rank for rank in range(size)])[1:]
    order = sorted(range(size), key=lambda rank: [lowest(step[rank]) for step in held])
    return inverse(order)


def runs(bits: int) -> Runs:
    """Return the runs of ones in a number, the lowest first."""
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
    """Return the number of the lowest one in a number, the first being 0."""
    return (bits & -bits).bit_length() - 1


def inverse(permutation: Sequence[int]) -> list[int]:
    """Return of each number where it lies. Raises ValueError if one is missing."""
    found = [-1] * len(permutation)
    for place, number in enumerate(permutation):
        found[number] = place
    if -1 in found:
        raise ValueError(f"{found.index(-1)} is missing")
    return found
