"""Control messages between ranks that exchange packets by IP multicast. Control messages are sent by MPI, because MPI
loses no message."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, receive_if_come

HEAD = struct.Struct("!BHII")
"""Format of the head of a control message: kind of the control message, sender's rank, number of the exchange, and
number of a packet."""


class ControlKind(IntEnum):
    """The meaning of a control message."""

    READY = 0
    """The sender of the control message is ready to receive datagrams."""
    SENT = 1
    """The sender of the control message has sent all datagrams of its packet."""
    LACKING = 2
    """The sender of the control message lacks parts of a packet of the control message's receiver. The control message
    has one bit per part of the packet. A control message without bits says that no part is lacking."""
    OTHERS_LACKING = 3
    """The sender of the control message lacks parts of a third rank's packet. The packet carries elements of a block
    that the receiver of the control message holds."""
    LEFT = 4
    """The sender of the control message has sent and received all packets of the exchange."""
    END = 5
    """The sender of the control message has begun to close IP multicast, and sends no packets any more."""


class Told(NamedTuple):
    """A control message that has arrived. ``rest``: the bytes after the head (`HEAD`) of the message, padded with
    zeros."""

    word: ControlKind
    sender: int
    round: int
    number: int
    rest: bytes


class Control:
    """Sender and receiver of one rank's control messages to and from other ranks."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.longest_rest = 0
        """Largest number of bytes after the head of a control message."""
        self.under_way: list[tuple] = []
        """Messages that are under way from this rank: pairs (message, array of the message)."""

    def tell(self, rank: int, word: ControlKind, number_of_round: int, number: int = 0, rest: bytes = b""):
        array = np.frombuffer(HEAD.pack(word, self.comm.rank, number_of_round, number) + rest, np.uint8)
        self.under_way.append((self.comm.Isend(array, rank, tags.CODED_CONTROL, header=array.nbytes), array))

    def tell_others(self, word: ControlKind, number_of_round: int):
        """Send a control message of the kind ``word`` about the exchange ``number_of_round`` to all other ranks."""
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.tell(rank, word, number_of_round)

    def hear(self) -> Iterator[Told]:
        """Yield the control messages of other ranks that have arrived. Release the arrays of this rank's messages that
        have been sent."""
        self.under_way = [(message, array) for message, array in self.under_way if not message.Test()]
        longest = HEAD.size + self.longest_rest
        while (message := receive_if_come(self.comm, tags.CODED_CONTROL, longest)) is not None:
            word, *name = HEAD.unpack_from(message)
            yield Told(ControlKind(word), *name, message[HEAD.size :].tobytes())
