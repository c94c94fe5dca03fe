"""Repairs of packets that are sent by IP multicast. A receiver requests the missing parts of a packet from another
rank, and receives these parts in one message by MPI.

The receiver first asks the packet's sender for the missing parts. If the sender is slow, the receiver asks other ranks
that hold the packet's block, one after the other, and uses the first answer. Every rank that is asked answers once. A
rank that has finished the exchange sends an empty answer, because the rank's block may already belong to another step.
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
"""Format of the fields at the beginning of a request that is sent to another rank than the packet's sender. The fields
are followed by one bit per part of the packet.

The first fields are the sender of the packet and the number of the block. The next fields are begin and end of a range
of the block's elements, and the number of elements of the packet.
"""


class Repairs:
    """The requests of one rank for missing parts of packets, and the rank's answers to the requests of other ranks.

    Parameters
    ----------
    comm
        Communicator that carries answers, which contain missing parts of packets.
    control
        Sender of this rank's control messages, which carry the requests.
    link
        Link of this rank. The seal of the link makes the heads of answers and datagrams.
    pace
        Limit of the rate of this rank's datagrams and answers.
    blocks
        Blocks of this rank. If ``blocks`` is None, only the sender of a packet can be asked for missing parts of the
        packet.
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
        """Number of the present exchange, to which this rank's blocks belong. Between exchanges the number is None,
        because the blocks may already belong to the next step."""
        self.slow = SlowRanks()
        self.expected: list[tuple] = []
        """Answers that this rank expects, of the present and of earlier exchanges: pairs (message, array of the
        answer)."""
        self.rejected = 0
        """Number of received answers that had a wrong digest or were not from this run."""

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, except the sender of ``packet``, that can send the elements of a block which this rank gets
        from ``packet``."""
        return self.blocks.other_holders(packet) if self.blocks is not None else []

    def ask(self, rank: int, packet: Packet, parts: Parts):
        """Request the missing parts of ``packet`` from ``rank``, which is the sender of ``packet`` or another rank that
        holds the packet's block."""
        array = np.zeros(self._answer_bytes, np.uint8)
        self.expected.append((self.comm.Irecv(array, rank, tags.CODED_REPAIRS), array))
        if rank == packet.sender:
            self.control.tell(rank, ControlKind.LACKING, self.round, packet.number, parts.lacking_mask)
        else:
            size = len(parts.content) // ELEMENT_BYTES
            piece = PIECE.pack(packet.sender, *self.blocks.brings(packet), size)
            self.control.tell(rank, ControlKind.OTHERS_LACKING, self.round, packet.number, piece + parts.lacking_mask)

    def answer_with_block(self, asked: Told):
        """Answer the request ``asked`` of another rank with elements of a block of this rank. The answer is empty if
        the block may already belong to another step."""
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
        """Send the parts ``wanted`` of a packet to ``rank`` in one message by MPI. Return the message and its array.
        The field ``part`` of ``name`` must be the number of this rank."""
        content = parts.cut(wanted)
        body = mask(wanted, len(parts.is_here)) + content.tobytes()
        array = np.frombuffer(self.link.seal.head(name, body) + body, np.uint8)
        self.comm.traffic.repaired += content.nbytes
        self.pace.spend(array.nbytes)
        return self.comm.Isend(array, rank, tags.CODED_REPAIRS, header=array.nbytes), array

    def come(self) -> list[tuple[Name, memoryview]]:
        """Return (name, message) of each answer that has arrived. Answers of earlier exchanges are ignored."""
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
    """The missing parts of one packet, which this rank requests from one rank after the other.

    ``has_left(rank)`` returns whether ``rank`` has finished the exchange and no longer answers. ``is_silent``: whether
    the packet's sender fell silent before all datagrams of the packet had been sent.
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
        # The packet's sender always answers, because the sender does not finish the exchange before it has sent the
        # requested parts.
        self.asking = Asking(order, patience, clock, lambda rank: rank != packet.sender and has_left(rank))

    @property
    def asked(self) -> list[int]:
        """Return the ranks that were asked for missing parts, in the order of asking."""
        return self.asking.asked

    def ask_on(self) -> int | None:
        """Request the missing parts from the next rank, if the last request was made long enough ago. Return the rank
        that was asked now, or None."""
        before = self.asked[-1:]
        rank = self.asking.next()
        if rank is not None:
            if before == [self.packet.sender]:
                self.repairs.slow.note(self.packet.sender, self.round)
            self.repairs.ask(rank, self.packet, self.parts)
        return rank

    def take(self, rank: int, message: memoryview):
        """Copy the missing parts of the packet from ``message``, the answer of ``rank``. An answer of the packet's
        sender has parts of the packet. An answer of another rank has elements of the block, from which the parts of the
        packet are computed."""
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
