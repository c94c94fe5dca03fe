"""How packets travel: each as one broadcast in its multicast group, or to one receiver after the other."""

from collections.abc import Mapping
from typing import Protocol

from coding.plan import Packet
from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, Message

ROUNDS = 4
"""Exchanges whose packets are told apart: no rank can be that far ahead of another."""


class Blocks(Protocol):
    """The blocks that one rank holds, for a transport that loses parts of packets."""

    def other_holders(self, packet: Packet) -> list[int]:
        """The ranks besides its sender that hold the block of which a packet brings this rank a part."""

    def brings(self, packet: Packet) -> tuple[int, int, int]:
        """Which part a packet brings this rank: number of the block, begin and end in it."""

    def piece(self, block: int, begin: int, end: int, out):
        """Write that part of a block that this rank holds to the beginning of ``out``."""

    def make_packet(self, packet: Packet, piece):
        """Turn what a packet brings this rank, as long as the packet, into the packet."""


class Unicast:
    """Sends a copy of a packet to every receiver. ``comm`` is a communicator of all ranks."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.round = 0

    def open(self, packets: Mapping[Packet, int], blocks: Blocks | None = None):
        """Prepare for these packets, those that this rank sends or receives, with their bytes; all ranks at once. May
        return a schedule, which does so. ``blocks``: of which they are cut, where others may ask for what they lack."""

    def next_round(self):
        """All ranks at once: what is sent from now on belongs to the next exchange."""
        self.round += 1

    def end_round(self):
        """This rank has sent and received all packets of the exchange."""

    def send(self, packet: Packet, content) -> list:
        """Return pollables that are all true when ``content`` may be reused."""
        return [about(packet, self.comm.Isend(content, receiver, self.tag(packet))) for receiver in packet.receivers]

    def receive(self, packet: Packet, content) -> list:
        """Return pollables that are all true when ``content`` is there. All must send and receive in one order."""
        return [about(packet, self.comm.Irecv(content, packet.sender, self.tag(packet)))]

    def warnings(self) -> list[str]:
        """Return what users must know of how packets have travelled, a line each."""
        return []

    def tag(self, packet: Packet) -> int:
        """The tag of a packet, different for each of a sender, so that none is taken for another."""
        return tags.CODED_PACKETS + ROUNDS * packet.number + self.round % ROUNDS

    def close(self):
        """Free what `open` has made; all ranks at once, when nothing is under way. May return a schedule."""


class Multicast(Unicast):
    """Broadcasts a packet in a communicator of its group, made once. Groups of two need none."""

    def __init__(self, comm: Communicator):
        super().__init__(comm)
        self.groups: dict[tuple[int, ...], Communicator] = {}

    def open(self, packets, blocks=None):
        for group in sorted({packet.group for packet in packets}):  # one order for all, or ranks would wait in a circle
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
    """Return the message, which then says in a time-out which packet it carries."""
    message.subject = packet
    return message


TRANSPORTS = {"multicast": Multicast, "unicast": Unicast}
"""Those whose packets are messages, of any backend."""
