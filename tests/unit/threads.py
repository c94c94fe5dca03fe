"""Ranks that are threads of one process, for what needs an mpi4py communicator: no MPI library, no launcher."""

import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

SECONDS = 20
"""After so long in a collective call a rank gives up."""
ANY_SOURCE = -1
FAKE = SimpleNamespace(
    ANY_SOURCE=ANY_SOURCE,
    IN_PLACE="in place",
    COMM_TYPE_SHARED="shared",
    THREAD_MULTIPLE=3,
    Query_thread=lambda: 3,
    Get_processor_name=lambda: "here",
    Get_library_version=lambda: "threads 1.0, of the tests",
)
"""In place of ``mpi4py.MPI``."""


class Group:
    """What the ranks of a communicator share."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.slots = [None] * size
        self.lock = threading.Lock()
        self.sent: dict[tuple, list] = defaultdict(list)
        """By receiver and tag: messages that have not been received, in order."""
        self.posted: dict[tuple, list] = defaultdict(list)


class Request:
    """A send, or a receive into ``array``; ``complete`` when a partner has been found."""

    def __init__(self, rank, array, complete=False):
        self.rank, self.array, self.complete = rank, array, complete

    def Test(self):
        return self.complete


class Mpi:
    """One rank's end, with what the project uses of an mpi4py communicator."""

    def __init__(self, group: Group, rank: int):
        self.group, self.rank, self.size = group, rank, group.size
        self.freed = False

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def allgather(self, value):
        """Also the barrier of all collective calls here."""
        self.group.slots[self.rank] = value
        self.group.barrier.wait()
        found = list(self.group.slots)
        self.group.barrier.wait()
        return found

    def bcast(self, value, root=0):
        return self.allgather(value)[root]

    def Barrier(self):
        self.allgather(None)

    def Ibarrier(self):
        self.allgather(None)
        return Request(self.rank, None, complete=True)

    def Dup(self):
        return Mpi(self.bcast(Group(self.size)), self.rank)

    def Split_type(self, kind):
        return self.Dup()

    def Free(self):
        self.freed = True

    def Isend(self, array, dest, tag):
        """Complete at once; MPI may do so with any message."""
        return self._send(Request(self.rank, array.copy(), complete=True), dest, tag)

    def Issend(self, array, dest, tag):
        return self._send(Request(self.rank, array), dest, tag)

    def _send(self, request, dest, tag):
        with self.group.lock:
            self.group.sent[dest, tag].append(request)
            self._match(dest, tag)
        return request

    def Irecv(self, array, source, tag):
        request = Request(source, array)
        with self.group.lock:
            self.group.posted[self.rank, tag].append(request)
            self._match(self.rank, tag)
        return request

    def Iprobe(self, source, tag):
        with self.group.lock:
            return any(source in (ANY_SOURCE, sent.rank) for sent in self.group.sent[self.rank, tag])

    def _match(self, dest, tag):
        sent, posted = self.group.sent[dest, tag], self.group.posted[dest, tag]
        for receiving in list(posted):
            sending = next((each for each in sent if receiving.rank in (ANY_SOURCE, each.rank)), None)
            if sending is not None:
                sent.remove(sending)
                posted.remove(receiving)
                content = sending.array.view(np.uint8).reshape(-1)
                receiving.array.view(np.uint8).reshape(-1)[: content.size] = content
                sending.complete = receiving.complete = True


def on_threads(monkeypatch, n: int, work) -> list:
    """``work(mpi)`` on ``n`` ranks at once; returns what they return, or raises what the first of them has raised."""
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))
    group = Group(n)
    errors = []

    def rank(i):
        try:
            return work(Mpi(group, i))
        except Exception as error:
            errors.append(error)
            group.barrier.abort()

    with ThreadPoolExecutor(n) as pool:
        values = list(pool.map(rank, range(n)))
    if errors:
        raise errors[0]
    return values
