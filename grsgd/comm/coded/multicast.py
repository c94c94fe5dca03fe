"""Transports, which send packets (parts of gradients) by messages of a communicator. A packet with several receivers is
sent either by one broadcast to all its receivers, or as one copy per receiver."""

from collections.abc import Mapping
from typing import Protocol

from coding.plan import Packet
from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, Message

ROUNDS = 4
"""Number of successive exchanges in which packets with the same number have different tags. The tags of an exchange can
be used again `ROUNDS` exchanges later, because no rank is ever `ROUNDS` exchanges ahead of another rank."""


class Blocks(Protocol):
    """Interface by which a transport reads the blocks (gradients of sets of samples) that one rank holds. Through this
    interface, a transport that may lose parts of packets gets the parts that other ranks request."""

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, other than the sender of ``packet``, that hold the block of which ``packet`` brings this
        rank some elements."""

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Return (block, begin, end): the number of a block, and the range of this block's elements that this rank gets
        from ``packet``."""

    def piece(self, block: int, begin: int, end: int, out):
        """Write the elements ``begin`` to ``end`` of ``block``, a block that this rank holds, to the beginning of
        ``out``."""

    def make_packet(self, packet: Packet, piece):
        """Replace ``piece``, the elements of a block that this rank gets from ``packet``, by the content of ``packet``
        in place. The array ``piece`` is as long as the packet."""


class Unicast:
    """A transport that sends a separate copy of a packet to every receiver. ``comm`` is a communicator of all ranks."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.round = 0

    def open(self, packets: Mapping[Packet, int], blocks: Blocks | None = None):
        """Prepare this transport to send and receive ``packets``. All ranks must call `open` at once. A transport's
        `open` may return a schedule (a generator that yields each object for which the schedule waits), and the caller
        must run the schedule.

        ``packets``: the packets that this rank sends or receives, with the number of bytes of each packet. ``blocks``:
        blocks of this rank, or None if other ranks cannot ask this rank for missing parts of packets.
        """

    def next_round(self):
        """Begin the next exchange of packets. All ranks must call `next_round` at once. Packets that are sent after the
        call of `next_round` belong to the new exchange."""
        self.round += 1

    def end_round(self):
        """Record that this rank has sent and received all packets of the present exchange."""

    def send(self, packet: Packet, content) -> list:
        """Start to send ``packet``, whose content is the array ``content``. Return pollables whose ``Test()`` returns
        True when the caller may change ``content``."""
        return [about(packet, self.comm.Isend(content, receiver, self.tag(packet))) for receiver in packet.receivers]

    def receive(self, packet: Packet, content) -> list:
        """Start to receive ``packet`` into the array ``content``. Return pollables whose ``Test()`` returns True when
        the packet has arrived.

        For each pair of ranks, both ranks must pass the packets between them to `send` and `receive` in the same order.
        """
        return [about(packet, self.comm.Irecv(content, packet.sender, self.tag(packet)))]

    def warnings(self) -> list[str]:
        """Return warnings about this transport for the user, each warning of one line."""
        return []

    def tag(self, packet: Packet) -> int:
        """Return the tag of ``packet`` in the present exchange. All packets of one sender have different tags, so that
        no packet is mistaken for another packet."""
        return tags.CODED_PACKETS + ROUNDS * packet.number + self.round % ROUNDS

    def close(self):
        """Free the resources that `open` allocated for this transport. All ranks must call `close` at once, while no
        packet is under way. A transport's `close` may return a schedule (a generator), which the caller must run."""


class Multicast(Unicast):
    """A transport that broadcasts a packet on a communicator of the packet's group (the packet's sender and receivers).
    The method `open` makes one communicator for each group of three ranks or more, and uses the communicator of all
    ranks for the group of all ranks. A packet with one receiver is sent as an ordinary message between two ranks."""

    def __init__(self, comm: Communicator):
        super().__init__(comm)
        self.groups: dict[tuple[int, ...], Communicator] = {}

    def open(self, packets, blocks=None):
        # all ranks make the communicators in the same order, to avoid a deadlock
        for group in sorted({packet.group for packet in packets}):
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
    """Set the subject of ``message`` to ``packet``, so that the error raised after too long a wait names the packet.
    Return ``message``."""
    message.subject = packet
    return message


TRANSPORTS = {"multicast": Multicast, "unicast": Unicast}
"""Classes of the transports that work with every `Backend`, by the transport's name in the configuration."""
