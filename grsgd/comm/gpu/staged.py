"""Messages of arrays in GPU memory through pinned host memory: while one chunk travels, the next one is copied."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.transport import Chunk, GpuTransport, Transfer

CHUNK_BYTES = 4 * 2**20
"""Copied and sent at a time: large enough for full speed, small enough that the first and the last copy, which
nothing hides, do not count."""

HEADER_BYTES = 128
"""Before the first chunk of a message between two ranks, as int64 fields: its length in bytes, its number, the rank
that sends it, and what `grsgd.comm.gpu.ipc` adds. So a receiver need not know how much comes, or from which rank."""


def chunk_bounds(nbytes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each chunk; there is always one."""
    for begin in range(0, max(nbytes, 1), CHUNK_BYTES):
        yield begin, min(begin + CHUNK_BYTES, nbytes)


def header_fields(host: np.ndarray) -> np.ndarray:
    """The header of a message, int64."""
    return host[:HEADER_BYTES].view(np.int64)


class Staged(GpuTransport):
    """The transport for an MPI library that need know nothing of GPUs.

    A message has as many bytes of pinned memory as it is long, from a pool. The chunks after the first have a tag of
    their message's own: nothing else can match them.
    """

    def __init__(self, backend: MpiBackend, memory):
        from mpi4py import MPI

        super().__init__(backend, memory)
        self.tags = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // 2
        """The algorithms have the tags below, this class those from here on."""
        self.number = 0

    def tag_of(self, number: int) -> int:
        """The tag of all but the first chunk of a message of that number."""
        return self.tags + number % self.tags

    def Isend(self, array, dest, tag):
        return self._send(self.backend.Isend, array, dest, tag)

    def Issend(self, array, dest, tag):
        return self._send(self.backend.Issend, array, dest, tag)

    def _send(self, send: Callable, array, dest: int, tag: int) -> Transfer:
        computed = self.memory.record_event()
        host = self.memory.borrow(HEADER_BYTES + array.nbytes)
        number = self.next_number()
        header_fields(host)[:4] = array.nbytes, number, self.backend.rank, False
        chunks = []
        for begin, end in chunk_bounds(array.nbytes):
            content = host[HEADER_BYTES + begin : HEADER_BYTES + end]
            copied = self.memory.copy_out(array, begin, content, computed)
            if begin == 0:
                post = partial(send, host[: HEADER_BYTES + end], dest, tag)
            else:
                post = partial(self.backend.Isend, content, dest, self.tag_of(number))
            chunks.append(Chunk(copied, post))
        return self.begin(array, chunks, partial(self.memory.give_back, host))

    def Irecv(self, array, source, tag):
        read = self.memory.record_event()  # what is queued now may still read the array
        host = self.memory.borrow(HEADER_BYTES + self.staged_bytes(array.nbytes, source))
        first = host[: HEADER_BYTES + CHUNK_BYTES]
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = partial(self.memory.give_back, host)
            on_received = partial(self._first_received, transfer, array, host, read)
            transfer.add(Chunk(request=self.backend.Irecv(first, source, tag), on_received=on_received))
        return transfer

    def _first_received(self, transfer: Transfer, array, host, read):
        """The first chunk of a message for ``array`` is in ``host``: receive the others, copy this one."""
        nbytes, number, sender = header_fields(host)[:3].tolist()
        self.check(nbytes, sender, array)
        (_, first), *others = chunk_bounds(nbytes)
        for begin, end in others:
            content = host[HEADER_BYTES + begin : HEADER_BYTES + end]
            request = self.backend.Irecv(content, sender, self.tag_of(number))
            transfer.add(Chunk(request=request, on_received=partial(self.memory.copy_in, array, begin, content, read)))
        return self.memory.copy_in(array, 0, host[HEADER_BYTES : HEADER_BYTES + first], read)

    def staged_bytes(self, nbytes: int, source: int) -> int:
        """How many bytes of a message from ``source`` of ``nbytes`` pass through host memory, at most."""
        return nbytes

    def check(self, nbytes: int, sender: int, array):
        """Raise RuntimeError if a message of ``nbytes`` is too long for ``array``."""
        if nbytes > array.nbytes:
            raise RuntimeError(f"a message of {nbytes} bytes from rank {sender} for an array of {array.nbytes} bytes")

    def Ibcast(self, array, root):
        sends = self.backend.rank == root
        return self._collective(array, sends, not sends, lambda content: self.backend.Ibcast(content, root))

    def Iallreduce(self, array):
        return self._collective(array, True, True, lambda content: self.backend.Iallreduce(content.view(array.dtype)))

    def _collective(self, array, sends: bool, receives: bool, post: Callable) -> Transfer:
        computed = self.memory.record_event()
        host = self.memory.borrow(array.nbytes)
        chunks = []
        for begin, end in chunk_bounds(array.nbytes):
            content = host[begin:end]
            copied = self.memory.copy_out(array, begin, content, computed) if sends else None
            chunk = Chunk(copied, partial(post, content))
            if receives:
                chunk.on_received = partial(self.memory.copy_in, array, begin, content, computed)
            chunks.append(chunk)
        return self.begin(array, chunks, partial(self.memory.give_back, host))

    def next_number(self) -> int:
        """A number for the next message, by which its chunks' tags are told apart."""
        with self.lock:
            self.number += 1
            return self.number
