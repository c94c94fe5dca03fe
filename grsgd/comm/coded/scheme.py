"""The exchange by which n ranks get the sum of all blocks of a gradient, after each rank has computed some of the
blocks.

A scheme assigns samples of a common batch to blocks, assigns blocks to ranks, and lists the packets that the ranks
exchange. Inputs are int32 and outputs int64, so the sum is exact and the same on all ranks. `coding.cost` counts the
bytes that each scheme sends.

A schedule is a generator that yields each object it waits for.
"""

from collections import deque
from collections.abc import Callable, Iterable

from coding.fixed_point import FixedPoint, OutOfRange, accumulate
from coding.kernels import kernels
from coding.partition import bounds
from coding.plan import Packet
from grsgd.comm.coded.multicast import Unicast

ELEMENT_BYTES = 4
"""Number of bytes of an int32."""
MAX_PACKETS_IN_FLIGHT = 64
"""Largest number of packets of one rank that are under way at once."""
MAX_BYTES_IN_FLIGHT = 256 * 2**20
"""Approximate largest total number of bytes of all ranks' packets under way.

If packets are large, the limit is one packet per rank instead. With fewer packets under way, the links of some ranks
would be idle.
"""


class Scheme:
    """One rank's part of the exchange.

    Parameters
    ----------
    transport
        Transport that carries packets between ranks.
    n, r, rank
        The number of ranks, the redundancy, and this rank.
    length
        Number of elements of a block.
    fixed_point
        Fixed-point format of gradients. Its range limits the sums of gradients that ranks send.
    empty
        Function that makes an array, ``empty(size, dtype)``. If this array is in GPU memory, the GPU encodes and
        decodes; otherwise the CPU does.
    """

    blocks: list[int]
    """The numbers of the blocks that this rank computes, ascending."""
    num_blocks: int
    """Number of different blocks of all ranks together."""
    lost: frozenset[int] = frozenset()
    """After `close`, the silent ranks that the other ranks have left behind."""

    def __init__(
        self, transport: Unicast, n: int, r: int, rank: int, length: int, fixed_point: FixedPoint, empty: Callable
    ):
        self.transport, self.n, self.r, self.rank, self.length = transport, n, r, rank, length
        self.fixed_point, self.empty = fixed_point, empty
        self.overflow = OutOfRange(0, 0, 0.0, fixed_point.limit)
        """Number and size of sums outside the range of ``fixed_point``. The result is wrong at the elements with such
        sums."""
        self.assign_blocks()
        self.block_buffers = empty(len(self.blocks) * length, "int32")
        self.total = empty(length, "int64")
        """After `add_up`, the sum of all blocks: int64 of shape [length]. It may be int32 if only one block exists."""
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
        """Compile the kernels, which takes seconds. Call this method before `open`: in `open` the other ranks would
        wait for a rank that compiles."""
        kernels(self.total).prepare()

    def open(self):
        """Make the multicast groups. Call this method on all ranks at once, before the first `add_up`. Return None, or
        a schedule that the caller must run."""
        return self.transport.open({packet: ELEMENT_BYTES * self.size(packet) for packet in self.packets}, self)

    def close(self):
        """Free the multicast groups. Call this method on all ranks at once, after the last `add_up`. Return None, or a
        schedule that the caller must run."""
        return self.transport.close()

    needs_no_blocks = False
    """Whether the other ranks have ended the step under way, so that this rank need not compute its blocks. The value
    is known after `look`."""
    is_left_behind = False
    """Whether the other ranks go on without this rank because it was silent for too long."""

    def look(self) -> Iterable:
        """Schedule, called before a step, that determines whether this rank `needs_no_blocks`."""
        return ()

    sends_sums = False
    """Whether sums of blocks are sent, which must be in the range of the fixed-point format."""

    coding_seconds = 0.0
    """Seconds spent on encoding and decoding packets, as measured by `clock`."""

    @staticmethod
    def clock() -> float:
        """Return the time in seconds. By default the time stands still, so that no coding time is counted."""
        return 0.0

    def assign_blocks(self):
        """Assign blocks to ranks: set `blocks`, `num_blocks` and further attributes of the scheme."""
        raise NotImplementedError

    def samples(self, batch: int) -> list[tuple[int, int]]:
        """Return begin and end of the samples of each block of this rank, in a batch of ``batch`` samples."""
        begins = bounds(batch, self.num_blocks).tolist()
        return [(begins[block], begins[block + 1]) for block in self.blocks]

    def block_buffer(self, k: int):
        """Return the buffer of this rank's k-th block: int32 of shape [length]."""
        return self.block_buffers[k * self.length : (k + 1) * self.length]

    def sent(self) -> Iterable[Packet]:
        """Return the packets that this rank sends."""
        raise NotImplementedError

    def received(self) -> Iterable[Packet]:
        """Return the packets that this rank receives."""
        raise NotImplementedError

    def span(self, packet: Packet) -> tuple[int, int]:
        """Return begin and end of the part of the vector that a packet carries."""
        return 0, self.length

    def source(self, packet: Packet):
        """Return the vector of which ``packet``, sent by this rank, is a part: int32 of shape [length]."""
        return self.block_buffer(self.blocks.index(packet.blocks[0]))

    def size(self, packet: Packet) -> int:
        """Return the number of elements of a packet."""
        begin, end = self.span(packet)
        return end - begin

    def encode(self, packet: Packet, content):
        """Write the content of ``packet``, which this rank sends, into ``content``."""
        begin, end = self.span(packet)
        content[:] = self.source(packet)[begin:end]

    def decode(self, packet: Packet, content):
        """Add the content of a received packet to `total`."""
        begin, end = self.span(packet)
        accumulate(self.total[begin:end], content)

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, except the sender of ``packet``, that hold the block of which ``packet`` brings this rank a
        piece."""
        return []

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Return the piece that a packet brings this rank: number of the block, begin and end in the block."""
        return packet.blocks[0], *self.span(packet)

    def piece(self, block: int, begin: int, end: int, out):
        """Write the elements ``begin`` to ``end`` of a block of this rank to the beginning of ``out``."""
        out[: end - begin] = self.block_buffer(self.blocks.index(block))[begin:end]

    def make_packet(self, packet: Packet, piece):
        """Turn ``piece``, which the packet should bring this rank, into the content of the packet, in place. ``piece``
        is as long as the packet."""

    def add_up(self):
        """Schedule, called on all ranks at once, that sets `total` to the sum of all ranks' blocks, each counted
        once."""
        self.add_own()
        yield from self.exchange(self.packets)

    def add_own(self):
        """Set `total` to the sum of this rank's blocks."""
        self.total.fill(0)
        for k in range(len(self.blocks)):
            accumulate(self.total, self.block_buffer(k))

    def exchange(self, packets: Iterable[Packet]):
        """Schedule that sends and receives ``packets``, several at a time. The order is the same on all ranks.

        No rank waits for ever: of the packets that have not arrived at all receivers, the first in this order is under
        way on its sender and all its receivers.
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
        """Encode or decode a packet by ``code(packet, content)``, and add the time to `coding_seconds`."""
        began = self.clock()
        code(packet, content)
        self.coding_seconds += self.clock() - began

    def wrap(self, total, out):
        """Write the sum ``total``, int64, as int32 into ``out``, which is sent. Record values outside the range in
        `overflow`."""
        self.overflow = self.overflow.merged_with(self.fixed_point.wrap(total, out))
