"""Base class of the schemes by which n ranks compute the sum of all blocks of a gradient, after each rank has computed
some of the blocks. A block is the gradient of a set of samples.

A scheme assigns the samples of a batch to blocks, assigns blocks to ranks, and lists the packets that the ranks
exchange. The blocks are int32 and their sum is int64, so that the sum is exact and equal on all ranks. The module
`coding.cost` computes how many bytes each rank sends in each scheme.

A schedule is a generator that yields each object (such as a packet) for which the schedule waits.
"""

from collections import deque
from collections.abc import Callable, Iterable

from coding.fixed_point import FixedPoint, OutOfRange, accumulate
from coding.kernels import kernels
from coding.partition import bounds
from coding.plan import Packet
from grsgd.comm.coded.multicast import Unicast

ELEMENT_BYTES = 4
"""Number of bytes of an int32, the dtype of the elements of blocks and packets."""
MAX_PACKETS_IN_FLIGHT = 64
"""Largest number of packets that one rank may send and receive at the same time."""
MAX_BYTES_IN_FLIGHT = 256 * 2**20
"""Approximate largest total size in bytes of the packets that one rank may send and receive at the same time.

Even if packets are large, a rank may send and receive one packet per rank of the run, because with fewer packets some
links would be idle.
"""


class Scheme:
    """One rank's state in a scheme by which ranks exchange and sum blocks of a gradient.

    Parameters
    ----------
    transport
        Transport that sends packets between ranks.
    n, r, rank
        Number of ranks, redundancy, and number of this rank.
    length
        Number of elements of a block.
    fixed_point
        Fixed-point format of gradients, whose range limits the sums of gradients that ranks send.
    empty
        Function ``empty(size, dtype)`` that returns a new array. If the array is in GPU memory, the GPU encodes and
        decodes packets. If the array is in the host's memory, the CPU encodes and decodes packets.
    """

    blocks: list[int]
    """Numbers of the blocks that this rank computes, in ascending order."""
    num_blocks: int
    """Number of different blocks that all ranks together compute."""
    lost: frozenset[int] = frozenset()
    """The silent ranks (which sent no messages for too long) that the other ranks have left behind, as determined by
    `close`."""

    def __init__(
        self, transport: Unicast, n: int, r: int, rank: int, length: int, fixed_point: FixedPoint, empty: Callable
    ):
        self.transport, self.n, self.r, self.rank, self.length = transport, n, r, rank, length
        self.fixed_point, self.empty = fixed_point, empty
        self.overflow = OutOfRange(0, 0, 0.0, fixed_point.limit)
        """Number and size of the elements of sums that were outside the range of ``fixed_point``. Elements of `total`
        that were outside the range of ``fixed_point`` are wrong."""
        self.assign_blocks()
        self.block_buffers = empty(len(self.blocks) * length, "int32")
        self.total = empty(length, "int64")
        """Sum of all blocks, valid after `add_up`: int64 of shape [length]. The dtype of `total` may be int32 if only
        one block exists."""
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
        """Compile the kernels that encode and decode packets, which takes seconds. Call `prepare` before `open`,
        because in `open` all ranks would wait for a rank that still compiles."""
        kernels(self.total).prepare()

    def open(self):
        """Prepare the transport that sends packets; a multicast transport makes its multicast groups. Call `open` on
        all ranks at once, before the first `add_up`. `open` returns None, or a schedule (generator) that the caller
        must run."""
        return self.transport.open({packet: ELEMENT_BYTES * self.size(packet) for packet in self.packets}, self)

    def close(self):
        """Close the transport that sends packets; a multicast transport frees its multicast groups. Call `close` on all
        ranks at once, after the last `add_up`. `close` returns None, or a schedule (generator) that the caller must
        run."""
        return self.transport.close()

    needs_no_blocks = False
    """Whether enough other ranks have sent their messages of the present step, so that this rank need not compute its
    blocks. The schedule `look` sets `needs_no_blocks` before each step."""
    is_left_behind = False
    """Whether the other ranks continue the run without this rank, because this rank sent no messages for too long."""

    def look(self) -> Iterable:
        """Generator (schedule), run before each step, that sets the attribute `needs_no_blocks`."""
        return ()

    sends_sums = False
    """Whether the packets of this scheme carry sums of several blocks. If packets carry sums of blocks, the sums must
    be in the range of the fixed-point format."""

    coding_seconds = 0.0
    """Seconds that this rank has spent on encoding and decoding packets, measured by `clock`."""

    @staticmethod
    def clock() -> float:
        """Return the present time in seconds, for measuring `coding_seconds`. In the base class, `clock` always returns
        0, so that `coding_seconds` stays 0 unless a caller sets another clock."""
        return 0.0

    def assign_blocks(self):
        """Assign blocks to ranks: set the attributes `blocks` and `num_blocks`, and attributes that only this scheme
        has."""
        raise NotImplementedError

    def samples(self, batch: int) -> list[tuple[int, int]]:
        """Return the pair (begin, end) for each block of this rank: the range of the block's samples in a batch of
        ``batch`` samples."""
        begins = bounds(batch, self.num_blocks).tolist()
        return [(begins[block], begins[block + 1]) for block in self.blocks]

    def block_buffer(self, k: int):
        """Return the array for this rank's block number k, counted from 0: int32 of shape [length]."""
        return self.block_buffers[k * self.length : (k + 1) * self.length]

    def sent(self) -> Iterable[Packet]:
        """Return all packets that this rank sends in a step."""
        raise NotImplementedError

    def received(self) -> Iterable[Packet]:
        """Return all packets that this rank receives in a step."""
        raise NotImplementedError

    def span(self, packet: Packet) -> tuple[int, int]:
        """Return (begin, end): the range of the elements of a block, or of a sum of blocks, that ``packet`` carries."""
        return 0, self.length

    def source(self, packet: Packet):
        """Return the block, or the sum of blocks, from which this rank takes the content of ``packet``: int32 of shape
        [length]."""
        return self.block_buffer(self.blocks.index(packet.blocks[0]))

    def size(self, packet: Packet) -> int:
        """Return the number of elements that ``packet`` carries."""
        begin, end = self.span(packet)
        return end - begin

    def encode(self, packet: Packet, content):
        """Write the content of ``packet``, a packet that this rank sends, into the array ``content``."""
        begin, end = self.span(packet)
        content[:] = self.source(packet)[begin:end]

    def decode(self, packet: Packet, content):
        """Decode ``content``, the content of the packet ``packet`` that this rank has received, and add the result to
        `total`."""
        begin, end = self.span(packet)
        accumulate(self.total[begin:end], content)

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, other than the sender of ``packet``, that hold the block of which ``packet`` brings this
        rank some elements."""
        return []

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Return (block, begin, end): the number of a block, and the range of this block's elements that this rank gets
        from ``packet``."""
        return packet.blocks[0], *self.span(packet)

    def piece(self, block: int, begin: int, end: int, out):
        """Write the elements ``begin`` to ``end`` of ``block``, a block that this rank holds, to the beginning of
        ``out``."""
        out[: end - begin] = self.block_buffer(self.blocks.index(block))[begin:end]

    def make_packet(self, packet: Packet, piece):
        """Replace ``piece``, the elements of a block that this rank gets from ``packet``, by the content of ``packet``,
        in place. The array ``piece`` is as long as the packet."""

    def add_up(self):
        """Generator (schedule), run on all ranks at once, that sets `total` to the sum of all blocks. A block that
        several ranks hold is added to `total` only once."""
        self.add_own()
        yield from self.exchange(self.packets)

    def add_own(self):
        """Set `total` to the sum of the blocks that this rank has computed."""
        self.total.fill(0)
        for k in range(len(self.blocks)):
            accumulate(self.total, self.block_buffer(k))

    def exchange(self, packets: Iterable[Packet]):
        """Generator (schedule) that sends and receives the packets ``packets``, several packets at a time. All ranks
        must pass their packets in the same order, the order of the attribute `packets`.

        Because all ranks have the same order of packets, no rank waits for ever. To see this, consider the first packet
        that has not arrived at all its receivers: its sender is sending it, and all its receivers are receiving it.
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
        """Call the method ``code(packet, content)``, which encodes or decodes ``packet``, and add the duration of the
        call to `coding_seconds`."""
        began = self.clock()
        code(packet, content)
        self.coding_seconds += self.clock() - began

    def wrap(self, total, out):
        """Write ``total``, an int64 sum of blocks, as int32 into ``out``, the array that this rank sends. Record in
        `overflow` how many values of ``total`` are outside the range of int32."""
        self.overflow = self.overflow.merged_with(self.fixed_point.wrap(total, out))
