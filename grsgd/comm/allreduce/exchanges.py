"""All-gather and reduce-scatter in steps, for any pattern of partners: in each step a rank exchanges with one partner.

An array consists of one block per rank, and each rank owns a block. In a step of the all-gather, every rank has one
other rank as its source. It receives from the source all blocks that the source has and that it lacks itself. The
reduce-scatter is the reverse: in each step a rank sends its partial sums of certain blocks to the rank from which it
will later receive these blocks. In the end each rank has the sum of the block that it owns. So in the reduce-scatter
every rank sends each block except its own block once: (n-1)/n of the array, for any pattern and any n.

Sums are bit-identical on all ranks: each block is summed at its owner only, from partial sums in a fixed order.

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

Steps are numbered in the order of the reduce-scatter. The all-gather has the steps in the opposite order. In each step
every rank is the source of exactly one rank.
"""
Runs = tuple[tuple[int, int], ...]
"""Runs of consecutive blocks. Each run is a pair: the place of its first block, and the place after its last block."""


class Step(NamedTuple):
    """A rank's part in a step.

    In the all-gather the rank receives the blocks at the places ``got`` from ``source``, and sends the blocks at the
    places ``given`` to ``dest``. In the reduce-scatter the rank sends the blocks at the places ``got`` to ``source``,
    and receives the blocks at the places ``given`` from ``dest``.
    """

    source: int
    dest: int
    got: Runs
    given: Runs


class Plan:
    """Steps of an all-reduce on all ranks.

    ``place[rank]`` is the place, in the order of blocks, of the block that ``rank`` sums up. Blocks that are sent in
    one message lie side by side as far as possible. If n is a power of two and partners form pairs, a rank sends one
    contiguous piece of the array per step.

    Raises ValueError if some rank would not receive all blocks.
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
        Number of the calling rank among the ranks of the plan.
    ranks
        Number in the communicator of each rank of the plan; by default both numbers are equal.
    blocks
        Number of blocks of x. The plan uses the first blocks, one per rank of the plan. By default the plan uses all
        blocks.
    """

    def __init__(self, x, plan: Plan, number: int, ranks: Sequence[int] | None = None, blocks: int | None = None):
        self.x, self.steps = x, plan.steps(number)
        self.ranks = range(plan.size) if ranks is None else ranks
        self.blocks = plan.size if blocks is None else blocks
        place = plan.place[number]
        self.own = (place, place + 1)

    def slices(self, *places: tuple[int, int]) -> list[slice]:
        """Return the places of runs of blocks in x as slices; runs without elements are left out."""
        found = []
        for begin, end in places:
            begin, end = part(begin, self.blocks, self.x.size)[0], part(end, self.blocks, self.x.size)[0]
            if begin < end:
                found.append(slice(begin, end))
        return found

    def scale(self, factor: float):
        """Multiply the block that the rank owns by ``factor``."""
        for place in self.slices(self.own) if factor != 1 else ():
            self.x[place] *= factor


def reduce_scatter(comm: Communicator, shares: Sequence[Share], tag: int):
    """Schedule that sums the block that this rank owns over all ranks, in the array ``x`` of each of ``shares``.

    All ``shares`` make the same step at the same time. Partial sums overwrite all other blocks of each ``x``.
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
    """Schedule, called after `reduce_scatter`, that copies each rank's block to all other ranks, in the array ``x`` of
    each of ``shares``."""
    for steps in zip(*(share.steps[::-1] for share in shares), strict=True):
        pending = []
        for share, step in zip(shares, steps, strict=True):
            source, dest = share.ranks[step.source], share.ranks[step.dest]
            pending.extend(comm.Irecv(share.x[place], source, tag) for place in share.slices(*step.got))
            pending.extend(comm.Isend(share.x[place], dest, tag) for place in share.slices(*step.given))
        yield pending


def allreduce(comm: Communicator, shares: Sequence[Share], tag: int, scale: float):
    """Schedule that sets the x of each share to ``scale`` times its sum over all ranks."""
    yield from reduce_scatter(comm, shares, tag)
    for share in shares:
        share.scale(scale)
    yield from all_gather(comm, shares, tag)


def holdings(sources: Sources, own: Sequence[int]) -> list[list[int]]:
    """Return, per step of the all-gather, the blocks that each rank holds after this step. A set of blocks is a whole
    number: bit b is 1 if block b is in the set.

    The last list is ``own``, the blocks that each rank has at the beginning.
    """
    held = [list(own)]
    for step in reversed(sources):
        held.append([mine | held[-1][source] for mine, source in zip(held[-1], step, strict=True)])
    return held[::-1]


def places_of_blocks(sources: Sources) -> list[int]:
    """Return the place of each rank's block, so that blocks that travel together lie side by side.

    Most blocks travel together in the last steps of the all-gather. So the first sort key of a rank is the
    lowest-numbered block that the rank holds before the last step. Ties are broken by the lowest-numbered block that
    the rank holds before the second-to-last step, and so on.
    """
    size = len(sources[0])
    held = holdings(sources, [1 << rank for rank in range(size)])[1:]
    order = sorted(range(size), key=lambda rank: [lowest(step[rank]) for step in held])
    return inverse(order)


def runs(bits: int) -> Runs:
    """Return the runs of consecutive bits that are 1 in a number, the lowest run first."""
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
    """Return the position of the lowest bit that is 1 in a number; positions begin at 0."""
    return (bits & -bits).bit_length() - 1


def inverse(permutation: Sequence[int]) -> list[int]:
    """Return the place of each number in ``permutation``. Raises ValueError if a number is missing."""
    found = [-1] * len(permutation)
    for place, number in enumerate(permutation):
        found[number] = place
    if -1 in found:
        raise ValueError(f"{found.index(-1)} is missing")
    return found
