"""Messages as MPI sees them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm import backend
from grsgd.comm.backend import ANY_RANK, MpiBackend, countable
from grsgd.comm.communicator import Communicator, LostRank, Message, receive_if_come
from grsgd.models.shape_only import ShapeOnlyArray
from tests.support.threads import FAKE


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    """No MPI library is needed here."""
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))


class Counting:
    """In place of an MPI communicator: keeps what it is given."""

    def __init__(self):
        self.given = []

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 2

    def Isend(self, array, dest, tag):
        self.given.append((array.dtype.name, array.size))

    Irecv = Issend = Isend

    def Ibcast(self, array, root):
        self.given.append((array.dtype.name, array.size))


@pytest.mark.parametrize("nbytes, word", [(2**31 - 1, 1), (2**31, 8), (2**31 + 4, 4), (2**31 + 2, 2), (2**34 - 8, 8)])
def test_long_messages_are_counted_in_words(nbytes, word):
    """MPI counts elements with a C int."""
    mpi = Counting()
    comm = Communicator(MpiBackend(mpi))
    array = ShapeOnlyArray(nbytes, "uint8")
    for post in (comm.Isend, comm.Issend, comm.Irecv):
        assert post(array, 1).nbytes == nbytes
    comm.Ibcast(array)
    kind = "uint8" if word == 1 else f"int{8 * word}"
    assert mpi.given == [(kind, nbytes // word)] * 4
    assert comm.traffic.sent[1] == 3 * nbytes


@pytest.mark.parametrize("nbytes", [2**31 + 1, 2**34])
def test_what_mpi_cannot_count_is_refused(nbytes):
    with pytest.raises(ValueError, match=f"^a message of {nbytes} bytes has more elements of at most 8 bytes than MPI"):
        countable(ShapeOnlyArray(nbytes, "uint8"))


def test_all_of_a_long_message_and_its_header_arrive(monkeypatch):
    """Parts of a letter are words of another length, or bytes."""
    letter = np.arange(64, dtype=np.uint8)
    monkeypatch.setattr(backend, "MAX_ELEMENTS", 10)
    words = countable(letter)
    assert words.dtype == np.int64 and words.tobytes() == letter.tobytes() and np.shares_memory(words, letter)
    assert countable(letter[:12].view(np.float32)).dtype == np.float32
    shape_only_array = ShapeOnlyArray(64, "uint8")
    shape_only_array[:4].view(np.int32).fill(7)
    assert int(countable(shape_only_array)[:1].view(np.int32)[0]) == 7


def test_what_is_lent_is_lent_once():
    """And taken again when it has come back."""
    comm = Communicator(MpiBackend(Counting()))
    like = np.zeros(3, np.float32)
    with comm.borrow(like, 5) as first, comm.borrow(like, 5) as second:
        assert first.shape == (5,) and first.dtype == np.float32
        assert not np.shares_memory(first, second)
    for _ in range(3):
        with comm.borrow(like, 5) as one, comm.borrow(like, 5) as other, comm.borrow(like, 6) as longer:
            assert {id(one), id(other)} == {id(first), id(second)}
            assert longer.shape == (6,)


def test_a_message_says_what_it_is():
    comm = Communicator(MpiBackend(Counting()))
    array = np.zeros(3, np.float32)
    assert str(comm.Isend(array, 1, 7)) == "send to rank 1 (12 bytes, tag 7)"
    received = comm.Irecv(array, ANY_RANK)
    received.subject = "a model"
    assert str(received) == "a model: receive from any rank (12 bytes, tag 0)"


class Failing:
    """A request, or the end of a communicator, that raises an error."""

    rank, size = 0, 3

    def __init__(self, error):
        self.error, self.acknowledged = error, 0

    def Test(self):
        raise RuntimeError(self.error)

    def Iprobe(self, source, tag):
        raise RuntimeError(self.error)

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Ack_failed(self, most):
        self.acknowledged = most


@pytest.mark.parametrize("name", backend.PROCESS_FAILURES)
def test_a_rank_whose_process_has_died(name, monkeypatch):
    message = Message(Failing(f"{name}: gone"), "send to", 8, 2, 0)
    with pytest.raises(LostRank, match=r"^send to rank 2 \(8 bytes, tag 0\): that rank's process has"):
        message.Test()
    with pytest.raises(RuntimeError, match="^truncated$"):
        Message(Failing("truncated"), "send to", 8, 2, 0).Test()
    mpi = Failing(f"{name}: gone")
    comm = Communicator(MpiBackend(mpi))
    monkeypatch.setattr(backend, "died_in", lambda end: (2,) if end is mpi else ())
    with pytest.raises(RuntimeError, match=name):
        comm.Iprobe(2, 0)
    assert comm.lost == () and not mpi.acknowledged
    assert comm.Iprobe(ANY_RANK, 0) is False
    assert comm.lost == (2,) and mpi.acknowledged == 3
    mpi.error = "truncated"
    with pytest.raises(RuntimeError, match="truncated"):
        comm.Iprobe(ANY_RANK, 0)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_a_process_has_left_that_has_died_is_passed_over(is_known):
    """A probe of any rank finds it for ever, and it cannot be received."""

    class Left(Counting):
        waiting = [2]

        def Get_size(self):
            return 3

        def Iprobe(self, source, tag):
            if source == 1 and not is_known:
                raise RuntimeError(f"{backend.PROCESS_FAILURES[0]}: gone")
            return source in (FAKE.ANY_SOURCE, 1) or source in self.waiting

        def Irecv(self, array, source, tag):
            assert source == 2, "it would never arrive"
            array[:] = source
            self.waiting = []
            return SimpleNamespace(Test=lambda: True)

    comm = Communicator(MpiBackend(Left()))
    comm.backend.lost = (1,) if is_known else ()
    assert receive_if_come(comm, 0, 2, np.int64).tolist() == [2, 2]
    assert receive_if_come(comm, 0, 2, np.int64) is None


def test_an_all_reduce_of_the_library_is_counted_as_one_round_a_ring():
    """All ranks together send 2(n-1) times the array, each to the next one."""

    class Reducing(Counting):
        def __init__(self, rank, size):
            super().__init__()
            self.rank, self.size = rank, size

        def Get_rank(self):
            return self.rank

        def Get_size(self):
            return self.size

        def Iallreduce(self, in_place, array):
            self.given.append(in_place)

    for n in (1, 2, 3, 5):
        sent = np.zeros((n, n), int)
        for rank in range(n):
            comm = Communicator(MpiBackend(Reducing(rank, n)))
            assert str(comm.Iallreduce(np.zeros(7, np.float32))) == "all-reduce with any rank (28 bytes, tag 0)"
            assert comm.backend.mpi.given == ["in place"]
            sent[rank] = comm.traffic.sent
        assert sent.sum() == 2 * (n - 1) * 28
        assert all(sent[rank, (rank + 1) % n] == sent[rank].sum() for rank in range(n))
