"""Repairs of packets that were sent by IP multicast and lost parts on the way. A receiver requests the missing parts of
a packet from another rank, which sends them in one message by MPI.

A receiver first requests the missing parts of a packet from the packet's sender. If the sender is slow, the receiver
requests the parts from other ranks that hold the packet's block, one after the other, and uses the first answer. Every
rank that receives a request for missing parts sends one answer. A rank that has finished the exchange answers a request
with an empty message, because its blocks may already belong to the next step.
"""

import struct
from collections.abc import Callable

import numpy as np

from coding.plan import Packet
from grsgd.comm import tags
from grsgd.comm.coded.asking import ANSWER_SECONDS, Asking, SlowRanks
from grsgd.comm.coded.control import Control, ControlKind, Told
from grsgd.comm.coded.datagrams import HEAD_BYTES, Name, Parts, mask, number_of_parts, unmasked
from grsgd.comm.coded.multicast import Blocks
from grsgd.comm.coded.multicast_link import Link
from grsgd.comm.coded.pacing import Pace
from grsgd.comm.communicator import Communicator

ELEMENT_BYTES = 4
"""Number of bytes of an int32, the dtype of the elements of blocks and packets."""
PIECE = struct.Struct("!HIQQQ")
"""Format of the fields at the beginning of a request for missing parts that is sent to another rank than the packet's
sender. After the fields, the request has one bit per part of the packet.

The first fields of the request are the sender of the packet and the number of the block. The next fields are the begin
and end of a range of the block's elements, and the number of elements of the packet.
"""


