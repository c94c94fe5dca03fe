"""A double of NCCL for ranks that are threads. As in NCCL, calls of two ranks match by order, not by tags."""

import threading
from collections import deque

import numpy as np

from tests.support.device_double import Event, octets


class Room:
    """The barrier, the messages and the sums that the ranks of one communicator share."""

    def __init__(self, size):
        self.joined = threading.Barrier(size)
        self.messages = deque()
        self.sums: dict[int, dict[int, np.ndarray]] = {}


class NcclDouble:
    """A double of `grsgd.comm.gpu.nccl.CupyNccl`. All ranks share the dictionary ``rooms``."""

    def __init__(self, rooms: dict, gpu="0000:01:00.0", hangs=False):
        self.rooms, self.pci, self.hangs = rooms, gpu, hangs
        self.links: list[LinkDouble] = []
        self.is_aborted = False

    def gpu(self):
        if isinstance(self.pci, Exception):
            raise self.pci
        return self.pci

    def identifier(self):
        return np.random.default_rng().integers(0, 256, 128, np.uint8)

    def join(self, size, identifier, rank):
        room = self.rooms.setdefault(identifier.tobytes(), Room(size))
        room.joined.wait(20)
        self.links.append(LinkDouble(room, size, rank, self.hangs))
        if self.is_aborted:
            self.abort()
        return self.links[-1]

    def abort(self):
        self.is_aborted = True
        for link in self.links:
            link.abort()


class LinkDouble:
    """A double of `grsgd.comm.gpu.nccl.NcclLink`."""

    def __init__(self, room, size, rank, hangs):
        self.room, self.size, self.rank, self.hangs = room, size, rank, hangs
        self.queue: deque = deque()
        self.count = 0
        self.error = None
        self.is_aborted = False

    def call(self, what, array, nbytes, after):
        after = Both(after, lambda: not self.hangs)
        if what == "send":
            return Event(self.queue, lambda: self.room.messages.append(octets(array).copy()), after)
        if what == "receive":
            arrived = Both(after, lambda: bool(self.room.messages))
            return Event(self.queue, lambda: np.copyto(octets(array)[:nbytes], self.room.messages.popleft()), arrived)
        parts = self.room.sums.setdefault(self.count, {})
        self.count += 1

        def all_there():
            if self.rank not in parts:
                parts[self.rank] = array.copy()
            return len(parts) == self.size

        return Event(self.queue, lambda: np.copyto(array, sum(parts.values())), Both(after, all_there))

    def check(self):
        if self.error is not None:
            raise self.error

    def abort(self):
        self.is_aborted = True


class Both:
    """An event that is done when ``event`` is done and ``condition()`` is true."""

    def __init__(self, event, condition):
        self.event, self.condition = event, condition

    @property
    def done(self):
        return self.event.done and self.condition()
