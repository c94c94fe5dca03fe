"""Messages as MPI sees them."""

import numpy as np
import pytest

from grsgd.comm import communicator
from grsgd.comm.communicator import Communicator, countable
from grsgd.phantom import Phantom


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
    comm = Communicator.__new__(Communicator)
    comm._open(mpi, -1, None)
    array = Phantom(nbytes, "uint8")
    for post in (comm.Isend, comm.Issend, comm.Irecv):
        assert post(array, 1).nbytes == nbytes
    comm.Ibcast(array)
    kind = "uint8" if word == 1 else f"int{8 * word}"
    assert mpi.given == [(kind, nbytes // word)] * 4
    assert comm.traffic.sent[1] == 3 * nbytes


@pytest.mark.parametrize("nbytes", [2**31 + 1, 2**34])
def test_what_mpi_cannot_count_is_refused(nbytes):
    with pytest.raises(ValueError, match=f"^a message of {nbytes} bytes: in words of at most 8 bytes more than MPI"):
        countable(Phantom(nbytes, "uint8"))


def test_all_of_a_long_message_and_its_header_arrive(monkeypatch):
    """Parts of a letter are words of another length, or bytes."""
    letter = np.arange(64, dtype=np.uint8)
    monkeypatch.setattr(communicator, "MOST_ELEMENTS", 10)
    words = countable(letter)
    assert words.dtype == np.int64 and words.tobytes() == letter.tobytes() and np.shares_memory(words, letter)
    assert countable(letter[:12].view(np.float32)).dtype == np.float32
    phantom = Phantom(64, "uint8")
    phantom[:4].view(np.int32).fill(7)
    assert int(countable(phantom)[:1].view(np.int32)[0]) == 7
