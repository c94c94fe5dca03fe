"""Messages of arrays in GPU memory: when their parts may begin, and in which order they reach MPI.

MPI knows nothing of the GPU's queue of work: what it is to send must have been computed, what it is to overwrite must
have been read. A `Transfer` waits for that without blocking: it is a pollable like any message.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable


class Piece:
    """A part of a transfer. ``ready``: an event of the GPU before which MPI must not have it; ``post()`` hands it to
    MPI and returns the request. Or else ``request``: MPI has it already. ``land()``, once MPI has finished it, returns
    an event of the GPU or None."""

    __slots__ = ("ready", "post", "land", "request")

    def __init__(self, ready=None, post: Callable | None = None, land: Callable = lambda: None, request=None):
        self.ready, self.post, self.land, self.request = ready, post, land, request


class Transfer:
    """A message of ``array`` under way, in the manner of an MPI request. Pieces may be added while it is; whoever makes
    one, or adds pieces, has the lock of its end."""

    def __init__(self, end: "DeviceEnd", array):
        self.end = end
        self.array = array  # which must not be freed meanwhile
        self.pieces: deque[Piece] = deque()
        self.landed = None
        """The event after which all that has come lies in GPU memory: the GPU copies in one order."""
        self.afterwards: Callable = lambda: None
        """Called once, when all has landed; may add a last piece."""
        self.complete = False
        self.error: Exception | None = None
        end.under_way.append(self)

    def add(self, piece: Piece):
        """One more; MPI gets it when it is ready, and not before those of this end that were added earlier."""
        self.pieces.append(piece)
        if piece.request is None:
            self.end.waiting.append(piece)

    def Test(self) -> bool:
        """Whether all has been sent, or has landed; raises what went wrong with this message."""
        if not self.complete:
            self.end.advance()
        if self.error is not None:
            raise self.error
        return self.complete

    def advance(self) -> bool:
        """Go on as far as possible; returns whether this has ended. Never raises."""
        try:
            self.complete = self._advance()
        except Exception as error:
            self.error = error
        return self.complete or self.error is not None

    def _advance(self) -> bool:
        while True:
            while self.pieces:
                piece = self.pieces[0]
                if piece.request is None or not piece.request.Test():
                    return False
                self.pieces.popleft()
                self.landed = piece.land() or self.landed
            if self.landed is not None and not self.landed.done:
                return False
            afterwards, self.afterwards = self.afterwards, lambda: None
            afterwards()
            if not self.pieces:
                return True


class DeviceEnd:
    """One rank's end of a group of ranks, for arrays in GPU memory. What is made of it has the verbs of an mpi4py
    communicator.

    ``memory``: a `grsgd.gpu.Memory`, or what stands for it in tests.
    """

    def __init__(self, mpi, memory):
        self.mpi, self.memory = mpi, memory
        self.lock = threading.RLock()
        self.waiting: deque[Piece] = deque()
        """Pieces that MPI does not have yet. It matches messages by order, so no later one may overtake."""
        self.under_way: list[Transfer] = []

    def advance(self):
        """Move all messages on, whichever is asked for: the other side may wait for another one first."""
        with self.lock:
            while self.waiting and (self.waiting[0].ready is None or self.waiting[0].ready.done):
                piece = self.waiting.popleft()
                piece.request = piece.post()
            self.under_way = [transfer for transfer in self.under_way if not transfer.advance()]

    def begin(self, array, pieces: Iterable[Piece], afterwards: Callable = lambda: None) -> Transfer:
        """A message of ``array`` in these pieces."""
        with self.lock:
            transfer = Transfer(self, array)
            transfer.afterwards = afterwards
            for piece in pieces:
                transfer.add(piece)
            self.advance()
        return transfer
