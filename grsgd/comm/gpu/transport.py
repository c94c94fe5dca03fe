"""Messages of arrays in GPU memory: when each chunk of a message may be given to MPI, and in which order.

MPI does not know the GPU's queue of work. So before MPI gets a chunk to send, the GPU must have computed the chunk.
Before MPI overwrites memory, the GPU must have read this memory. A `Transfer` waits for the GPU without blocking: it is
a pollable like any message.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from grsgd.comm.backend import MpiBackend


class Chunk:
    """A part of a transfer.

    Parameters
    ----------
    ready
        An event of the GPU before which MPI must not have the chunk; None if MPI may have it at once.

    post
        Function that gives the chunk to MPI and returns the request.

    on_received
        Function that is called when MPI has finished the chunk; returns an event of the GPU or None.

    request
        The MPI request, if the chunk was handed to MPI already; in this case ``post`` is None.
    """

    __slots__ = ("ready", "post", "on_received", "request")

    def __init__(self, ready=None, post: Callable | None = None, on_received: Callable = lambda: None, request=None):
        self.ready, self.post, self.on_received, self.request = ready, post, on_received, request


class Transfer:
    """A message of ``array`` under way, with the ``Test()`` of an MPI request.

    Chunks may be added while the transfer is under way. Code that makes a transfer or adds chunks holds the lock of the
    transfer's transport.
    """

    def __init__(self, transport: "GpuTransport", array):
        self.transport = transport
        self.array = array  # the reference keeps the array's memory until the message is complete
        self.chunks: deque[Chunk] = deque()
        self.last_copy = None
        """The event of the last copy to GPU memory. After this event all received chunks are in GPU memory, because the
        GPU copies in order."""
        self.on_complete: Callable = lambda: None
        """Function that is called once when the whole content lies in GPU memory; it may add a last chunk."""
        self.complete = False
        self.error: Exception | None = None
        transport.under_way.append(self)

    def add(self, chunk: Chunk):
        """Add a chunk, which is handed to MPI when its content is ready and all earlier chunks of this transport were
        handed over."""
        self.chunks.append(chunk)
        if chunk.request is None:
            self.transport.waiting.append(chunk)

    def Test(self) -> bool:
        """Return whether the message is sent, or lies in GPU memory; raises the error of a failed message."""
        if not self.complete:
            self.transport.advance()
        if self.error is not None:
            raise self.error
        return self.complete

    def Cancel(self):
        """Cancel a receive, as `grsgd.comm.backend.Receive.Cancel` does: the content of the message is ignored."""
        with self.transport.lock:
            for chunk in self.chunks:
                chunk.on_received = lambda: None
                chunk.request.Cancel()

    def advance(self) -> bool:
        """Go on as far as possible without waiting; return whether the transfer has ended. This method never raises an
        error."""
        try:
            self.complete = self._advance()
        except Exception as error:
            self.error = error
        return self.complete or self.error is not None

    def _advance(self) -> bool:
        while True:
            while self.chunks:
                chunk = self.chunks[0]
                if chunk.request is None or not chunk.request.Test():
                    return False
                self.chunks.popleft()
                self.last_copy = chunk.on_received() or self.last_copy
            if self.last_copy is not None and not self.last_copy.done:
                return False
            on_complete, self.on_complete = self.on_complete, lambda: None
            on_complete()
            if not self.chunks:
                return True


class GpuTransport:
    """A carrier of arrays in GPU memory between the ranks of ``backend``.

    Subclasses have the sending and receiving functions of a `grsgd.comm.backend.Backend`.

    ``memory``: a `grsgd.comm.gpu.memory.Memory`, or in tests an object with the same methods.
    """

    def __init__(self, backend: MpiBackend, memory):
        self.backend, self.memory = backend, memory
        self.lock = threading.RLock()
        self.waiting: deque[Chunk] = deque()
        """Chunks that were not given to MPI yet. MPI matches messages by order, so no later chunk may overtake an
        earlier chunk."""
        self.under_way: list[Transfer] = []

    def advance(self):
        """Advance all messages, and not only the message that is tested, because the other rank may wait for another
        message first."""
        with self.lock:
            while self.waiting and (self.waiting[0].ready is None or self.waiting[0].ready.done):
                chunk = self.waiting.popleft()
                chunk.request = chunk.post()
            self.under_way = [transfer for transfer in self.under_way if not transfer.advance()]

    def abort(self):
        """End all calls on the GPU that wait for other ranks, after a failed trial. Most transports make no such
        calls."""

    def begin(self, array, chunks: Iterable[Chunk], on_complete: Callable = lambda: None) -> Transfer:
        """Begin a message of ``array`` that consists of ``chunks``."""
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = on_complete
            for chunk in chunks:
                transfer.add(chunk)
            self.advance()
        return transfer
