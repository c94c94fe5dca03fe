"""How n ranks that have computed blocks of a gradient all get the sum of all blocks: one class for each scheme.

A scheme says which samples of a common batch make up which block, which blocks a rank computes, and which packets the
ranks exchange. Everything is int32 in, int64 out, so that the sum is exact and the same on all ranks. What each scheme
sends is in `coding.cost`.

Sources: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD) for coded, uncoded and per-block; the grouped schemes are ours.
"""

from collections import deque
from collections.abc import Callable, Iterable

from coding.codec import Codec
from coding.fixed_point import FixedPoint, OutOfRange, accumulate
from coding.kernels import kernels
from coding.partition import bounds
from coding.placement import GroupedPlacement, number_of_groups, subset_placement
from coding.plan import Packet, packet_plan
from grsgd.comm.coded.multicast import Unicast

ELEMENT_BYTES = 4
"""The size of an int32."""
MAX_PACKETS_IN_FLIGHT = 64
"""Packets of one rank that are under way at once."""
MAX_BYTES_IN_FLIGHT = 256 * 2**20
"""About how many bytes they may have; but not fewer than one packet per rank, or their links would stand idle in turn.
"""


class Scheme:
    """One rank's part of the exchange.

    Parameters
    ----------
    transport
        What carries packets.
    n, r, rank
        The number of ranks, the redundancy, and this rank.
    length
        Elements of a block.
    fixed_point
        Gives the range that sums must keep which are sent on.
    empty
        Makes an array, ``empty(size, dtype)``, and so decides where everything is computed, on the CPU or a GPU.
    """

    blocks: list[int]
    """The numbers of the blocks that this rank computes, ascending."""
    num_blocks: int
    """How many blocks all ranks have."""
    lost: frozenset[int] = frozenset()
    """After `close`, the ranks that the others go on without."""

    def __init__(
        self, transport: Unicast, n: int, r: int, rank: int, length: int, fixed_point: FixedPoint, empty: Callable
    ):
        self.transport, self.n, self.r, self.rank, self.length = transport, n, r, rank, length
        self.fixed_point, self.empty = fixed_point, empty
        self.overflow = OutOfRange(0, 0, 0.0, fixed_point.limit)
        """Sums that did not fit into the range, so that the result is wrong there."""
        self.assign_blocks()
        self.block_buffers = empty(len(self.blocks) * length, "int32")
        self.total = empty(length, "int64")
        """After `add_up`, the sum of all blocks: int64 of shape [length]."""
        packets = [*self.sent(), *self.received()]
        self.packets: list[Packet] = sorted(packets, key=lambda packet: packet.order)
        largest = max(map(self.size, self.packets), default=0)
        window = max(
            1,
            min(
                MAX_PACKETS_IN_FLIGHT,
                len(self.packets),
                max(n, MAX_BYTES_IN_FLIGHT // max(ELEMENT_BYTES * largest, 1)),
            ),
        )
        self._spare = [empty(largest, "int32") for _ in range(window)]

    def prepare(self):
        """Compile what is to be fast, which takes seconds; before `open`, where the other ranks would wait for it."""
        kernels(self.total).prepare()

    def open(self):
        """Make the multicast groups; all ranks at once, before the first `add_up`. Returns what remains to be driven: a
        schedule or None."""
        return self.transport.open({packet: ELEMENT_BYTES * self.size(packet) for packet in self.packets}, self)

    def close(self):
        """Free the multicast groups; all ranks at once, after the last `add_up`. Returns a schedule or None."""
        return self.transport.close()

    needs_no_blocks = False
    """After `look`, whether the others have ended the step under way, so that this rank need not compute its blocks."""
    is_left_behind = False
    """Whether the others go on without this rank, which was silent for too long."""

    def look(self) -> Iterable:
        """Schedule, before a step: find out whether this rank `needs_no_blocks`."""
        return ()

    sends_sums = False
    """Whether sums of blocks are sent, which must fit into the range."""

    coding_seconds = 0.0
    """Seconds spent on encoding packets and on decoding them, by `clock`."""

    @staticmethod
    def clock() -> float:
        """Return the time in seconds; by default it stands still, and nothing is counted."""
        return 0.0

    def assign_blocks(self):
        """Decide which rank computes what: set `blocks`, `num_blocks` and what else the scheme needs."""
        raise NotImplementedError

    def samples(self, batch: int) -> list[tuple[int, int]]:
        """Return begin and end of each own block's samples in a batch of so many."""
        begins = bounds(batch, self.num_blocks).tolist()
        return [(begins[block], begins[block + 1]) for block in self.blocks]

    def block_buffer(self, k: int):
        """The buffer for the caller's k-th block: int32 of shape [length]."""
        return self.block_buffers[k * self.length : (k + 1) * self.length]

    def sent(self) -> Iterable[Packet]:
        """The packets that this rank sends."""
        raise NotImplementedError

    def received(self) -> Iterable[Packet]:
        """The packets that this rank receives."""
        raise NotImplementedError

    def span(self, packet: Packet) -> tuple[int, int]:
        """Begin and end of the part of the vector that a packet carries."""
        return 0, self.length

    def source(self, packet: Packet):
        """The vector out of which a packet of this rank is cut: int32 of shape [length]."""
        return self.block_buffer(self.blocks.index(packet.blocks[0]))

    def size(self, packet: Packet) -> int:
        """How many elements a packet has."""
        begin, end = self.span(packet)
        return end - begin

    def encode(self, packet: Packet, content):
        """Write a packet of this rank into ``content``."""
        begin, end = self.span(packet)
        content[:] = self.source(packet)[begin:end]

    def decode(self, packet: Packet, content):
        """Add what a received packet brings to `total`."""
        begin, end = self.span(packet)
        accumulate(self.total[begin:end], content)

    def other_holders(self, packet: Packet) -> list[int]:
        """The ranks besides its sender that hold the block of which a packet brings this rank a part."""
        return []

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Which part a packet brings this rank: number of the block, begin and end in it."""
        return packet.blocks[0], *self.span(packet)

    def piece(self, block: int, begin: int, end: int, out):
        """Write that part of a block that this rank holds to the beginning of ``out``."""
        out[: end - begin] = self.block_buffer(self.blocks.index(block))[begin:end]

    def make_packet(self, packet: Packet, piece):
        """Turn what a packet brings this rank, as long as the packet, into the packet."""

    def add_up(self):
        """Schedule, on all ranks at once: set `total` to the sum of all ranks' blocks, each counted once."""
        self.add_own()
        yield from self.exchange(self.packets)

    def add_own(self):
        """Set `total` to the sum of this rank's blocks."""
        self.total.fill(0)
        for k in range(len(self.blocks)):
            accumulate(self.total, self.block_buffer(k))

    def exchange(self, packets: Iterable[Packet]):
        """Schedule: send and receive packets in the order in which all ranks do, some of them at a time.

        The first packet that has not arrived everywhere is always under way at all its members: no rank waits for ever.
        """
        self.transport.next_round()
        under_way = deque()
        for packet in packets:
            if not self._spare:
                yield from self._finish(*under_way.popleft())
            buffer = self._spare.pop()
            content = buffer[: self.size(packet)]
            if packet.sender == self.rank:
                self.timed(self.encode, packet, content)
                messages = self.transport.send(packet, content)
            else:
                messages = self.transport.receive(packet, content)
            under_way.append((packet, buffer, messages))
        while under_way:
            yield from self._finish(*under_way.popleft())
        self.transport.end_round()

    def _finish(self, packet: Packet, buffer, messages: list):
        yield messages
        if packet.sender != self.rank:
            self.timed(self.decode, packet, buffer[: self.size(packet)])
        self._spare.append(buffer)

    def timed(self, code: Callable, packet: Packet, content):
        """Encode or decode a packet, and add the time to `coding_seconds`."""
        began = self.clock()
        code(packet, content)
        self.coding_seconds += self.clock() - began

    def wrap(self, total, out):
        """Write a sum, int64, as int32 to be sent on, into ``out``; what does not fit is noted in `overflow`."""
        self.overflow = self.overflow.merged_with(self.fixed_point.wrap(total, out))


class Coded(Scheme):
    """CSSGD: every packet is the sum of r slices, one of each of r blocks, and tells each receiver the one it lacks.

    ``enumeration``: "groups", or "paper" for Algorithm 3 as written, which sends repeats (see `coding.plan`).
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
    """The same placement without coding: each of a block's r holders sends its slice to all ranks that lack it."""

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


class GroupedDirect(Scheme):
    """All members of a group compute the same block; member k of m multicasts part k of m to all other groups."""

    def assign_blocks(self):
        self.placement = GroupedPlacement(self.n, number_of_groups(self.n, self.r))
        self.blocks = [self.placement.group(self.rank)]
        self.num_blocks = self.placement.q

    def sent(self):
        if self.placement.q > 1:
            yield self.packet(self.rank)

    def received(self):
        return (self.packet(rank) for rank in self.others(self.placement.group(self.rank)))

    def packet(self, sender: int) -> Packet:
        group = self.placement.group(sender)
        return Packet(sender, self.others(group), group, (group,), (sender - self.placement.members(group).start,))

    def others(self, group: int) -> tuple[int, ...]:
        """The ranks of all other groups."""
        members = self.placement.members(group)
        return tuple(rank for rank in range(self.n) if rank not in members)

    def span(self, packet):
        return self.placement.part(packet.sender, self.length)

    def other_holders(self, packet):
        return [rank for rank in self.placement.members(packet.blocks[0]) if rank != packet.sender]


class GroupedReduceScatter(Scheme):
    """Groups as in `GroupedDirect`. Every group sends chunk j of n to rank j, which adds up and multicasts it."""

    sends_sums = True

    def assign_blocks(self):
        self.placement = GroupedPlacement(self.n, number_of_groups(self.n, self.r))
        self.blocks = [self.placement.group(self.rank)]
        self.num_blocks = self.placement.q

    def sent(self):
        return (packet for packet in self.all_packets() if packet.sender == self.rank)

    def received(self):
        return (packet for packet in self.all_packets() if self.rank in packet.receivers)

    def all_packets(self):
        """Packet number j carries chunk j: to its owner from one member of each other group, then from its owner."""
        if self.placement.q == 1:
            return
        for owner in range(self.n):
            for group in range(self.placement.q):
                if group != self.placement.group(owner):
                    yield Packet(self.placement.sender(group, owner), (owner,), owner, (group,), (owner,))
            others = tuple(rank for rank in range(self.n) if rank != owner)
            yield Packet(owner, others, owner, tuple(range(self.placement.q)), (owner,))

    def span(self, packet):
        return self.placement.chunk(packet.number, self.length)

    def source(self, packet):
        return self.block_buffers

    def add_up(self):
        self.total.fill(0)
        begin, end = self.placement.chunk(self.rank, self.length)
        accumulate(self.total[begin:end], self.block_buffers[begin:end])
        yield from self.exchange([packet for packet in self.packets if len(packet.blocks) == 1])
        if self.placement.q == 1:
            accumulate(self.total[:begin], self.block_buffers[:begin])
            accumulate(self.total[end:], self.block_buffers[end:])
            return
        finished = self.block_buffers[begin:end]  # where this rank's own contribution was
        self.wrap(self.total[begin:end], finished)
        self.total[begin:end] = finished  # what all others get
        yield from self.exchange([packet for packet in self.packets if len(packet.blocks) > 1])


class PerBlock(Scheme):
    """No redundancy: the C(n, r) blocks are dealt out to the ranks, and each is sent to all others by itself."""

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
    """Plain synchronous SGD: blocks are dealt out as in `PerBlock`; a rank sends the sum of its own to all others."""

    sends_sums = True

    def sent(self):
        if self.n > 1:
            yield self.packet(self.rank, 0)

    def received(self):
        return (self.packet(rank, 0) for rank in range(self.n) if rank != self.rank)

    def add_up(self):
        self.add_own()
        self.local = self.block_buffer(0) if self.blocks else self.empty(self.length, "int32")
        self.wrap(self.total, self.local)
        self.total[:] = self.local  # what all others get
        yield from self.exchange(self.packets)

    def source(self, packet):
        return self.local


SCHEMES: dict[str, type[Scheme]] = {
    "coded": Coded,
    "uncoded": Uncoded,
    "grouped-direct": GroupedDirect,
    "grouped-rs": GroupedReduceScatter,
}
"""The schemes of CSSGD by name."""
