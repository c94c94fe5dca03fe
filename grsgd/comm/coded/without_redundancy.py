"""Two schemes in which one rank computes each block (the gradient of a set of samples). In `PerBlock`, each rank sends
its blocks one by one. In `LocalSum`, each rank sends the sum of its blocks.

Source of `PerBlock`: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD).
"""

from coding.partition import bounds
from coding.placement import subset_placement
from coding.plan import Packet
from grsgd.comm.coded.scheme import Scheme


class PerBlock(Scheme):
    """A scheme without redundancy: each rank gets some of the C(n, r) blocks, and sends each of its blocks separately
    to all other ranks."""

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
    """Plain synchronous SGD: ranks get blocks of samples as in `PerBlock`, and each rank sends the sum of its blocks'
    gradients to all other ranks."""

    sends_sums = True

    def sent(self):
        if self.n > 1:
            yield self.packet(self.rank, 0)

    def received(self):
        return (self.packet(rank, 0) for rank in range(self.n) if rank != self.rank)

    def add_up(self):
        self.local = self.block_buffer(0) if self.blocks else self.empty(self.length, "int32")
        if len(self.blocks) != 1:  # the sum of one block is the block itself
            self.add_own()
            self.wrap(self.total, self.local)
        if self.n == 1:
            self.total = self.local
            return
        self.total[:] = self.local  # all other ranks receive the values in `self.local`
        yield from self.exchange(self.packets)

    def source(self, packet):
        return self.local
