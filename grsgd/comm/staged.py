"""Messages of arrays in GPU memory through pinned host memory: while one piece travels, the next one is copied."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from grsgd.comm.device import DeviceEnd, Piece, Transfer

PIECE = 2 * 2**20
"""Bytes copied and sent at a time: large enough for full speed, small enough that the first and the last copy, which
nothing hides, do not count."""

HEADER = 128
"""Bytes before the first piece of a message between two ranks, int64 words: its length in bytes, its number, the rank
that sends it, and what `grsgd.comm.ipc` adds. So a receiver need not know how much comes, or from whom."""


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each piece; there is always one."""
    for begin in range(0, max(nbytes, 1), PIECE):
        yield begin, min(begin + PIECE, nbytes)


class Staged(DeviceEnd):
    """One rank's end of a group of ranks whose MPI library need know nothing of GPUs.

    A message has as many bytes of pinned memory as it is long, from a pool. The pieces after the first have a tag of
    their message's own: nothing else can match them.
    """

    def __init__(self, mpi, memory):
        from mpi4py import MPI

        super().__init__(mpi, memory)
        self.tags = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // 2
        """The algorithms have the tags below, this class those from here on."""
        self.number = 0

    def tag_of(self, number: int) -> int:
        """Of all but the first piece of a message of that number."""
        return self.tags + number % self.tags

    def Isend(self, array, dest, tag):
        return self._send(self.mpi.Isend, array, dest, tag)

    def Issend(self, array, dest, tag):
        return self._send(self.mpi.Issend, array, dest, tag)

    def _send(self, call, array, dest: int, tag: int) -> Transfer:
        computed = self.memory.computed()
        host = self.memory.borrow(HEADER + array.nbytes)
        number = self.next_number()
        words(host)[:4] = array.nbytes, number, self.mpi.Get_rank(), False
        parts = []
        for begin, end in pieces(array.nbytes):
            content = host[HEADER + begin : HEADER + end]
            copied = self.memory.copy_out(array, begin, content, computed)
            if begin == 0:
                parts.append(Piece(copied, partial(call, host[: HEADER + end], dest, tag)))
            else:
                parts.append(Piece(copied, partial(self.mpi.Isend, content, dest, self.tag_of(number))))
        return self.begin(array, parts, partial(self.memory.give_back, host))

    def Irecv(self, array, source, tag):
        read = self.memory.computed()  # what is queued now may still read the array
        host = self.memory.borrow(HEADER + self.passing(array.nbytes, source))
        first = host[: HEADER + PIECE]
        with self.lock:
            transfer = Transfer(self, array)
            transfer.afterwards = partial(self.memory.give_back, host)
            land = partial(self._arrived, transfer, array, host, read)
            transfer.add(Piece(request=self.mpi.Irecv(first, source, tag), land=land))
        return transfer

    def _arrived(self, transfer: Transfer, array, host, read):
        """The first piece of a message for ``array`` is in ``host``."""
        nbytes, number, sender = words(host)[:3].tolist()
        self.check(nbytes, sender, array)
        (_, first), *others = pieces(nbytes)
        for begin, end in others:
            content = host[HEADER + begin : HEADER + end]
            land = partial(self.memory.copy_in, array, begin, content, read)
            transfer.add(Piece(request=self.mpi.Irecv(content, sender, self.tag_of(number)), land=land))
        return self.memory.copy_in(array, 0, host[HEADER : HEADER + first], read)

    def passing(self, nbytes: int, source: int) -> int:
        """How many bytes of a message from ``source``, as long as that, pass through host memory, at most."""
        return nbytes

    def check(self, nbytes: int, sender: int, array):
        if nbytes > array.nbytes:
            raise RuntimeError(f"a message of {nbytes} bytes from rank {sender} for an array of {array.nbytes} bytes")

    def Ibcast(self, array, root):
        sends = self.mpi.Get_rank() == root
        return self._collective(array, sends, not sends, lambda content: self.mpi.Ibcast(content, root))

    def Iallreduce(self, in_place, array):
        return self._collective(
            array, True, True, lambda content: self.mpi.Iallreduce(in_place, content.view(array.dtype))
        )

    def _collective(self, array, sends: bool, receives: bool, call) -> Transfer:
        computed = self.memory.computed()
        host = self.memory.borrow(array.nbytes)
        parts = []
        for begin, end in pieces(array.nbytes):
            content = host[begin:end]
            copied = self.memory.copy_out(array, begin, content, computed) if sends else None
            part = Piece(copied, partial(call, content))
            if receives:
                part.land = partial(self.memory.copy_in, array, begin, content, computed)
            parts.append(part)
        return self.begin(array, parts, partial(self.memory.give_back, host))

    def next_number(self) -> int:
        with self.lock:
            self.number += 1
            return self.number


def words(host: np.ndarray) -> np.ndarray:
    """The header of a message."""
    return host[:HEADER].view(np.int64)
