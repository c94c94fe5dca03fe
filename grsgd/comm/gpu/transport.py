"""Base classes of the transports that send arrays in GPU memory. The base classes determine when, and in which order,
the chunks of messages are passed to MPI.

MPI does not know when the GPU executes the work in its queue. Therefore the transport passes a chunk to MPI for sending
only after the GPU has computed the chunk. The transport also lets MPI write to memory only after the GPU has read the
memory's previous content. A `Transfer` waits for the GPU without blocking, because a `Transfer` is a pollable that a
schedule can yield.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from grsgd.comm.backend import MpiBackend


class Chunk:
    """A chunk of a `Transfer`: a part of a message, which MPI sends or receives as a separate message.

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
    """A request of a message that carries ``array``, and that is sent or received in chunks.

    Chunks may be added to a transfer while it is under way. Code that makes a transfer or adds chunks to it must hold
    the lock of the transfer's transport.
    """

    def __init__(self, transport: "GpuTransport", array):
        self.transport = transport
        self.array = array  # keep a reference to the array, so that its memory exists until the message is complete
        self.chunks: deque[Chunk] = deque()
        self.last_copy = None
        """Event (`GpuEvent`) of the last copy of a chunk to GPU memory. When this event is reached, all received chunks
        are in GPU memory, because the GPU makes copies in order."""
        self.on_complete: Callable = lambda: None
        """Function that is called once, when all chunks are complete and received chunks are in GPU memory. The
        function ``on_complete`` may add one more chunk to the transfer."""
        self.complete = False
        self.error: Exception | None = None
        transport.under_way.append(self)

    def add(self, chunk: Chunk):
        """Add ``chunk`` to this transfer. The chunk is passed to MPI when its content is ready and when all earlier
        chunks of the transport have been passed to MPI."""
        self.chunks.append(chunk)
        if chunk.request is None:
            self.transport.waiting.append(chunk)

    def Test(self) -> bool:
        """Return True if the message has been sent, or has been received into GPU memory. If the message has failed,
        raise the error with which it failed."""
        if not self.complete:
            self.transport.advance()
        if self.error is not None:
            raise self.error
        return self.complete

    def Cancel(self):
        """Cancel the receive of this transfer, like `grsgd.comm.backend.Receive.Cancel`. If the message arrives
        nevertheless, its content is ignored."""
        with self.transport.lock:
            for chunk in self.chunks:
                chunk.on_received = lambda: None
                chunk.request.Cancel()

    def advance(self) -> bool:
        """Process the chunks that MPI has sent or received, without waiting for other chunks. Return True if the
        transfer is complete or has failed. If the transfer fails, this method stores the error and does not raise
        it."""
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
    """Base class of the transports that send arrays in GPU memory between the ranks of ``backend``.

    Subclasses have those methods of a `grsgd.comm.backend.Backend` that send or receive.

    ``memory``: a `grsgd.comm.gpu.memory.Memory`, or, in tests, an object with the same methods.
    """

    def __init__(self, backend: MpiBackend, memory):
        self.backend, self.memory = backend, memory
        self.lock = threading.RLock()
        self.waiting: deque[Chunk] = deque()
        """Chunks that have not yet been passed to MPI. The chunks are passed to MPI in the order of this queue, because
        MPI matches sends and receives by their order."""
        self.under_way: list[Transfer] = []

    def advance(self):
        """Advance all transfers of this transport: pass chunks to MPI, and process the chunks that MPI has completed.
        If only the transfer for which this rank waits were advanced, a deadlock could occur, because another rank may
        first wait for another transfer."""
        with self.lock:
            while self.waiting and (self.waiting[0].ready is None or self.waiting[0].ready.done):
                chunk = self.waiting.popleft()
                chunk.request = chunk.post()
            self.under_way = [transfer for transfer in self.under_way if not transfer.advance()]

    def abort(self):
        """After a test of this transport has failed, end all calls on the GPU that wait for other ranks. In the base
        class, this method does nothing."""

    def begin(self, array, chunks: Iterable[Chunk], on_complete: Callable = lambda: None) -> Transfer:
        """Start to send or receive a message that carries ``array`` and consists of ``chunks``. Return the transfer."""
        with self.lock:
            transfer = Transfer(self, array)
            transfer.on_complete = on_complete
            for chunk in chunks:
                transfer.add(chunk)
            self.advance()
        return transfer