class Repairs:
    """The requests of this rank for missing parts of packets, and its answers to the requests of other ranks.

    Parameters
    ----------
    comm
        Communicator that carries answers, which contain missing parts of packets.

    control
        Object that sends this rank's control messages, which carry the requests for missing parts.
    link
        This rank's connection by IP multicast. ``link.seal`` makes the heads (header and digest) of answers.

    pace
        Limit of the rate at which this rank sends datagrams and answers.
    blocks
        Interface to the blocks that this rank holds. If ``blocks`` is None, a receiver can request the missing parts
        of a packet only from the packet's sender.
    largest
        Number of bytes of the largest packet of the exchange.
    """

    def __init__(
        self, comm: Communicator, control: Control, link: Link, pace: Pace, blocks: Blocks | None, largest: int
    ):
        self.comm, self.control, self.link, self.pace, self.blocks = comm, control, link, pace, blocks
        bits = -(-number_of_parts(largest, link.part) // 8)
        control.longest_rest = PIECE.size + bits
        self._answer_bytes = HEAD_BYTES + bits + largest
        self.round: int | None = None
        """Number of the present exchange of packets, to which this rank's blocks belong. Between two exchanges the
        number is None, because this rank's blocks may already belong to the next step."""
        self.slow = SlowRanks()
        self.expected: list[tuple] = []
        """Answers to this rank's requests that have not arrived, in the present and in earlier exchanges: pairs
        (request of the message, array for the answer)."""
        self.rejected = 0
        """Number of received answers that had a wrong digest or did not come from a rank of this run."""

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, other than the sender of ``packet``, that can send the elements of a block that this rank
        gets from ``packet``."""
        return self.blocks.other_holders(packet) if self.blocks is not None else []

    def ask(self, rank: int, packet: Packet, parts: Parts):
        """Request the missing parts of ``packet`` from ``rank``, which is either the sender of ``packet`` or another
        rank that holds the packet's block."""
        array = np.zeros(self._answer_bytes, np.uint8)
        self.expected.append((self.comm.Irecv(array, rank, tags.CODED_REPAIRS), array))
        if rank == packet.sender:
            self.control.tell(rank, ControlKind.LACKING, self.round, packet.number, parts.lacking_mask)
        else:
            size = len(parts.content) // ELEMENT_BYTES
            piece = PIECE.pack(packet.sender, *self.blocks.brings(packet), size)
            self.control.tell(rank, ControlKind.OTHERS_LACKING, self.round, packet.number, piece + parts.lacking_mask)

    def answer_with_block(self, asked: Told):
        """Answer ``asked``, the request of another rank for missing parts of a packet, with elements of a block that
        this rank holds. The answer contains no elements if the block may already belong to another step."""
        sender, block, begin, end, size = PIECE.unpack_from(asked.rest)
        content = np.zeros(size, np.int32)
        parts = Parts(memoryview(content.view(np.uint8)), self.link.part)
        wanted = []
        if asked.round == self.round:
            self.blocks.piece(block, begin, end, content)
            wanted = unmasked(asked.rest[PIECE.size : PIECE.size + parts.mask_bytes], len(parts.is_here))
        name = Name(asked.round, sender, asked.number, self.comm.rank)
        self.control.under_way.append(self.send(asked.sender, name, parts, wanted))

    def send(self, rank: int, name: Name, parts: Parts, wanted: list[int]) -> tuple:
        """Send the parts with the numbers ``wanted`` of a packet to ``rank``, in one message by MPI. Return the request
        of the message and the array with its content. In ``name``, the field ``part`` must be the number of this rank
        instead of the number of a part."""
        content = parts.cut(wanted)
        body = mask(wanted, len(parts.is_here)) + content.tobytes()
        array = np.frombuffer(self.link.seal.head(name, body) + body, np.uint8)
        self.comm.traffic.repaired += content.nbytes
        self.pace.spend(array.nbytes)
        return self.comm.Isend(array, rank, tags.CODED_REPAIRS, header=array.nbytes), array

    def come(self) -> list[tuple[Name, memoryview]]:
        """Return the pair (name, message) of each answer to this rank's requests that has arrived. Answers that belong
        to earlier exchanges are ignored."""
        expected, self.expected, found = self.expected, [], []
        for message, array in expected:
            if not message.Test():
                self.expected.append((message, array))
                continue
            name = self.link.seal.name_of(memoryview(array))
            if name is None:
                self.rejected += 1
            elif name.round == self.round:
                found.append((name, memoryview(array)))
        return found


class LackingParts:
    """The missing parts of one packet, which this rank requests from one rank after the other until they have arrived.

    ``has_left(rank)``: function that returns True if ``rank`` has finished the exchange and no longer answers.
    ``is_silent``: True if the packet's sender has sent nothing for too long, before it had sent all datagrams of the
    packet.
    """

    def __init__(
        self,
        repairs: Repairs,
        packet: Packet,
        parts: Parts,
        clock: Callable[[], float],
        has_left: Callable[[int], bool],
        is_silent: bool,
    ):
        self.repairs, self.packet, self.parts = repairs, packet, parts
        self.round = repairs.round
        if is_silent:
            repairs.slow.note(packet.sender, self.round)
        repairs.comm.traffic.lost += parts.lacking
        patience = ANSWER_SECONDS + repairs.pace.seconds(parts.bytes_of(parts.missing()))
        first = repairs.comm.rank + packet.number + self.round
        order = repairs.slow.order(packet.sender, repairs.other_holders(packet), first, self.round)
        # Never skip the packet's sender, because the sender does not finish the exchange before it has sent the
        # requested parts.
        self.asking = Asking(order, patience, clock, lambda rank: rank != packet.sender and has_left(rank))

    @property
    def asked(self) -> list[int]:
        """Return the ranks from which this rank has requested missing parts of the packet, in the order of the
        requests."""
        return self.asking.asked

    def ask_on(self) -> int | None:
        """Request the missing parts from the next rank, if the previous request was made long enough ago. Return the
        rank to which the method has sent a request, or None if it has sent no request."""
        before = self.asked[-1:]
        rank = self.asking.next()
        if rank is not None:
            if before == [self.packet.sender]:
                self.repairs.slow.note(self.packet.sender, self.round)
            self.repairs.ask(rank, self.packet, self.parts)
        return rank

    def take(self, rank: int, message: memoryview):
        """Copy missing parts of the packet from ``message``, the answer of ``rank``. If ``rank`` is the packet's
        sender, the answer contains parts of the packet. If ``rank`` is another rank, the answer contains elements of
        the block, from which this rank computes the parts of the packet."""
        count, width = len(self.parts.is_here), self.parts.mask_bytes
        parts = unmasked(message[HEAD_BYTES : HEAD_BYTES + width], count)
        nbytes = width + self.parts.bytes_of(parts)
        body = self.repairs.link.seal.content_of(message[: HEAD_BYTES + nbytes])
        self.asking.has_answered(rank)
        if body is None:
            self.repairs.rejected += 1
            return
        whole = np.zeros(len(self.parts.content) // ELEMENT_BYTES, np.int32)
        brought = Parts(memoryview(whole.view(np.uint8)), self.parts.size)
        position = width
        for part in parts:
            begin, end = brought.span(part)
            brought.put(part, body[position : position + end - begin])
            position += end - begin
        if rank != self.packet.sender:
            self.repairs.blocks.make_packet(self.packet, whole)
        for part in parts:
            self.parts.put(part, brought.content[slice(*brought.span(part))])
