"""Control messages between ranks that exchange packets by IP multicast. Control messages are sent by MPI, because MPI
loses no message, while IP multicast may lose datagrams."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, receive_if_come

HEAD = struct.Struct("!BHII")
"""Format of the bytes with which a control message begins: kind of the control message, sender's rank, number of the
exchange, and number of a packet."""


class ControlKind(IntEnum):
    """The kind of a control message, which says what its sender reports."""

    READY = 0
    """The sender of the control message is ready to receive datagrams."""
    SENT = 1
    """The sender of the control message has sent all datagrams of the packet that the message names."""
    LACKING = 2
    """The sender of the control message lacks parts of a packet that the receiver of the control message has sent. In
    the control message, each part of the packet has one bit, which is 1 if the part is missing. If the control message
    has no bits, no part of the packet is missing."""
    OTHERS_LACKING = 3
    """The sender of the control message lacks parts of a packet that a third rank has sent. The receiver of the control
    message holds the block whose elements the packet carries, and can therefore send the missing parts."""
    LEFT = 4
    """The sender of the control message has sent and received all packets of the exchange."""
    END = 5
    """The sender of the control message has begun to close IP multicast, and sends no packets any more."""


class Told(NamedTuple):
    """A control message that this rank has received. ``rest``: the bytes that follow the head (`HEAD`) in the control
    message, padded with zeros."""

    word: ControlKind
    sender: int
    round: int
    number: int
    rest: bytes


class Control:
    """Object with which one rank sends control messages to other ranks and receives control messages from them."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.longest_rest = 0
        """Largest number of bytes that follow the head (`HEAD`) in a control message."""
        self.under_way: list[tuple] = []
        """Control messages that this rank is sending: pairs (request of the message, array with the content of the
        message)."""

    def tell(self, rank: int, word: ControlKind, number_of_round: int, number: int = 0, rest: bytes = b""):
        array = np.frombuffer(HEAD.pack(word, self.comm.rank, number_of_round, number) + rest, np.uint8)
        self.under_way.append((self.comm.Isend(array, rank, tags.CODED_CONTROL, header=array.nbytes), array))

    def tell_others(self, word: ControlKind, number_of_round: int):
        """Send a control message of the kind ``word`` about the exchange ``number_of_round`` to all other ranks."""
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.tell(rank, word, number_of_round)

    def hear(self) -> Iterator[Told]:
        """Yield the control messages that have arrived from other ranks. Release the arrays of this rank's control
        messages that have been sent."""
        self.under_way = [(message, array) for message, array in self.under_way if not message.Test()]
        longest = HEAD.size + self.longest_rest
        while (message := receive_if_come(self.comm, tags.CODED_CONTROL, longest)) is not None:
            word, *name = HEAD.unpack_from(message)
            yield Told(ControlKind(word), *name, message[HEAD.size :].tobytes())
