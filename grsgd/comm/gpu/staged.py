"""Messages of arrays in GPU memory, sent through pinned host memory in chunks: while a chunk is sent, the next chunk is
copied."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.transport import Chunk, GpuTransport, Transfer

CHUNK_BYTES = 4 * 2**20
"""Number of bytes that are copied and sent at a time.

A chunk of this size is sent at full speed. It is also so small that the copies of the first and the last chunk, during
which nothing is sent, take little time.
"""

HEADER_BYTES = 128
"""Number of bytes of the header before the first chunk of a message between two ranks.

The header's int64 fields are the message's length in bytes, the message's number, its sender, and fields of
`grsgd.comm.gpu.ipc`. So a receiver need not know the length or the sender in advance.
"""


def chunk_bounds(nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each chunk in bytes; there is always at least one chunk."""
    for begin in range(0, max(nbytes, 1), CHUNK_BYTES):
        yield begin, min(begin + CHUNK_BYTES, nbytes)


def header_fields(host: np.ndarray) -> np.ndarray:
    """Return a view of a message's header: int64."""
    return host[:HEADER_BYTES].view(np.int64)


class Staged(GpuTransport):
    """The transport for an MPI library without support for GPUs.

    A message of n bytes takes n bytes of pinned memory from a pool. The chunks after the first chunk have a tag that
    belongs to their message alone, so that no other message can match them.
    """

    def __init__(self, backend: MpiBackend, memory):
        from mpi4py import MPI

        super().__init__(backend, memory)
        self.tags = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // 2
        """The lowest tag of chunks. The tags of algorithms are below this tag."""
        self.number = 0

    def tag_of(self, number: int) -> int:
        """Return the tag of all chunks except the first of the message with this number."""
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
        read = self.memory.record_event()  # computations in the queue may still read the array
        host = self.memory.borrow(HEADER_BYTES + self.staged_bytes(array.nbytes, source))
        first = host[: HEADER_BYTES + CHUNK_BYTES]
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = partial(self.memory.give_back, host)
            on_received = partial(self._first_received, transfer, array, host, read)
            transfer.add(Chunk(request=self.backend.Irecv(first, source, tag), on_received=on_received))
        return transfer

    def _first_received(self, transfer: Transfer, array, host, read):
        """Receive the other chunks of a message for ``array``, and copy its first chunk, which is in ``host``."""
        nbytes, number, sender = header_fields(host)[:3].tolist()
        self.check(nbytes, sender, array)
        (_, first), *others = chunk_bounds(nbytes)
        for begin, end in others:
            content = host[HEADER_BYTES + begin : HEADER_BYTES + end]
            request = self.backend.Irecv(content, sender, self.tag_of(number))
            transfer.add(Chunk(request=request, on_received=partial(self.memory.copy_in, array, begin, content, read)))
        return self.memory.copy_in(array, 0, host[HEADER_BYTES : HEADER_BYTES + first], read)

    def staged_bytes(self, nbytes: int, source: int) -> int:
        """Return the largest number of bytes of a message from ``source`` of ``nbytes`` bytes that pass through host
        memory."""
        return nbytes

    def check(self, nbytes: int, sender: int, array):
        """Raise RuntimeError if a message of ``nbytes`` bytes is too long for ``array``."""
        if nbytes > array.nbytes:
            raise RuntimeError(
                f"a message of {nbytes} bytes from rank {sender} is too long for an array of {array.nbytes} bytes"
            )

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
        """Return a number for the next message, which determines the tag of its chunks."""
        with self.lock:
            self.number += 1
            return self.number
