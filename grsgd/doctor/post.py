"""Sending and receiving of Python objects between ranks during an examination. Every wait for an object has a time
limit, after which an error names the rank that has not sent the object."""

import pickle
import time
from collections.abc import Iterable

import numpy as np

from grsgd.comm import tags
from grsgd.comm.engine import back_off

MAX_BYTES = 256 * 1024
"""Size in bytes of the largest pickled object that a rank can receive."""


class SilentRank(RuntimeError):
    """Error raised if ``rank`` has not sent an object in time."""

    def __init__(self, rank: int, seconds: float):
        super().__init__(f"rank {rank} has not answered within {seconds:.3g} s")
        self.rank = rank


class Post:
    """Sender and receiver of Python objects on one rank, over a `grsgd.comm.communicator.Communicator`."""

    def __init__(self, comm):
        self.comm = comm
        self._sent = []
        """Pairs (MPI request, array) of the messages that were sent. The arrays of sent messages are kept because MPI
        may still read them."""

    def send(self, thing, to: int):
        """Begin to send the Python object ``thing`` to rank ``to``."""
        array = np.frombuffer(pickle.dumps(thing), np.uint8)
        self._sent.append((self.comm.Isend(array, to, tags.EXAMINATION), array))

    def receive(self, source: int, seconds: float):
        """Return the next object that rank ``source`` sends. Raises SilentRank if no object arrives within
        ``seconds``."""
        begin = time.perf_counter()
        array = np.zeros(MAX_BYTES, np.uint8)
        message = self.comm.Irecv(array, source, tags.EXAMINATION)
        while not message.Test():
            waited = time.perf_counter() - begin
            if waited > seconds:
                raise SilentRank(source, seconds)
            back_off(waited)
        return pickle.loads(array.tobytes())

    def receive_all(self, sources: Iterable[int], seconds: float) -> dict[int, object]:
        """Return a dictionary from rank to the rank's object, for the ranks in ``sources`` that have answered within
        ``seconds``."""
        begin = time.perf_counter()
        missing, found = set(sources), {}
        while missing and (waited := time.perf_counter() - begin) <= seconds:
            for source in [rank for rank in missing if self.comm.Iprobe(rank, tags.EXAMINATION)]:
                left = max(seconds - (time.perf_counter() - begin), 0.1)
                try:
                    found[source] = self.receive(source, left)
                except SilentRank:  # the message has begun to arrive, but is not complete in time
                    return found
                missing.remove(source)
            back_off(waited)
        return found
