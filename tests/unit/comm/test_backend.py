"""Messages by MPI, as far as a double of an mpi4py communicator can tell: deaths, counts, and communicators."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm import backend
from grsgd.comm.backend import ANY_RANK, FromAnyRank, MpiBackend, countable, died_in, subset
from tests.support.threads import FAKE, Group, Mpi, on_threads

DIED = RuntimeError("MPI_ERR_PROC_FAILED: process failed")
OTHER = RuntimeError("MPI_ERR_TRUNCATE: message truncated")


class Mortal(Mpi):
    """Rank 0 of four ranks, of which some have died; ``wrong`` is the error of each of its calls, or None."""

    def __init__(self, dead=()):
        super().__init__(Group(range(4)), 0)
        self.dead, self.wrong, self.arrived, self.acknowledged = set(dead), None, [], []
        self.failing = SimpleNamespace(Test=self.test)
        self.freed_groups = []

    def test(self):
        if self.wrong:
            raise self.wrong
        return True

    def checked(self, *arguments):
        self.test()
        return self.failing

    Isend = Issend = Irecv = checked

    def Iprobe(self, source, tag):
        self.test()
        if source in self.dead:
            raise DIED
        return (source, tag) in self.arrived

    def Ack_failed(self, count):
        self.acknowledged.append(count)

    def Get_failed(self):
        return self.group_of(self.dead)

    def Get_group(self):
        return self.group_of(range(4))

    def group_of(self, ranks):
        return SimpleNamespace(
            Translate_ranks=lambda _, everyone: list(ranks),
            Incl=lambda chosen: self.group_of(chosen),
            Free=lambda: self.freed_groups.append(list(ranks)),
        )

    def Create_group(self, group):
        self.test()
        return "made"

    def Shrink(self):
        return "shrunk"


@pytest.fixture
def mortal(monkeypatch):
    """``mortal(dead)``: a communicator and its `MpiBackend` under a fault-tolerant MPI library."""
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))
    monkeypatch.setattr(backend, "fault_tolerant", lambda: True)

    def make(dead=()):
        mpi = Mortal(dead)
        return mpi, MpiBackend(mpi)

    return make


def calls_of(end: MpiBackend) -> list:
    return [
        lambda: end.Isend(np.zeros(1), 1, 0),
        lambda: end.Issend(np.zeros(1), 1, 0),
        lambda: end.Irecv(np.zeros(1), 1, 0),
    ]


def test_a_message_to_a_dead_rank_fails_when_it_is_tested(mortal):
    mpi, end = mortal()
    for call in calls_of(end):
        mpi.wrong = None
        assert call() is mpi.failing
        mpi.wrong = DIED
        request = call()
        request.Cancel()
        with pytest.raises(RuntimeError, match="PROC_FAILED"):
            request.Test()
        mpi.wrong = OTHER
        with pytest.raises(RuntimeError, match="TRUNCATE"):
            call()


def test_a_receive_from_any_rank_takes_living_ranks_in_turn(mortal):
    mpi, end = mortal(dead=[2])
    receiving = end.Irecv(np.zeros(1), ANY_RANK, 7)
    assert isinstance(receiving, FromAnyRank) and not receiving.Test()
    assert end.lost == (2,) and mpi.acknowledged == [4]
    mpi.arrived = [(1, 7), (3, 7), (1, 8)]
    senders = []
    for _ in range(3):
        receiving = end.Irecv(np.zeros(1), ANY_RANK, 7)
        assert receiving.Test() and receiving.Test()
        senders.append(receiving.source)
    assert senders == [1, 3, 1] and end.next_sender(9) is None
    assert mpi.acknowledged == [4], "a rank that is known to be dead is not asked again"


def test_a_receive_whose_sender_dies_goes_on_with_another_one(mortal):
    mpi, end = mortal()
    mpi.arrived = [(1, 7), (3, 7)]
    receiving, tests = end.Irecv(np.zeros(1), ANY_RANK, 7), [False, DIED, True]

    def test():
        result = tests.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    mpi.failing.Test = test
    assert [receiving.Test() for _ in range(3)] == [False, False, True] and receiving.source == 3
    receiving = end.Irecv(np.zeros(1), ANY_RANK, 7)
    tests.append(OTHER)
    with pytest.raises(RuntimeError, match="TRUNCATE"):
        receiving.Test()


def test_a_probe_notes_deaths(mortal):
    mpi, end = mortal(dead=[3])
    mpi.arrived = [(1, 7), (FAKE.ANY_SOURCE, 7)]
    assert end.Iprobe(1, 7) and end.Iprobe(ANY_RANK, 7) and not end.Iprobe(2, 7) and end.lost == ()
    mpi.wrong = DIED
    assert not end.Iprobe(ANY_RANK, 7) and end.lost == (3,)
    with pytest.raises(RuntimeError, match="PROC_FAILED"):
        end.Iprobe(1, 7)
    mpi.wrong = OTHER
    for probe in (lambda: end.Iprobe(ANY_RANK, 7), lambda: end.next_sender(7)):
        with pytest.raises(RuntimeError, match="TRUNCATE"):
            probe()
    assert mpi.acknowledged == [4]


def test_groups_are_freed_and_dead_ranks_left_out(mortal):
    mpi, _ = mortal(dead=[3, 1])
    assert died_in(mpi) == (1, 3) and sorted(map(len, mpi.freed_groups)) == [2, 4]
    mpi.freed_groups.clear()
    assert subset(mpi, [0, 2]) == "made"
    mpi.wrong = DIED
    assert subset(mpi, [0, 2]) == "shrunk"
    mpi.wrong = OTHER
    with pytest.raises(RuntimeError, match="TRUNCATE"):
        subset(mpi, [0, 2])
    assert mpi.freed_groups == [[0, 2], [0, 1, 2, 3]] * 3


def test_no_message_has_more_elements_than_mpi_counts(monkeypatch):
    monkeypatch.setattr(backend, "MAX_ELEMENTS", 4)
    few = np.arange(4, dtype=np.uint8)
    assert countable(few) is few
    for size, dtype in ((32, np.int64), (20, np.int32), (12, np.int32), (6, np.int16)):
        many = np.arange(size, dtype=np.uint8).reshape(2, -1)
        if size > 4 * dtype().itemsize:
            with pytest.raises(ValueError, match=f"{size} bytes"):
                countable(many)
            continue
        viewed = countable(many)
        assert viewed.dtype == dtype and viewed.tobytes() == many.tobytes()
    with pytest.raises(ValueError, match="5 bytes"):
        countable(np.zeros(5, np.uint8))


def test_communicators_of_ranks_have_messages_of_their_own(monkeypatch):
    def work(mpi):
        end = MpiBackend(mpi, timeout=30.0)
        copy = end.dup()
        x = np.full(2, float(mpi.rank))
        assert (copy.rank, copy.size, copy.timeout, copy.lost) == (mpi.rank, 3, 30.0, ())
        if mpi.rank == 0:
            copy.Isend(x, 1, 5)
        total = x.copy()
        request = copy.Iallreduce(total)
        mpi.Barrier()
        assert request.Test() and total.tolist() == [3, 3]
        told = x.copy()
        request = copy.Ibcast(told, 2)
        mpi.Barrier()
        assert request.Test() and told.tolist() == [2, 2]
        if mpi.rank == 1:
            assert copy.Iprobe(ANY_RANK, 5) and copy.Iprobe(0, 5) and not end.Iprobe(ANY_RANK, 5)
            assert copy.Irecv(x, ANY_RANK, 5).Test() and x.tolist() == [0, 0]
        if mpi.rank:
            part = end.subset([2, 1])
            assert part.size == 2 and part.rank == 2 - mpi.rank
        copy.free()
        assert copy.mpi.freed and not mpi.freed

    on_threads(monkeypatch, 3, work)
