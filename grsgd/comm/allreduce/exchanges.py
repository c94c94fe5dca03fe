"""All-gather and reduce-scatter in steps, for any pattern of partners (`Sources`). In each step of the all-gather or
reduce-scatter, a rank sends to one partner and receives from one partner.

The array x of an all-reduce consists of one block per rank, and each rank is the owner of one block. In a step of the
all-gather, every rank has one other rank as its source. In a step of the all-gather, a rank receives all blocks that
its source has and the rank lacks. The steps of the reduce-scatter are the steps of the all-gather in reverse order,
with messages in the opposite direction. In a step of the reduce-scatter, a rank sends partial sums of some blocks to
the rank from which it receives the sums of these blocks in the all-gather. After the reduce-scatter, each rank has the
complete sum of the block that it owns. In the reduce-scatter every rank sends each block except its own block once. A
rank therefore sends (n-1)/n of the array, for any pattern of partners and any number n of ranks.

The sums are bit-identical on all ranks, because only the owner of a block computes the sum of the block, from partial
sums in a fixed order.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from coding.partition import part
from grsgd.comm.allreduce.pieces import add
from grsgd.comm.communicator import Communicator

Sources = Sequence[Sequence[int]]
"""``sources[step][rank]`` is the rank from which ``rank`` receives blocks in this step of the all-gather.

The steps in `Sources` are numbered in the order of the reduce-scatter, and the all-gather makes them in the opposite
order. In each step every rank sends blocks of the all-gather to exactly one rank.
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
    """The partners and the blocks of all ranks in each step of an all-reduce.

    ``place[rank]`` is the number of the block that ``rank`` owns. The blocks of the array are numbered such that the
    blocks of one message have consecutive numbers as far as possible. If the number of ranks is a power of two and
    partners form pairs, a rank sends one contiguous piece of the array per step.

    The constructor raises ValueError if some rank would not receive all blocks in the steps given by ``sources``.
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
        """Return the steps of ``rank`` in the all-reduce, in the order of the reduce-scatter."""
        if rank not in self._steps:
            self._steps[rank] = tuple(self._step(number, rank) for number in range(len(self._sources)))
        return self._steps[rank]

    def _step(self, number: int, rank: int) -> Step:
        source, dest, held = self._sources[number][rank], self._dests[number][rank], self._held[number + 1]
        return Step(source, dest, runs(held[source] & ~held[rank]), runs(held[rank] & ~held[dest]))


class Share:
    """The calling rank's array x and its steps in an all-reduce of x over the ranks of a `Plan`.

    Parameters
    ----------
    number
        Number of the calling rank among the ranks of the plan.
    ranks
        Number in the communicator of each rank of the plan. By default, a rank's numbers in the plan and in the
        communicator are equal.
    blocks
        Number of blocks of x. The plan sums only the first blocks of x, one block per rank of the plan. By default, x
        has one block per rank of the plan.
    """

    def __init__(self, x, plan: Plan, number: int, ranks: Sequence[int] | None = None, blocks: int | None = None):
        self.x, self.steps = x, plan.steps(number)
        self.ranks = range(plan.size) if ranks is None else ranks
        self.blocks = plan.size if blocks is None else blocks
        place = plan.place[number]
        self.own = (place, place + 1)

    def slices(self, *places: tuple[int, int]) -> list[slice]:
        """Return slices of x for ``places``, ranges (begin, end) of block numbers. Ranges of blocks without elements
        are left out."""
        found = []
        for begin, end in places:
            begin, end = part(begin, self.blocks, self.x.size)[0], part(end, self.blocks, self.x.size)[0]
            if begin < end:
                found.append(slice(begin, end))
        return found

    def scale(self, factor: float):
        """Multiply one block of x, the block that the calling rank owns, by ``factor``."""
        for place in self.slices(self.own) if factor != 1 else ():
            self.x[place] *= factor


def reduce_scatter(comm: Communicator, shares: Sequence[Share], tag: int):
    """Generator (schedule) that computes, in the array ``x`` of each `Share` in ``shares``, the sum over all ranks of
    the block that this rank owns.

    In each step, the rank sends and receives the blocks of all ``shares`` at the same time. The blocks of ``x`` that
    other ranks own are overwritten by partial sums.
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
    """Generator (schedule), run after `reduce_scatter`, that copies the block owned by each rank to all other ranks, in
    the array ``x`` of each `Share` in ``shares``."""
    for steps in zip(*(share.steps[::-1] for share in shares), strict=True):
        pending = []
        for share, step in zip(shares, steps, strict=True):
            source, dest = share.ranks[step.source], share.ranks[step.dest]
            pending.extend(comm.Irecv(share.x[place], source, tag) for place in share.slices(*step.got))
            pending.extend(comm.Isend(share.x[place], dest, tag) for place in share.slices(*step.given))
        yield pending


def allreduce(comm: Communicator, shares: Sequence[Share], tag: int, scale: float):
    """Generator (schedule) that sets the array ``x`` of each `Share` in ``shares`` to ``scale`` times the sum of ``x``
    over all ranks."""
    yield from reduce_scatter(comm, shares, tag)
    for share in shares:
        share.scale(scale)
    yield from all_gather(comm, shares, tag)


def holdings(sources: Sources, own: Sequence[int]) -> list[list[int]]:
    """Return the set of blocks that each rank holds after each step of the all-gather: one list of sets per step. A set
    of blocks is represented by an integer, whose bit b is 1 if block b is in the set.

    The returned lists are in the order of the steps of the reduce-scatter. The last returned list is ``own``, the
    blocks that each rank holds before the all-gather.
    """
    held = [list(own)]
    for step in reversed(sources):
        held.append([mine | held[-1][source] for mine, source in zip(held[-1], step, strict=True)])
    return held[::-1]


def places_of_blocks(sources: Sources) -> list[int]:
    """Return the number of the block that each rank owns, chosen such that blocks which are sent in one step have
    consecutive numbers.

    In the all-gather, the messages of the last steps contain the most blocks. Therefore ranks are sorted by the
    lowest-numbered block that each rank holds before the last step of the all-gather. Ranks with the same lowest block
    are sorted by the lowest-numbered block that each rank holds before the second-to-last step, and so on.
    """
    size = len(sources[0])
    held = holdings(sources, [1 << rank for rank in range(size)])[1:]
    order = sorted(range(size), key=lambda rank: [lowest(step[rank]) for step in held])
    return inverse(order)


def runs(bits: int) -> Runs:
    """Return the ranges of consecutive bits of the integer ``bits`` that are 1, beginning with the lowest bits."""
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
    """Return the inverse of ``permutation``: the index of each number in ``permutation``. Raises ValueError if
    ``permutation`` does not contain each number from 0 to its length - 1."""
    found = [-1] * len(permutation)
    for place, number in enumerate(permutation):
        found[number] = place
    if -1 in found:
        raise ValueError(f"{found.index(-1)} is missing")
    return found
