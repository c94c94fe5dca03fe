"""Ranks that are threads and may die, for code that needs an MPI library which survives deaths of processes."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from grsgd.own_loop.script_end import ScriptEnd
from tests.support.threads import ANY_SOURCE, FAKE, SECONDS, Group, Mpi, Ranks, close_drivers

FAILED = "MPI_ERR_PROC_FAILED: of the tests"


class Died(BaseException):
    """Exception that ends a thread, in place of the death of a process."""


class Living(Ranks):
    """An MPI group of ranks, whose ranks' numbers in another group can be found."""

    def Translate_ranks(self, ranks, other):
        return other.numbers_of(self, range(self.size))


class Job:
    """State that all ranks of a job share: the ranks that have died, and the meetings of the living ranks."""

    def __init__(self):
        self.dead: set[int] = set()
        self.lock = threading.Lock()
        self.arrived: dict[tuple, dict[int, object]] = {}

    def meet(self, key: tuple, members: list[int], rank: int, value) -> dict[int, object]:
        """Wait until all living ``members`` have come to the meeting ``key``. Return the ``value`` of each rank, by
        rank."""
        with self.lock:
            values = self.arrived.setdefault(key, {})
            values[rank] = value
        deadline = time.monotonic() + SECONDS
        while not set(members) - self.dead <= values.keys():
            assert time.monotonic() < deadline, f"{key}: only {sorted(values)} have come"
            time.sleep(1e-3)
        return values


class MortalRequest:
    """A message that fails if the other rank of the message has died before the message is complete."""

    def __init__(self, mpi: "MortalMpi", request, peer: int):
        self.mpi, self.request, self.peer = mpi, request, peer

    def Test(self):
        if self.request.Test():
            return True
        if self.mpi.group.members[self.peer] in self.mpi.job.dead:
            raise RuntimeError(FAILED)
        return False

    def Cancel(self):
        with self.mpi.group.lock:
            for posted in self.mpi.group.posted.values():
                if self.request in posted:
                    posted.remove(self.request)
        self.request.complete = True


class MortalMpi(Mpi):
    """One rank's communicator in a job in which threads may die."""

    def __init__(self, group: Group, rank: int, job: Job):
        super().__init__(group, rank)
        self.job, self.acknowledged, self.meetings = job, set(), 0

    def _like(self, group, rank):
        return MortalMpi(group, rank, self.job)

    def Dup(self):
        return self._like(self.bcast(Group(self.group.members)), self.rank)

    def _send(self, request, dest, tag):
        return MortalRequest(self, super()._send(request, dest, tag), dest)

    def Irecv(self, array, source, tag):
        assert source != ANY_SOURCE, "a fault-tolerant backend receives from each rank singly"
        return MortalRequest(self, super().Irecv(array, source, tag), source)

    def Iprobe(self, source, tag):
        dead = self.job.dead & set(self.group.members)
        if source == ANY_SOURCE and dead - self.acknowledged:
            raise RuntimeError(FAILED)
        if source != ANY_SOURCE and self.group.members[source] in dead:
            raise RuntimeError(FAILED)
        return super().Iprobe(source, tag)

    def Ack_failed(self, count):
        self.acknowledged = self.job.dead & set(self.group.members)

    def Get_failed(self):
        return Living(sorted(self.acknowledged))

    def Get_group(self):
        return Living(self.group.members)

    def Shrink(self):
        self.meetings += 1
        found = self._meet("shrink", Group([each for each in self.group.members if each not in self.job.dead]))
        group = found[min(found)]
        return self._like(group, group.members.index(self.group.members[self.rank]))

    def Split(self, color, key):
        """Return a communicator of the ranks with the same ``color``. In these tests, all ranks have the same color."""
        assert set(self.allgather(color)) == {color}
        return self.Dup()

    def Agree(self, flag):
        self.meetings += 1
        return int(all(self._meet("agree", flag).values()))

    def Revoke(self):
        """Do nothing, because in these tests no message waits for a rank that has left."""

    def _meet(self, kind, value):
        key = kind, id(self.group), self.meetings
        return self.job.meet(key, self.group.members, self.group.members[self.rank], value)


def on_mortal_threads(monkeypatch, n: int, work) -> list:
    """Call ``work(mpi)`` on ``n`` ranks at once. Return the results by rank, with None for a rank that has died."""
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))
    for module in ("grsgd.comm.backend", "grsgd.own_loop.surviving", "grsgd.own_loop.kept_loop"):
        monkeypatch.setattr(f"{module}.fault_tolerant", lambda: True)
    monkeypatch.setattr("grsgd.own_loop.surviving.ranks.guard", lambda: None)
    monkeypatch.setattr("grsgd.own_loop.surviving.SCRIPT_END", ScriptEnd())
    group, job, errors = Group(range(n)), Job(), []

    def rank(i):
        mpi = MortalMpi(group, i, job)
        try:
            return work(mpi)
        except Died:
            return None
        except Exception as error:
            errors.append(error)
            job.dead.add(i)
            group.barrier.abort()

    with ThreadPoolExecutor(n) as pool:
        values = list(pool.map(rank, range(n)))
    if errors:
        close_drivers()
        raise errors[0]
    return values


def die(mpi: MortalMpi, *drivers):
    """End this thread as if its process had died. The schedules of ``drivers`` end with the thread."""
    for driver in drivers:
        driver.close()
    mpi.job.dead.add(mpi.group.members[mpi.rank])
    raise Died
