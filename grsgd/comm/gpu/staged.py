"""A transport that sends arrays in GPU memory in chunks, through pinned (page-locked) host memory. While one chunk of a
message is sent, the next chunk is copied to host memory."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.transport import Chunk, GpuTransport, Transfer

CHUNK_BYTES = 4 * 2**20
"""Number of bytes of a chunk, the part of an array that is copied and sent as one unit.

A chunk is so long that it is sent at the full speed of the network. A chunk is also short enough that little time is
spent on the copies of the first and the last chunk. During the copies of the first and the last chunk, the network is
idle.
"""

HEADER_BYTES = 128
"""Number of bytes of the header that precedes the first chunk of a message between two ranks.

The header consists of int64 fields: the message's length in bytes, the message's number, the sender, and fields of
`grsgd.comm.gpu.ipc`. Because of the header, a receiver need not know the message's length or sender in advance.
"""


def chunk_bounds(nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield the pair (begin, end), in bytes, of each chunk of a message of ``nbytes`` bytes. A message of 0 bytes has
    one empty chunk."""
    for begin in range(0, max(nbytes, 1), CHUNK_BYTES):
        yield begin, min(begin + CHUNK_BYTES, nbytes)


def header_fields(host: np.ndarray) -> np.ndarray:
    """Return a view of the header at the beginning of ``host``, the host memory of a message: int64 of shape
    [`HEADER_BYTES` / 8]."""
    return host[:HEADER_BYTES].view(np.int64)


class Staged(GpuTransport):
    """A transport for MPI libraries that cannot read and write GPU memory, by copies through host memory.

    A message of n bytes needs n bytes of pinned host memory from a pool, and some more bytes for the header. All chunks
    of a message except the first chunk have a special tag, so that no receive of another message gets these chunks.
    """

    def __init__(self, backend: MpiBackend, memory):
        from mpi4py import MPI

        super().__init__(backend, memory)
        self.tags = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // 2
        """Lowest tag of chunks. Algorithms use only tags that are lower than this tag."""
        self.number = 0

    def tag_of(self, number: int) -> int:
        """Return the tag of all chunks, except the first chunk, of the message with the number ``number``."""
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
        # wait for this event before changing the array, because the GPU may still have to read it
        read = self.memory.record_event()
        host = self.memory.borrow(HEADER_BYTES + self.staged_bytes(array.nbytes, source))
        first = host[: HEADER_BYTES + CHUNK_BYTES]
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = partial(self.memory.give_back, host)
            on_received = partial(self._first_received, transfer, array, host, read)
            transfer.add(Chunk(request=self.backend.Irecv(first, source, tag), on_received=on_received))
        return transfer

    def _first_received(self, transfer: Transfer, array, host, read):
        """Start to copy the first chunk of a received message from ``host`` into ``array``, and start to receive the
        other chunks."""
        nbytes, number, sender = header_fields(host)[:3].tolist()
        self.check(nbytes, sender, array)
        (_, first), *others = chunk_bounds(nbytes)
        for begin, end in others:
            content = host[HEADER_BYTES + begin : HEADER_BYTES + end]
            request = self.backend.Irecv(content, sender, self.tag_of(number))
            transfer.add(Chunk(request=request, on_received=partial(self.memory.copy_in, array, begin, content, read)))
        return self.memory.copy_in(array, 0, host[HEADER_BYTES : HEADER_BYTES + first], read)

    def staged_bytes(self, nbytes: int, source: int) -> int:
        """Return the largest number of bytes, of a message of ``nbytes`` bytes from rank ``source``, that may pass
        through host memory."""
        return nbytes

    def check(self, nbytes: int, sender: int, array):
        """Raise RuntimeError if a message of ``nbytes`` bytes from rank ``sender`` is too long for ``array``."""
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
        """Return the number of this rank's next message, from which `tag_of` computes the tag of the message's
        chunks."""
        with self.lock:
            self.number += 1
            return self.number
