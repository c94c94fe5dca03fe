"""Repairs of packets that are sent by IP multicast: a receiver requests missing parts, and receives these parts in one
message by MPI.

The receiver asks the packet's sender. If the sender is slow, the receiver asks other ranks that hold the same block,
one after the other, and takes the first answer. Every rank that is asked answers once. If the asked rank has finished
the exchange, its block may already belong to another step. In this case its answer is empty.
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
"""Number of bytes of an int32."""
PIECE = struct.Struct("!HIQQQ")
"""Format of the fields at the beginning of a request for parts of a third rank's packet. After these fields the request
has one bit per part.

The fields are: sender of the packet, number of the block, begin and end of the piece in the block, number of elements
of the packet.
"""


class Repairs:
    """The requests of one rank for missing parts, and its answers to other ranks.

    Parameters
    ----------
    comm
        Communicator that carries answers, which contain the missing parts.
    control
        This rank's control messages, which carry the requests.
    link
        Link of this rank. Its seal makes the heads of answers, as for datagrams.
    pace
        Pace of this rank's datagrams. Answers must keep the same rate.
    blocks
        Blocks of this rank; None if only the sender of a packet can be asked for its parts.
    largest
        Number of bytes of the largest packet.
    """

    def __init__(
        self, comm: Communicator, control: Control, link: Link, pace: Pace, blocks: Blocks | None, largest: int
    ):
        self.comm, self.control, self.link, self.pace, self.blocks = comm, control, link, pace, blocks
        bits = -(-number_of_parts(largest, link.part) // 8)
        control.longest_rest = PIECE.size + bits
        self._answer_bytes = HEAD_BYTES + bits + largest
        self.round: int | None = None
        """Number of the exchange under way, to which this rank's blocks belong. None between exchanges, because the
        blocks may then belong to another step."""
        self.slow = SlowRanks()
        self.expected: list[tuple] = []
        """Answers to this rank that are under way, of this exchange and of earlier exchanges: pairs of a message and
        its array."""
        self.rejected = 0
        """Number of received answers with a wrong digest."""

    def other_holders(self, packet: Packet) -> list[int]:
        """Return the ranks, except the sender of ``packet``, that can send this rank the piece that ``packet``
        brings."""
        return self.blocks.other_holders(packet) if self.blocks is not None else []

    def ask(self, rank: int, packet: Packet, parts: Parts):
        """Ask ``rank``, which is the sender of ``packet`` or another holder of the block, for the missing parts."""
        array = np.zeros(self._answer_bytes, np.uint8)
        self.expected.append((self.comm.Irecv(array, rank, tags.CODED_REPAIRS), array))
        if rank == packet.sender:
            self.control.tell(rank, ControlKind.LACKING, self.round, packet.number, parts.lacking_mask)
        else:
            size = len(parts.content) // ELEMENT_BYTES
            piece = PIECE.pack(packet.sender, *self.blocks.brings(packet), size)
            self.control.tell(rank, ControlKind.OTHERS_LACKING, self.round, packet.number, piece + parts.lacking_mask)

    def answer_with_block(self, asked: Told):
        """Answer the request ``asked`` with a piece of a block of this rank. The answer is empty if the block may
        belong to another step."""
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
        """Send the parts ``wanted`` of a packet to ``rank`` by MPI; return the message and its array. In an answer, the
        field ``part`` of ``name`` is the number of this rank."""
        content = parts.cut(wanted)
        body = mask(wanted, len(parts.is_here)) + content.tobytes()
        array = np.frombuffer(self.link.seal.head(name, body) + body, np.uint8)
        self.comm.traffic.repaired += content.nbytes
        self.pace.spend(array.nbytes)
        return self.comm.Isend(array, rank, tags.CODED_REPAIRS, header=array.nbytes), array

    def come(self) -> list[tuple[Name, memoryview]]:
        """Return the answers that have arrived, in any order. Answers of earlier exchanges are dropped."""
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
    """The missing parts of one packet, for which ranks are asked one after the other.

    ``has_left(rank)``: whether a rank has finished the exchange and no longer answers. ``is_silent``: whether this rank
    has stopped waiting for the packet's sender, which has not sent all datagrams.
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
        # The sender does not finish the exchange before it has sent the requested parts.
        self.asking = Asking(order, patience, clock, lambda rank: rank != packet.sender and has_left(rank))

    @property
    def asked(self) -> list[int]:
        """Return the ranks that were asked, in order."""
        return self.asking.asked

    def ask_on(self) -> int | None:
        """Ask the next rank for the missing parts, if it is time; return the rank that was asked, or None."""
        before = self.asked[-1:]
        rank = self.asking.next()
        if rank is not None:
            if before == [self.packet.sender]:
                self.repairs.slow.note(self.packet.sender, self.round)
            self.repairs.ask(rank, self.packet, self.parts)
        return rank

    def take(self, rank: int, message: memoryview):
        """Copy the missing parts from the answer of ``rank``. If ``rank`` is the sender of the packet, the answer has
        parts of the packet. Otherwise the answer has parts of the piece that the packet brings."""
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
