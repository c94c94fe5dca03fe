"""Transports of packets. A packet to several receivers is sent in one of two ways: as one broadcast to its multicast
group, or as one copy per receiver."""

from collections.abc import Mapping
from typing import Protocol

from coding.plan import Packet
from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, Message

ROUNDS = 4
"""Number of successive exchanges whose packets have different tags. No rank is ever `ROUNDS` exchanges ahead of another
rank."""


class Blocks(Protocol):
    """The blocks that one rank holds. A transport that may lose parts of packets needs them to answer requests for
    missing parts."""

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, except the sender of ``packet``, that hold the block of which ``packet`` brings this rank a
        piece."""

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Return the piece that a packet brings this rank: number of the block, begin and end in the block."""

    def piece(self, block: int, begin: int, end: int, out):
        """Write the elements ``begin`` to ``end`` of a block of this rank to the beginning of ``out``."""

    def make_packet(self, packet: Packet, piece):
        """Turn ``piece``, which the packet should bring this rank, into the content of the packet, in place. ``piece``
        is as long as the packet."""


class Unicast:
    """A transport that sends a copy of a packet to every receiver. ``comm`` is a communicator of all ranks."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.round = 0

    def open(self, packets: Mapping[Packet, int], blocks: Blocks | None = None):
        """Prepare for ``packets``, on all ranks at once; may return a schedule (a generator that yields each object it
        waits for), which the caller must run.

        ``packets``: number of bytes of each packet that this rank sends or receives. ``blocks``: blocks of this rank;
        None if other ranks cannot ask this rank for missing parts.
        """

    def next_round(self):
        """Begin the next exchange, on all ranks at once. Packets that are sent from now on belong to this exchange."""
        self.round += 1

    def end_round(self):
        """Record that this rank has sent and received all packets of the exchange."""

    def send(self, packet: Packet, content) -> list:
        """Send a packet; return pollables that are all true when ``content`` may be reused."""
        return [about(packet, self.comm.Isend(content, receiver, self.tag(packet))) for receiver in packet.receivers]

    def receive(self, packet: Packet, content) -> list:
        """Receive a packet; return pollables that are all true when ``content`` has arrived.

        All ranks must send and receive packets in the same order.
        """
        return [about(packet, self.comm.Irecv(content, packet.sender, self.tag(packet)))]

    def warnings(self) -> list[str]:
        """Return warnings to users about the transport of packets, one line each."""
        return []

    def tag(self, packet: Packet) -> int:
        """Return the tag of a packet. All packets of one sender have different tags, so that no packet is mistaken for
        another packet."""
        return tags.CODED_PACKETS + ROUNDS * packet.number + self.round % ROUNDS

    def close(self):
        """Free the resources of `open`, on all ranks at once, when no packet is under way; may return a schedule, which
        the caller must run."""


class Multicast(Unicast):
    """A transport that broadcasts a packet in a communicator of the packet's group (sender and receivers). The
    communicators are made by `open`, one per group. A group of two ranks needs no communicator."""

    def __init__(self, comm: Communicator):
        super().__init__(comm)
        self.groups: dict[tuple[int, ...], Communicator] = {}

    def open(self, packets, blocks=None):
        for group in sorted({packet.group for packet in packets}):  # in one order on all ranks, to avoid a deadlock
            if len(group) == self.comm.size:
                self.groups[group] = self.comm
            elif len(group) > 2:
                self.groups[group] = self.comm.subset(group)

    def send(self, packet, content):
        return self._broadcast(packet, content) if len(packet.receivers) > 1 else super().send(packet, content)

    def receive(self, packet, content):
        return self._broadcast(packet, content) if len(packet.receivers) > 1 else super().receive(packet, content)

    def close(self):
        for comm in self.groups.values():
            if comm is not self.comm:
                comm.free()
        self.groups.clear()

    def _broadcast(self, packet, content):
        group = packet.group
        return [about(packet, self.groups[group].Ibcast(content, group.index(packet.sender)))]


def about(packet: Packet, message: Message) -> Message:
    """Return ``message`` with ``packet`` as its subject, so that the error of a time-out names the packet."""
    message.subject = packet
    return message


TRANSPORTS = {"multicast": Multicast, "unicast": Unicast}
"""The transports that send packets as messages of any backend, by name."""
