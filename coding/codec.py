"""Encoder and decoder of the packets that one rank sends and receives in coded multicast. A block is the gradient of a
part of the batch, as int32. A packet is the sum modulo 2^32 of slices of several blocks.

The integers modulo 2^32 form a group: an added number can be subtracted again exactly, even after an overflow. Because
sums modulo 2^32 can be undone, packets of any int32 numbers are decoded exactly. Source: Li, Xie, Mao, Xu, Zhu, Zhang
2021 (CSSGD), formulas (10)-(16).
"""

import numpy as np

from coding.kernels import kernels
from coding.partition import bounds
from coding.plan import GroupPlan, Packet, PaperPlan


class Codec:
    """Encoder and decoder of the packets that one rank sends and receives. ``plan`` lists the packets, and ``length``
    is the number of int32 elements of a block.

    A block is divided into r consecutive slices, whose sizes are as equal as possible. The number r is the redundancy
    of ``plan``: the number of ranks that hold each block. A packet has as many elements as the longest slice,
    ``packet_length``. Slices shorter than ``packet_length`` are padded with zeros.

    The attribute ``own`` has the numbers of the blocks that the rank holds, in ascending order. The attribute
    ``missing`` has the numbers of the blocks that the rank lacks, in ascending order. The parameter ``own`` of the
    methods is a contiguous int32 array of shape [number of held blocks, length], whose rows are the held blocks in
    ascending order.
    """

    def __init__(self, plan: GroupPlan | PaperPlan, rank: int, length: int):
        self.rank, self.length = rank, length
        self.own: list[int] = plan.placement.blocks(rank).tolist()
        self.missing: list[int] = plan.placement.missing(rank).tolist()
        self.bounds: list[int] = bounds(length, plan.placement.r).tolist()
        self.packet_length = -(-length // plan.placement.r)
        self._start = {block: row * length for row, block in enumerate(self.own)}
        self._known: dict[Packet, tuple[np.ndarray, np.ndarray]] = {}

    def encode(self, packet: Packet, own, out):
        """Write the content of ``packet``, which this rank sends, into ``out``: int32 of shape [packet_length]."""
        kernels(out).add_slices(own.reshape(-1), *self._known_slices(packet), out)

    def decode(self, packet: Packet, content, own, out):
        """Subtract the slices that this rank knows from ``content``, the content of the received ``packet``. Write the
        slice that remains after the subtraction, which this rank lacks, into ``out``.

        ``content``: int32 of shape [packet_length]. ``out``: int32 array as long as the slice whose position
        `missing_slice` returns. ``out`` may be a view of the first elements of ``content``.
        """
        kernels(out).strip_slices(content[: out.size], own.reshape(-1), *self._known_slices(packet), out)

    def add_known(self, packet: Packet, own, content):
        """Add the slices of ``packet`` that this rank knows to ``content``: int32 of shape [packet_length].

        If ``content`` is at first the slice that this rank lacks, padded with zeros, `add_known` turns ``content`` into
        the content of ``packet``.
        """
        rows = own.reshape(-1)
        for start, length in zip(*self._known_slices(packet), strict=True):
            content[:length] += rows[start : start + length]

    def missing_slice(self, packet: Packet) -> tuple[int, int, int]:
        """Return the position of the slice of the received ``packet`` that this rank lacks: the number of the block,
        and the slice's begin and end in the block.

        Raises ValueError if this rank holds all blocks of the packet.
        """
        for block, position in zip(packet.blocks, packet.positions, strict=True):
            if block not in self._start:
                return block, self.bounds[position], self.bounds[position + 1]
        raise ValueError(f"rank {self.rank} already holds all blocks of {packet}, which brings nothing to decode")

    def _known_slices(self, packet: Packet) -> tuple[np.ndarray, np.ndarray]:
        """Return the begins and the lengths of the slices of ``packet`` that this rank knows. The begin of a slice is
        an index into the flattened array ``own``."""
        if packet not in self._known:
            self._known[packet] = self._find_slices(packet)
        return self._known[packet]

    def _find_slices(self, packet: Packet) -> tuple[np.ndarray, np.ndarray]:
        known = [
            (self._start[block] + self.bounds[position], self.bounds[position + 1] - self.bounds[position])
            for block, position in zip(packet.blocks, packet.positions, strict=True)
            if block in self._start
        ]
        starts, lengths = np.array(known, np.int64).reshape(-1, 2).T
        return starts, lengths
