"""Two schemes without redundancy, in which each block (the gradient of a set of samples) is computed by only one rank.
In the scheme `PerBlock`, each rank sends each of its blocks to all other ranks. In the scheme `LocalSum`, each rank
sends the sum of its blocks to all other ranks.

Source of the scheme `PerBlock`: Li, Xie, Mao, Xu, Zhu, Zhang 2021, the paper on CSSGD.
"""

from coding.partition import bounds
from coding.placement import subset_placement
from coding.plan import Packet
from grsgd.comm.coded.scheme import Scheme


class PerBlock(Scheme):
    """A scheme without redundancy: the C(n, r) blocks are divided among the ranks, and each rank sends each of its
    blocks separately to all other ranks."""

    def assign_blocks(self):
        self.num_blocks = len(subset_placement(self.n, self.r).holders)
        self.owned_bounds = bounds(self.num_blocks, self.n).tolist()
        self.blocks = self.blocks_of(self.rank)

    def blocks_of(self, rank: int) -> list[int]:
        return list(range(self.owned_bounds[rank], self.owned_bounds[rank + 1]))

    def sent(self):
        if self.n > 1:
            for block in self.blocks:
                yield self.packet(self.rank, block)

    def received(self):
        others = (rank for rank in range(self.n) if rank != self.rank)
        return (self.packet(rank, block) for rank in others for block in self.blocks_of(rank))

    def packet(self, sender: int, block: int) -> Packet:
        return Packet(sender, tuple(rank for rank in range(self.n) if rank != sender), block, (block,), (0,))


class LocalSum(PerBlock):
    """A scheme that equals plain synchronous SGD: ranks compute the same blocks as in `PerBlock`, and each rank sends
    the sum of its blocks to all other ranks."""

    sends_sums = True

    def sent(self):
        if self.n > 1:
            yield self.packet(self.rank, 0)

    def received(self):
        return (self.packet(rank, 0) for rank in range(self.n) if rank != self.rank)

    def add_up(self):
        self.local = self.block_buffer(0) if self.blocks else self.empty(self.length, "int32")
        if len(self.blocks) != 1:  # if this rank has one block, the block itself is the sum
            self.add_own()
            self.wrap(self.total, self.local)
        if self.n == 1:
            self.total = self.local
            return
        self.total[:] = self.local  # add the int32 values in `self.local`, which all other ranks receive
        yield from self.exchange(self.packets)

    def source(self, packet):
        return self.local
