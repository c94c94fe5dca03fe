"""Plan of the coded exchange of gradients, which lists all packets with their senders and receivers. The plan is the
same for every step and for gradients of any length.

Source: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD), Algorithm 3 and formulas (8), (9), (13), (14), (23)-(27).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice
from typing import NamedTuple
from zlib import crc32

import numpy as np

from coding.placement import (
    MAX_TABLE_ENTRIES,
    PlacementError,
    SubsetPlacement,
    subset_numbers,
    subset_placement,
    subsets,
)

COMBINATIONS_AT_ONCE = 1 << 14
"""Number of combinations of blocks that `PaperPlan` examines at a time."""


class Packet(NamedTuple):
    """Packet that contains the sum of r slices, one slice of each of r blocks. One rank sends the packet to every rank
    that lacks exactly one of the r blocks.

    ``blocks`` has the numbers of the r blocks, and ``positions`` the number of the slice of each block. ``number``
    identifies the packet among the packets of one sender. Packets from one rank to another rank are sent and received
    in the same order.
    """

    sender: int
    receivers: tuple[int, ...]
    number: int
    blocks: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def group(self) -> tuple[int, ...]:
        """Return the multicast group of the packet: its sender and receivers, in ascending order."""
        return tuple(sorted((self.sender, *self.receivers)))

    @property
    def order(self) -> tuple:
        """Return the key by which all ranks sort packets. The key is pseudo-random, so that packets that are under way
        at the same time have different senders and receivers."""
        identity = self.group, self.sender, self.number
        return crc32(repr(identity).encode()), identity

    def __str__(self):
        return f"packet {self.number} of rank {self.sender} in group {{{', '.join(map(str, self.group))}}}"


class GroupPlan:
    """Plan in which every group of r+1 ranks exchanges the blocks that the group's members lack. For each group there
    are r+1 blocks, each known to all members except one. In the exchange of a group, each member receives the block
    that the member lacks.

    In group S every member i sends one packet to the other members of S. The packet of i contains one slice of each
    block S - {t}, t in S - {i}, where S - {t} is the block held by all members except t. If i is the p-th rank that
    holds a block, the packet of i contains the p-th slice of this block. Each of n ranks sends C(n-1, r) packets and
    receives r C(n-1, r) packets. Every slice that a rank lacks reaches this rank exactly once.
    """

    def __init__(self, placement: SubsetPlacement):
        self.placement = placement
        n, r = placement.n, placement.r
        self.groups = subsets(n, r + 1)
        """Members of each group: uint16 of shape [C(n, r+1), r+1]."""
        self.blocks = np.empty(self.groups.shape, np.int32)
        """Number ``blocks[g, k]`` of the block that only member k of group g lacks: int32 of shape [C(n, r+1), r+1]."""
        for k in range(r + 1):
            self.blocks[:, k] = subset_numbers(np.delete(self.groups, k, axis=1), n)

    def sent(self, rank: int) -> Iterator[Packet]:
        """Yield the packets that ``rank`` sends, in ascending order of their numbers."""
        for number, group, blocks in self._groups_of(rank):
            yield packet(number, group, blocks, group.index(rank))

    def received(self, rank: int) -> Iterator[Packet]:
        """Yield the packets that ``rank`` must receive to know all blocks."""
        for number, group, blocks in self._groups_of(rank):
            for k, sender in enumerate(group):
                if sender != rank:
                    yield packet(number, group, blocks, k)

    def _groups_of(self, rank: int):
        for number in np.flatnonzero((self.groups == rank).any(1)).tolist():
            yield number, self.groups[number].tolist(), self.blocks[number].tolist()


def packet(number: int, group: list[int], blocks: list[int], k: int) -> Packet:
    """Return the packet that member ``k`` of ``group`` sends to the other members of ``group``.

    ``blocks[j]`` is the number of the block that only member j of ``group`` lacks.
    """
    others = [j for j in range(len(group)) if j != k]
    return Packet(
        sender=group[k],
        receivers=tuple(group[j] for j in others),
        number=number,
        blocks=tuple(blocks[j] for j in others),
        positions=tuple(k - 1 if j < k else k for j in others),
    )


class PaperPlan:
    """Plan by Algorithm 3 as written in the CSSGD paper, in which a rank tries all combinations of r of its blocks. A
    rank sends a packet for each combination of r of its blocks if some other rank lacks exactly one block of the
    combination. All packets of `GroupPlan` are among the packets of `PaperPlan`. With r = 2, or with n = r+1, Algorithm
    3 sends only the packets of `GroupPlan`. For r >= 3 and n >= r+2 most packets of Algorithm 3 are repeats that bring
    no rank anything new. With r = 3, Algorithm 3 sends 4 times as many packets as `GroupPlan` on n = 5 ranks, 10 times
    on 6 ranks, and 19 times on 7 ranks. With r = 4 and n = 6, Algorithm 3 sends 39 times as many packets as
    `GroupPlan`. For r = 1 a rank multicasts its block to all other ranks with one packet. With
    `GroupPlan` the rank sends n-1 packets, one to each other rank.
    """

    def __init__(self, placement: SubsetPlacement):
        self.placement = placement
        n, r = placement.n, placement.r
        self.holds = np.zeros((len(placement.holders), n), bool)
        self.holds[np.arange(len(placement.holders))[:, None], placement.holders] = True
        if self.holds.size > MAX_TABLE_ENTRIES:
            raise PlacementError(f"{n} ranks with redundancy {r} have {len(self.holds)} blocks: too many")

    def sent(self, rank: int) -> Iterator[Packet]:
        """Yield the packets that ``rank`` sends, in ascending order of their numbers."""
        r = self.placement.r
        choices = combinations(self.placement.blocks(rank).tolist(), r)
        number = 0
        while chosen := list(islice(choices, COMBINATIONS_AT_ONCE)):
            blocks = np.array(chosen)
            targets = self.holds[blocks].sum(1) == r - 1
            positions = (self.placement.holders[blocks] < rank).sum(2)
            for row in np.flatnonzero(targets.any(1)):
                receivers = tuple(np.flatnonzero(targets[row]).tolist())
                yield Packet(rank, receivers, number, chosen[row], tuple(positions[row].tolist()))
                number += 1

    def received(self, rank: int) -> Iterator[Packet]:
        """Yield the packets that ``rank`` receives, in ascending order of their senders."""
        for sender in range(self.placement.n):
            yield from (packet for packet in self.sent(sender) if rank in packet.receivers)


ENUMERATIONS = {"groups": GroupPlan, "paper": PaperPlan}


@lru_cache(maxsize=8)
def packet_plan(n: int, r: int, enumeration: str = "groups") -> GroupPlan | PaperPlan:
    """Return the plan of packets for ``n`` ranks and redundancy ``r``. ``enumeration`` is the key of the plan's class
    in `ENUMERATIONS`. The results of the last 8 calls are cached.

    Raises PlacementError unless 1 <= r <= n, or if the plan has too many groups of ranks to fit into memory.
    """
    return ENUMERATIONS[enumeration](subset_placement(n, r))
