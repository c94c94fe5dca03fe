"""Base classes of the transports of arrays in GPU memory. The classes determine when, and in which order, the chunks of
messages are given to MPI.

MPI does not know the GPU's queue of work. So the GPU must have computed a chunk before MPI gets the chunk to send. The
GPU must also have read memory before MPI overwrites the memory. A `Transfer` waits for the GPU without blocking,
because a `Transfer` is a pollable like any message.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from grsgd.comm.backend import MpiBackend


class Chunk:
    """A chunk of a `Transfer`: a part of a message that is given to MPI as a message of its own.

    Parameters
    ----------
    ready
        An event of the GPU (`grsgd.comm.gpu.memory.GpuEvent`). MPI gets the chunk after this event, or at once if
        ``ready`` is None.

    post
        Function that gives the chunk to MPI and returns the MPI request.

    on_received
        Function that is called when MPI has sent or received the chunk. The function returns an event of the GPU or
        None.

    request
        The MPI request of the chunk, if the chunk was given to MPI already. If ``request`` is given, ``post`` is None.
    """

    __slots__ = ("ready", "post", "on_received", "request")

    def __init__(self, ready=None, post: Callable | None = None, on_received: Callable = lambda: None, request=None):
        self.ready, self.post, self.on_received, self.request = ready, post, on_received, request


class Transfer:
    """A request of a message of ``array``, which is sent or received in chunks.

    Chunks may be added while the transfer is under way. Code that makes a transfer or adds chunks must hold the lock of
    the transfer's transport.
    """

    def __init__(self, transport: "GpuTransport", array):
        self.transport = transport
        self.array = array  # this reference keeps the array's memory until the message is complete
        self.chunks: deque[Chunk] = deque()
        self.last_copy = None
        """Event of the last copy to GPU memory. After this event all received chunks are in GPU memory, because the GPU
        makes copies in order."""
        self.on_complete: Callable = lambda: None
        """Function that is called once when all chunks are complete and received content is in GPU memory. The function
        may add a last chunk."""
        self.complete = False
        self.error: Exception | None = None
        transport.under_way.append(self)

    def add(self, chunk: Chunk):
        """Add ``chunk`` to this transfer. The chunk is given to MPI when the chunk's content is ready and all earlier
        chunks of the transport were given to MPI."""
        self.chunks.append(chunk)
        if chunk.request is None:
            self.transport.waiting.append(chunk)

    def Test(self) -> bool:
        """Return whether the message was sent, or was received into GPU memory. If the message has failed, raise the
        error."""
        if not self.complete:
            self.transport.advance()
        if self.error is not None:
            raise self.error
        return self.complete

    def Cancel(self):
        """Cancel the receive, like `grsgd.comm.backend.Receive.Cancel`. If a message arrives nevertheless, its content
        is ignored."""
        with self.transport.lock:
            for chunk in self.chunks:
                chunk.on_received = lambda: None
                chunk.request.Cancel()

    def advance(self) -> bool:
        """Process the chunks that MPI has completed, without waiting. Return whether the transfer is complete or has
        failed. This method raises no error."""
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
    """Base class of transports, which send arrays in GPU memory between the ranks of ``backend``.

    Subclasses have the methods of a `grsgd.comm.backend.Backend` that send and receive.

    ``memory``: a `grsgd.comm.gpu.memory.Memory`, or in tests an object with the same methods.
    """

    def __init__(self, backend: MpiBackend, memory):
        self.backend, self.memory = backend, memory
        self.lock = threading.RLock()
        self.waiting: deque[Chunk] = deque()
        """Chunks that were not given to MPI yet. MPI gets the chunks in the order of this queue, because MPI matches
        sends and receives by their order."""
        self.under_way: list[Transfer] = []

    def advance(self):
        """Advance all transfers of this transport. Advancing one transfer alone could cause a deadlock, because another
        rank may wait for another transfer first."""
        with self.lock:
            while self.waiting and (self.waiting[0].ready is None or self.waiting[0].ready.done):
                chunk = self.waiting.popleft()
                chunk.request = chunk.post()
            self.under_way = [transfer for transfer in self.under_way if not transfer.advance()]

    def abort(self):
        """End all calls on the GPU that wait for other ranks, after a trial of this transport has failed. This method
        of the base class does nothing."""

    def begin(self, array, chunks: Iterable[Chunk], on_complete: Callable = lambda: None) -> Transfer:
        """Begin to send or receive a message of ``array`` that consists of ``chunks``. Return the transfer."""
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = on_complete
            for chunk in chunks:
                transfer.add(chunk)
            self.advance()
        return transfer
