"""The traffic out of groups of ranks that follow each other, of any size, counted without a network."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.swing.contenders import powers_of_two
from grsgd.comm.allreduce.exchanges import Sources
from grsgd.comm.allreduce.swing import swing_partners


class Place(NamedTuple):
    """Groups of ``size`` ranks; the job's first rank is the ``offset``-th of its group."""

    size: int
    offset: int


def crossing(partners: Sources, place: Place) -> float:
    """Return the bytes that an all-reduce by halving and doubling sends from group to group, in arrays.

    In step s each rank sends a half of a half ... of the array, 2^-(s+1), twice: partial sums, and finished blocks.
    """
    groups = (np.arange(len(partners[0])) + place.offset) // place.size
    crossings = [np.count_nonzero(groups != groups[np.asarray(step)]) for step in partners]
    return 2 * sum(crossings[step] * 2.0 ** -(step + 1) for step in range(len(partners)))


def changes(ranks: int, places: Sequence[Place]) -> np.ndarray:
    """Return for each place by how much Bine sends more between groups than halving and doubling with the nearest
    partners first, as a share; below 0: less. ``ranks``: a power of two."""
    bine, plain = swing_partners(ranks), powers_of_two(ranks)
    return np.array([crossing(bine, place) / crossing(plain, place) - 1 for place in places])


def places(ranks: int) -> list[Place]:
    """Return all sizes of groups from 2 to half of the ranks, with all offsets."""
    return [Place(size, offset) for size in range(2, ranks // 2 + 1) for offset in range(size)]


def aligned(ranks: int) -> list[Place]:
    """Return those whose groups are powers of two and filled from their first rank on."""
    return [Place(1 << step, 0) for step in range(1, ranks.bit_length() - 1)]
