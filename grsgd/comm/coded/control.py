"""Messages of ranks by MPI, which loses nothing, while they exchange packets by IP multicast."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, receive_if_come

HEAD = struct.Struct("!BHII")
"""The beginning of a message: its word, the sender's rank, the exchange, the packet."""


class ControlKind(IntEnum):
    """The meaning of a message."""

    READY = 0
    """I am ready to receive."""
    SENT = 1
    """All datagrams of my packet have left."""
    LACKING = 2
    """I lack these parts of your packet, a bit for each; or none."""
    OTHERS_LACKING = 3
    """I lack these parts of somebody else's packet, which brings me a part of a block of yours."""
    LEFT = 4
    """I have all of this exchange."""
    END = 5
    """I am done."""


class Told(NamedTuple):
    """A message that has come. ``rest``: what follows its head, filled up with zeros."""

    word: ControlKind
    sender: int
    round: int
    number: int
    rest: bytes


class Control:
    """The messages of one rank to others, and theirs to it."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.longest_rest = 0
        """The bytes that follow a head at most."""
        self.under_way: list[tuple] = []
        """Messages that have not left yet, with their arrays."""

    def tell(self, rank: int, word: ControlKind, number_of_round: int, number: int = 0, rest: bytes = b""):
        array = np.frombuffer(HEAD.pack(word, self.comm.rank, number_of_round, number) + rest, np.uint8)
        self.under_way.append((self.comm.Isend(array, rank, tags.CODED_CONTROL, header=array.nbytes), array))

    def tell_others(self, word: ControlKind, number_of_round: int):
        """Tell all other ranks."""
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.tell(rank, word, number_of_round)

    def hear(self) -> Iterator[Told]:
        """Yield what has come; forget messages of this rank that have left."""
        self.under_way = [(message, array) for message, array in self.under_way if not message.Test()]
        longest = HEAD.size + self.longest_rest
        while (message := receive_if_come(self.comm, tags.CODED_CONTROL, longest)) is not None:
            word, *name = HEAD.unpack_from(message)
            yield Told(ControlKind(word), *name, message[HEAD.size :].tobytes())
