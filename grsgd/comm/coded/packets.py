"""Packets that a rank sends or receives by IP multicast in the present exchange. A packet is divided into parts, and
each datagram carries one part of a packet."""

import numpy as np

from coding.plan import Packet
from grsgd.comm.coded.asking import SILENT_SECONDS
from grsgd.comm.coded.control import ControlKind
from grsgd.comm.coded.datagrams import Name, Parts, unmasked
from grsgd.comm.coded.repairs import LackingParts
from grsgd.text import ranks_in_words

PATIENCE_SECONDS = 0.005
"""Number of seconds without a datagram of a packet after which a receiver requests the missing parts, if the sender has
reported that it has sent all datagrams."""
FLOOD_SECONDS = 0.25
"""Number of seconds without a datagram of a packet after which a receiver requests the missing parts, even if unread
datagrams wait at the receiver's sockets. `FLOOD_SECONDS` applies only if the sender has reported that all datagrams of
the packet have been sent.

Without the limit `FLOOD_SECONDS`, many datagrams of programs outside the run could delay the request for missing parts
for ever.
"""


class Outgoing:
    """A packet that this rank sends through ``transport``, an `IpMulticast`. An `Outgoing` is a pollable whose
    ``Test()`` returns True when all receivers have the packet."""

    def __init__(self, transport, packet: Packet, content: np.ndarray):
        self.transport, self.packet = transport, packet
        self.parts = Parts(memoryview(content.view(np.uint8)), transport.link.part)
        self.next = 0
        """Number of the part of the packet that this rank sends next."""
        self.unanswered = set(packet.receivers)
        """Receivers of the packet that have not yet told this rank which parts of the packet they lack."""
        self.repairs: list[tuple] = []
        """Messages that this rank is sending with missing parts of the packet: pairs (request of the message, array
        with its content)."""
        link = transport.link
        to_all = len(packet.receivers) > 1
        self.address = link.sockets.group if to_all else link.addresses[packet.receivers[0]]

    def send_next(self) -> bool:
        """Send the datagram with the next part of the packet. Return False if the socket's buffer had no space for the
        datagram."""
        transport, packet = self.transport, self.packet
        begin, end = self.parts.span(self.next)
        content = self.parts.content[begin:end]
        name = Name(transport.round, packet.sender, packet.number, self.next)
        if not transport.link.sockets.send(transport.link.seal.head(name, content), content, self.address):
            return False
        transport.pace.spend(transport.link.datagram)
        self.next += 1
        return True

    def repair(self, rank: int, bits: bytes):
        """Send the parts of the packet that ``rank``, one of its receivers, has reported as missing. In ``bits``, each
        part of the packet has one bit, which is 1 if ``rank`` lacks the part."""
        self.unanswered.discard(rank)
        lacking = unmasked(bits[: self.parts.mask_bytes], len(self.parts.is_here))
        if lacking:
            name = Name(self.transport.round, self.packet.sender, self.packet.number, self.packet.sender)
            self.repairs.append(self.transport.repairs.send(rank, name, self.parts, lacking))

    def Test(self) -> bool:
        self.transport.move()
        self.repairs = [(message, array) for message, array in self.repairs if not message.Test()]
        return not self.unanswered and not self.repairs

    def __str__(self):
        late = self.transport.missing_rank
        all_parts = len(self.parts.is_here)
        if not self.unanswered:
            state = f"repairs to {len(self.repairs)} ranks are under way"
        elif self.next == all_parts:
            state = f"all datagrams were sent, but there is no answer from {ranks_in_words(sorted(self.unanswered))}"
        elif late is not None:
            state = f"rank {late} has not begun to receive"
        else:
            state = f"{self.next} of {all_parts} datagrams were sent"
        return f"{self.packet}: send by IP multicast ({state})"


class Incoming:
    """A packet that this rank receives through ``transport``, an `IpMulticast`.

    ``Test()`` of an `Incoming` returns True when this rank has the whole packet, and has told the packet's sender that
    no part is missing, or which parts were.
    """

    def __init__(self, transport, packet: Packet, content: np.ndarray):
        self.transport, self.packet = transport, packet
        self.parts = Parts(memoryview(content.view(np.uint8)), transport.link.part)
        self.all_sent = False
        """Whether the packet's sender has told this rank that all datagrams of the packet have been sent."""
        self.has_answered = False
        """Whether this rank has told the packet's sender which parts of the packet it lacks, or that it lacks none."""
        self.rest: LackingParts | None = None
        """The missing parts of the packet, from the time when this rank begins to request them. Before this rank
        requests missing parts, the value is None."""
        self.heard = transport.clock()
        """Last time at which a datagram of the packet arrived, or at which the sender reported that all datagrams of
        the packet had been sent. Initially, the value is the time at which this object was made."""

    def move(self, read_all: bool):
        """Tell the packet's sender that the packet is complete, or request the missing parts when `is_time_to_ask`
        returns True. ``read_all``: whether this rank has read all datagrams that have arrived."""
        if not self.parts.lacking:
            # A packet without content is complete before its sender has begun to send, and this rank therefore answers
            # only when the sender has reported that all datagrams of the packet were sent.
            if not self.has_answered and (self.parts.content or self.all_sent):
                self.has_answered = True
                # The message `LACKING` has no bits for parts of the packet, because a long message might stay under
                # way until this rank waits for messages again.
                control, number = self.transport.control, self.packet.number
                control.tell(self.packet.sender, ControlKind.LACKING, self.transport.round, number)
            return
        if self.rest is None:
            if not self.is_time_to_ask(read_all):
                return
            transport = self.transport
            self.rest = LackingParts(
                transport.repairs, self.packet, self.parts, transport.clock, transport.has_left, not self.all_sent
            )
        self.has_answered |= self.rest.ask_on() == self.packet.sender

    def is_time_to_ask(self, read_all: bool) -> bool:
        """Return True if this rank must request the missing parts of the packet now. Either no more datagrams of the
        packet are expected, or the sender has sent nothing for too long and another rank holds the packet's block."""
        transport = self.transport
        now = transport.clock()
        if self.all_sent:
            return now - self.heard > (PATIENCE_SECONDS if read_all else FLOOD_SECONDS)
        heard = max(self.heard, transport.heard[self.packet.sender])
        is_silent = now - heard > SILENT_SECONDS + transport.sending_seconds
        return is_silent and transport.missing_rank is None and bool(transport.repairs.other_holders(self.packet))

    def Test(self) -> bool:
        self.transport.move()
        return self.has_answered and not self.parts.lacking

    def __str__(self):
        there = len(self.parts.is_here) - self.parts.lacking
        state = "all were sent" if self.all_sent else "more are expected"
        if self.rest is not None and self.rest.asked:
            state = f"missing parts are requested from {ranks_in_words(self.rest.asked)}"
        return (
            f"{self.packet}: receive from rank {self.packet.sender} by IP multicast ({there} of "
            f"{len(self.parts.is_here)} datagrams have arrived, {state})"
        )
