"""Two schemes in which every subset of r ranks computes one block (the gradient of a set of samples): `Coded` and
`Uncoded`. In the scheme `Coded`, ranks send coded packets, as in CSSGD, and in the scheme `Uncoded`, ranks send slices
of blocks.

Source: Li, Xie, Mao, Xu, Zhu, Zhang 2021, the paper on CSSGD.
"""

from collections.abc import Callable

from coding.codec import Codec
from coding.fixed_point import FixedPoint, accumulate
from coding.partition import bounds
from coding.placement import subset_placement
from coding.plan import Packet, packet_plan
from grsgd.comm.coded.multicast import Unicast
from grsgd.comm.coded.scheme import Scheme


class Coded(Scheme):
    """The coded scheme of CSSGD, in which every packet is the sum of r slices of r different blocks. Each receiver of a
    packet holds r-1 of the packet's r blocks, and decodes the slice of the block that it lacks.

    ``enumeration``: "groups" for a list of packets in which no slice is sent twice, or "paper" for the list of the
    paper's Algorithm 3, in which packets are repeated (see `coding.plan`).
    """

    def __init__(
        self,
        transport: Unicast,
        n: int,
        r: int,
        rank: int,
        length: int,
        fixed_point: FixedPoint,
        empty: Callable,
        enumeration: str = "groups",
    ):
        self.enumeration = enumeration
        super().__init__(transport, n, r, rank, length, fixed_point, empty)

    def assign_blocks(self):
        self.plan = packet_plan(self.n, self.r, self.enumeration)
        self.codec = Codec(self.plan, self.rank, self.length)
        self.blocks = self.codec.own
        self.num_blocks = len(self.plan.placement.holders)

    def sent(self):
        return self.plan.sent(self.rank)

    def received(self):
        known, self.repeats = set(), set()
        for packet in self.plan.received(self.rank):
            brings = self.codec.missing_slice(packet)
            if brings in known:
                self.repeats.add(packet.order)
            known.add(brings)
            yield packet

    def size(self, packet):
        return self.codec.packet_length

    def encode(self, packet, content):
        self.codec.encode(packet, self.block_buffers, content)

    def decode(self, packet, content):
        if packet.order in self.repeats:
            return
        _, begin, end = self.codec.missing_slice(packet)
        piece = content[: end - begin]
        self.codec.decode(packet, content, self.block_buffers, piece)
        accumulate(self.total[begin:end], piece)

    def other_holders(self, packet):
        return [rank for rank in self.plan.placement.holders[self.brings(packet)[0]].tolist() if rank != packet.sender]

    def brings(self, packet):
        return self.codec.missing_slice(packet)

    def make_packet(self, packet, piece):
        self.codec.add_known(packet, self.block_buffers, piece)


class Uncoded(Scheme):
    """A scheme in which ranks hold the same blocks as in `Coded`, but exchange slices of blocks without coding. Each of
    the r ranks that hold a block sends a different slice of the block to all ranks that lack the block."""

    def assign_blocks(self):
        placement = subset_placement(self.n, self.r)
        self.holders = placement.holders
        self.blocks = placement.blocks(self.rank).tolist()
        self.missing = placement.missing(self.rank).tolist()
        self.num_blocks = len(self.holders)
        self.bounds = bounds(self.length, self.r).tolist()

    def sent(self):
        if self.r < self.n:
            for block in self.blocks:
                yield self.packet(block, self.holders[block].tolist().index(self.rank))

    def received(self):
        return (self.packet(block, position) for block in self.missing for position in range(self.r))

    def packet(self, block: int, position: int) -> Packet:
        holders = self.holders[block].tolist()
        receivers = tuple(rank for rank in range(self.n) if rank not in holders)
        return Packet(holders[position], receivers, block, (block,), (position,))

    def span(self, packet):
        position = packet.positions[0]
        return self.bounds[position], self.bounds[position + 1]

    def other_holders(self, packet):
        return [rank for rank in self.holders[packet.blocks[0]].tolist() if rank != packet.sender]
