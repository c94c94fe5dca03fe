"""Placements of blocks on ranks: a placement decides which blocks (parts of the batch) each rank computes, if r ranks
compute each block.

Source: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD), formulas (5), (6), (20)-(23), for the subset placement.
`GroupedPlacement` was designed in this project. With the grouped placement ranks send the smallest possible number of
bytes, provided that all ranks need the sum and compute equally much.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations
from math import comb

import numpy as np

from coding.partition import bounds, part

MAX_TABLE_ENTRIES = 1 << 26
"""Largest number of entries of a table of subsets of ranks. A larger table raises PlacementError."""


class PlacementError(ValueError):
    """Error raised if a redundancy or a number of groups is impossible. The error's message names the allowed values in
    one line."""


def subsets(n: int, size: int) -> np.ndarray:
    """Return all subsets of 0..n-1 with ``size`` elements, in lexicographic order: uint16 of shape [C(n, size),
    size]."""
    count = comb(n, size)
    if count * size > MAX_TABLE_ENTRIES:
        raise PlacementError(f"{n} ranks have {count} subsets of {size}: too many; take the grouped placement")
    members = chain.from_iterable(combinations(range(n), size))
    return np.fromiter(members, np.uint16, count * size).reshape(count, size)


def subset_numbers(members: np.ndarray, n: int) -> np.ndarray:
    """Return the numbers of m subsets of 0..n-1 in the lexicographic order of all subsets of their size: int64 of shape
    [m].

    ``members``: the members of each subset, ascending, as integers of shape [m, size].
    """
    size = members.shape[1]
    last = comb(n, size) - 1
    numbers = np.full(len(members), last, np.int64)
    for place in range(size):
        later = np.array([comb(n - 1 - member, size - place) for member in range(n)], np.int64)
        numbers -= later[members[:, place]]
    return numbers


@dataclass(frozen=True)
class SubsetPlacement:
    """Placement of the blocks of a batch on ranks 0..n-1, with one block for each subset of r ranks. Each block is
    computed by the ranks of its subset, and by no other ranks.

    Blocks are numbered in the lexicographic order of their subsets. A rank holds C(n-1, r-1) of the C(n, r) blocks, so
    a rank computes r/n of the batch. `SubsetPlacement` raises PlacementError unless 1 <= r <= n.
    """

    n: int
    r: int

    def __post_init__(self):
        if not 1 <= self.r <= self.n:
            raise PlacementError(f"redundancy {self.r} on {self.n} ranks: it must be from 1 to {self.n}")

    @cached_property
    def holders(self) -> np.ndarray:
        """Return the ranks that hold each block, ascending: uint16 of shape [C(n, r), r]."""
        return subsets(self.n, self.r)

    def blocks(self, rank: int) -> np.ndarray:
        """Return the numbers of the blocks that ``rank`` holds, ascending: int64 of shape [C(n-1, r-1)]."""
        return np.flatnonzero((self.holders == rank).any(1))

    def missing(self, rank: int) -> np.ndarray:
        """Return the numbers of the blocks that ``rank`` lacks, ascending: int64 of shape [C(n-1, r)]."""
        return np.flatnonzero((self.holders != rank).all(1))

    def samples(self, batch: int) -> np.ndarray:
        """Return the bounds of all blocks in a batch of ``batch`` samples: int64 of shape [C(n, r) + 1].

        If ``bounds`` is the returned array, block b has the samples from ``bounds[b]`` up to, but without, ``bounds[b +
        1]``.
        """
        return bounds(batch, comb(self.n, self.r))


@lru_cache(maxsize=8)
def subset_placement(n: int, r: int) -> SubsetPlacement:
    """Return the subset placement for ``n`` ranks and redundancy ``r``. The results of the last 8 calls are cached."""
    return SubsetPlacement(n, r)


@dataclass(frozen=True)
class CyclicPlacement:
    """Placement of n blocks of a batch on ranks 0..n-1. The r ranks q, q + 1, ... q + r - 1, counted modulo n, compute
    block q.

    A rank computes r of the n blocks, which are r/n of the batch. Source: Tandon, Lei, Dimakis, Karampatziakis 2017.
    `CyclicPlacement` raises PlacementError unless 1 <= r <= n.
    """

    n: int
    r: int

    def __post_init__(self):
        if not 1 <= self.r <= self.n:
            raise PlacementError(f"redundancy {self.r} on {self.n} ranks: it must be from 1 to {self.n}")

    def holders(self, block: int) -> tuple[int, ...]:
        """Return the ranks that compute the block number ``block``, in ascending order."""
        return tuple(sorted((block + k) % self.n for k in range(self.r)))

    def blocks(self, rank: int) -> list[int]:
        """Return the numbers of the blocks that ``rank`` computes, ascending."""
        return sorted((rank - k) % self.n for k in range(self.r))


def number_of_groups(n: int, r: int) -> int:
    """Return the number of groups with which no rank computes more than r/n of the batch: n/r, rounded up."""
    return -(-n // r)


@dataclass(frozen=True)
class GroupedPlacement:
    """Placement with ranks 0..n-1 in q groups of consecutive ranks. All members of a group compute the same 1/q of the
    batch.

    A group has to send only one gradient, summed over the group's samples. The gradients of groups are sent in one of
    two ways. In the way "direct", member k of a group of m ranks multicasts part k of the m parts into which the
    group's gradient is divided. In the way "reduce-scatter", each member sends the chunks of which it is the `sender`
    to the ranks that own these chunks. `GroupedPlacement` raises PlacementError unless 1 <= q <= n.
    """

    n: int
    q: int

    def __post_init__(self):
        if not 1 <= self.q <= self.n:
            raise PlacementError(f"{self.q} groups of {self.n} ranks: there must be from 1 to {self.n}")

    def members(self, group: int) -> range:
        """Return the ranks in the group number ``group``. The sizes of groups differ by at most one."""
        return range(*part(group, self.q, self.n))

    def group(self, rank: int) -> int:
        """Return the number of the group that ``rank`` belongs to."""
        return ((rank + 1) * self.q - 1) // self.n

    def samples(self, batch: int) -> np.ndarray:
        """Return the bounds of the groups' samples in a batch of ``batch`` samples: int64 of shape [q + 1].

        If ``bounds`` is the returned array, group k computes the samples from ``bounds[k]`` up to, but without,
        ``bounds[k + 1]``.
        """
        return bounds(batch, self.q)

    def part(self, rank: int, length: int) -> tuple[int, int]:
        """Return the begin and the end of the part of its group's gradient that ``rank`` sends in the way "direct"."""
        members = self.members(self.group(rank))
        return part(rank - members.start, len(members), length)

    def chunk(self, rank: int, length: int) -> tuple[int, int]:
        """Return the begin and the end of the chunk of the sum over all groups that ``rank`` owns in the way
        "reduce-scatter"."""
        return part(rank, self.n, length)

    def sender(self, group: int, owner: int) -> int:
        """Return the rank in ``group`` that sends the chunk of rank ``owner`` to ``owner`` in the way "reduce-scatter".
        ``owner`` must be a rank of another group than ``group``."""
        members = self.members(group)
        return members[owner % len(members)]
