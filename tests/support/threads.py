"""Ranks that are threads of one process, for code that needs an mpi4py communicator. Neither an MPI library nor a
launcher is needed."""

import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from grsgd.comm.engine import ENGINE

SECONDS = 20
"""Seconds after which a rank stops waiting in a collective call."""
ANY_SOURCE, UNDEFINED = -1, -2
FAKE = SimpleNamespace(
    ANY_SOURCE=ANY_SOURCE,
    UNDEFINED=UNDEFINED,
    IN_PLACE="in place",
    TAG_UB="largest tag",
    COMM_WORLD=SimpleNamespace(Get_attr=lambda key: 2**15 - 1),
    Group=SimpleNamespace(Translate_ranks=lambda group, ranks, other: other.numbers_of(group, ranks)),
    Comm=SimpleNamespace(Create_keyval=lambda delete_fn: "key"),
    COMM_TYPE_SHARED="shared",
    THREAD_MULTIPLE=3,
    Query_thread=lambda: 3,
    Is_finalized=lambda: False,
    Get_processor_name=lambda: "here",
    Get_library_version=lambda: "threads 1.0, of the tests",
)
"""A double of ``mpi4py.MPI``."""


class Ranks:
    """An MPI group of ranks, which has the ranks' numbers in the whole job."""

    def __init__(self, members):
        self.members, self.size = list(members), len(members)

    def numbers_of(self, group, ranks):
        wanted = [group.members[rank] for rank in ranks]
        return [self.members.index(rank) if rank in self.members else UNDEFINED for rank in wanted]

    def Incl(self, ranks):
        return Ranks([self.members[rank] for rank in ranks])

    def Free(self):
        """Do nothing, because a group of threads holds no memory of MPI."""


class Group:
    """State of a communicator that all its ranks share."""

    def __init__(self, members):
        self.members, self.size = list(members), len(members)
        size = self.size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.slots = [None] * size
        self.lock = threading.Lock()
        self.sent: dict[tuple, list] = defaultdict(list)
        """Messages that have not been received, in order of sending, by (receiver, tag)."""
        self.posted: dict[tuple, list] = defaultdict(list)
        self.sums: dict[int, dict] = defaultdict(dict)
        self.parts: dict[tuple, Group] = {}


class Request:
    """A send of ``array``, or a receive into ``array``. The request is ``complete`` when its partner has been found."""

    def __init__(self, rank, array, complete=False):
        self.rank, self.array, self.complete = rank, array, complete

    def Test(self):
        return self.complete


class Sum:
    """One rank's part of an all-reduce. ``mine`` has the arrays by rank, and is complete when all ranks have called."""

    def __init__(self, group: Group, array, mine: dict):
        self.group, self.array, self.mine, self.complete = group, array, mine, False

    def Test(self):
        if not self.complete and len(self.mine) == self.group.size:
            self.array[:] = sum(self.mine[rank] for rank in range(self.group.size))
            self.complete = True
        return self.complete


class Mpi:
    """One rank's communicator, with the methods of an mpi4py communicator that the project uses."""

    def __init__(self, group: Group, rank: int):
        self.group, self.rank, self.size = group, rank, group.size
        self.freed = False
        self.attributes = {}
        self.calls = 0
        """Number of this rank's non-blocking collective calls, which all ranks make in the same order."""

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Get_attr(self, key):
        return self.attributes.get(key)

    def Set_attr(self, key, value):
        self.attributes[key] = value

    def allgather(self, value):
        """Return the values of all ranks by rank. All other collective calls use this method as a barrier."""
        self.group.slots[self.rank] = value
        self.group.barrier.wait()
        found = list(self.group.slots)
        self.group.barrier.wait()
        return found

    def gather(self, value, root=0):
        found = self.allgather(value)
        return found if self.rank == root else None

    def bcast(self, value, root=0):
        return self.allgather(value)[root]

    def Barrier(self):
        self.allgather(None)

    def Ibarrier(self):
        self.allgather(None)
        return Request(self.rank, None, complete=True)

    def Dup(self):
        return Mpi(self.bcast(Group(self.group.members)), self.rank)

    def Split_type(self, kind):
        return self.Dup()

    def Free(self):
        self.freed = True

    def Get_group(self):
        return Ranks(self.group.members)

    def Create_group(self, ranks):
        """Return a communicator of ``ranks``. Equal ``ranks`` give a new communicator only at the first call."""
        with self.group.lock:
            part = self.group.parts.setdefault(tuple(ranks.members), Group(ranks.members))
        return Mpi(part, ranks.members.index(self.group.members[self.rank]))

    def Isend(self, array, dest, tag):
        """Send a message that is complete at once, because MPI may complete any send at once."""
        return self._send(Request(self.rank, array.copy(), complete=True), dest, tag)

    def Issend(self, array, dest, tag):
        return self._send(Request(self.rank, array), dest, tag)

    def _send(self, request, dest, tag):
        check(tag)
        with self.group.lock:
            self.group.sent[dest, tag].append(request)
            self._match(dest, tag)
        return request

    def Irecv(self, array, source, tag):
        check(tag)
        request = Request(source, array)
        with self.group.lock:
            self.group.posted[self.rank, tag].append(request)
            self._match(self.rank, tag)
        return request

    def Ibcast(self, array, root):
        self.calls += 1
        tag = f"broadcast {self.calls}"
        if self.rank != root:
            return self.Irecv(array, root, tag)
        for rank in set(range(self.size)) - {root}:
            self.Isend(array, rank, tag)
        return Request(root, array, complete=True)

    def Iallreduce(self, _, array):
        self.calls += 1
        mine = self.group.sums[self.calls]
        mine[self.rank] = array.copy()
        return Sum(self.group, array, mine)

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


def check(tag):
    """Check that ``tag`` is in the range of MPI's tags. A text is the tag of a broadcast, and is allowed."""
    assert isinstance(tag, str) or 0 <= tag <= FAKE.COMM_WORLD.Get_attr(FAKE.TAG_UB), tag


def on_threads(monkeypatch, n: int, work) -> list:
    """Call ``work(mpi)`` on ``n`` ranks at once. Return the results by rank, or raise the first error."""
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))
    group = Group(range(n))
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
        close_drivers()
        raise errors[0]
    return values


def close_drivers():
    """Close the drivers that a failed test has left. On real ranks, drivers end with their processes."""
    for driver in list(ENGINE._drivers):
        driver.close()
