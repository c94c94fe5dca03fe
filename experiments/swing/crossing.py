"""Counts, without a network, the traffic of all-reduces between groups of consecutive ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.swing.contenders import powers_of_two
from grsgd.comm.allreduce.exchanges import Sources
from grsgd.comm.allreduce.swing import swing_partners


class Place(NamedTuple):
    """A division of ranks into groups of ``size`` ranks.

    The first rank of a job has the position ``offset`` in its group.
    """

    size: int
    offset: int


def crossing(partners: Sources, place: Place) -> float:
    """Return the bytes that an all-reduce by halving and doubling sends between groups, divided by the array's bytes.

    In step s (0, 1, ...), each rank sends 2^-(s+1) of the array twice: once as partial sums, and once as finished sums.
    """
    groups = (np.arange(len(partners[0])) + place.offset) // place.size
    crossings = [np.count_nonzero(groups != groups[np.asarray(step)]) for step in partners]
    return 2 * sum(crossings[step] * 2.0 ** -(step + 1) for step in range(len(partners)))


def changes(ranks: int, places: Sequence[Place]) -> np.ndarray:
    """Return the relative change of the traffic between groups, for each grouping, if Bine replaces near-first halving.

    A change below 0 means that Bine sends fewer bytes between groups. ``ranks``: number of ranks, a power of two.
    """
    bine, plain = swing_partners(ranks), powers_of_two(ranks)
    return np.array([crossing(bine, place) / crossing(plain, place) - 1 for place in places])


def places(ranks: int) -> list[Place]:
    """Return groupings with all group sizes from 2 to half of the ranks, and all offsets of the first rank."""
    return [Place(size, offset) for size in range(2, ranks // 2 + 1) for offset in range(size)]


def aligned(ranks: int) -> list[Place]:
    """Return groupings whose sizes are powers of two, with the job's first rank as the first rank of its group."""
    return [Place(1 << step, 0) for step in range(1, ranks.bit_length() - 1)]
