"""Messages of arrays in GPU memory, by every way, on ranks that are threads; a double stands for the GPU.

On processes, and with MPI libraries: tests/mpi/ranks/test_device_messages.py.
"""

from functools import partial

import numpy as np
import pytest
import torch

from grsgd.comm.backend import ANY_RANK, MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.gpu.direct import Direct
from grsgd.comm.gpu.ipc import SHORT_BYTES, Ipc
from grsgd.comm.gpu.nccl import Nccl
from grsgd.comm.gpu.select import self_test
from grsgd.comm.gpu.staged import CHUNK_BYTES, HEADER_BYTES, Staged, chunk_bounds
from grsgd.comm.gpu.transport import Chunk, GpuTransport
from tests.support.device_double import DeviceDouble, Event, Memory
from tests.support.nccl_double import NcclDouble
from tests.support.threads import on_threads

LENGTHS = (0, 1, 100, SHORT_BYTES, SHORT_BYTES + 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5)
"""Bytes."""


class Used(Memory):
    """What is borrowed from it was used before."""

    def borrow(self, nbytes):
        return np.full(nbytes, 0xDD, np.uint8)


@pytest.fixture(params=["direct", "staged", "ipc", "ipc of two hosts", "nccl"])
def ranks(request, monkeypatch):
    """``ranks(n, work)``: ``work(comm, run)`` on each of ``n`` ranks, whose arrays are as if they lay on a GPU."""
    rooms = {}

    def on_ranks(n, work):
        def rank(mpi):
            memory = Used()
            host = mpi.Get_group()
            if request.param == "ipc of two hosts":
                host = host.Incl([rank for rank in range(n) if rank % 2 == mpi.rank % 2])
            transports = {"direct": partial(Direct, memory=memory), "staged": partial(Staged, memory=memory)}
            transports["nccl"] = partial(Nccl, memory=memory, library=NcclDouble(rooms))
            make = transports.get(request.param, partial(Ipc, memory=memory, host=host))
            driver = MpiDriver(mpi.rank, timeout=20.0, progress_mode="inline")
            try:
                return work(Communicator(DeviceDouble(mpi, make).dup()), driver.run)
            finally:
                driver.close()

        return on_threads(monkeypatch, n, rank)

    return on_ranks


def pattern(nbytes, seed):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def wait_for(messages):
    yield messages


def test_every_verb_with_several_sizes(ranks):
    ranks(2, lambda comm, run: run(self_test(comm, torch.device("cpu"))))


def test_messages_come_in_order_whatever_their_length(ranks):
    """Every rank sends to every other one, all messages at once, with one tag."""

    def work(comm, run):
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        got = {(rank, k): np.zeros(max(LENGTHS), np.uint8) for rank in others for k in range(len(LENGTHS))}
        receiving = [comm.Irecv(array, rank, 5) for (rank, _), array in got.items()]
        sending = [comm.Isend(pattern(size, (comm.rank, rank, size)), rank, 5) for size in LENGTHS for rank in others]
        run(wait_for(receiving + sending))
        for (rank, k), array in got.items():
            np.testing.assert_array_equal(array[: LENGTHS[k]], pattern(LENGTHS[k], (rank, comm.rank, LENGTHS[k])))
            assert not array[LENGTHS[k] :].any()

    ranks(2, work)


def test_from_any_rank(ranks):
    """Every rank sends to rank 0, itself included."""
    nbytes = 2 * CHUNK_BYTES + 10

    def content(rank, k):
        return np.concatenate([np.array([rank, k], np.uint8), pattern(nbytes, (rank, k))])

    def work(comm, run):
        def schedule():
            sending = [comm.Issend(content(comm.rank, k), 0, 7) for k in range(2)]
            if comm.rank == 0:
                heard = {rank: 0 for rank in range(comm.size)}
                arrays = [np.zeros(nbytes + 100, np.uint8) for _ in range(2 * comm.size)]
                for message, array in [(comm.Irecv(array, ANY_RANK, 7), array) for array in arrays]:
                    yield message
                    rank, k = array[:2].tolist()
                    assert k == heard[rank]
                    heard[rank] += 1
                    np.testing.assert_array_equal(array[: nbytes + 2], content(rank, k))
            yield sending

        run(schedule())

    ranks(3, work)


def test_an_array_may_be_written_when_its_message_is_complete(ranks):
    def work(comm, run):
        def schedule():
            if comm.rank == 0:
                for k in range(3):
                    array = pattern(2 * CHUNK_BYTES + 8, k)
                    yield comm.Isend(array, 1)
                    array[:] = 0
            else:
                for k in range(3):
                    array = np.zeros(2 * CHUNK_BYTES + 8, np.uint8)
                    yield comm.Irecv(array, 0)
                    np.testing.assert_array_equal(array, pattern(2 * CHUNK_BYTES + 8, k))

        run(schedule())

    ranks(2, work)


def test_groups(ranks):
    """Broadcasts and sums in groups, several under way at once."""

    def work(comm, run):
        members = [rank for rank in range(comm.size) if rank != 1]
        if comm.rank == 1:
            return
        group = comm.subset(members)
        arrays = [pattern(nbytes, (nbytes, comm.rank)) for nbytes in (8, CHUNK_BYTES + 8)]
        sums = [np.full(CHUNK_BYTES // 4, comm.rank, np.float64) for _ in range(2)]
        root = group.size - 1
        run(wait_for([group.Ibcast(array, root) for array in arrays] + [group.Iallreduce(x) for x in sums]))
        for array in arrays:
            np.testing.assert_array_equal(array, pattern(array.nbytes, (array.nbytes, members[-1])))
        assert all((x == sum(members)).all() for x in sums)

    ranks(3, work)


def test_a_message_that_is_too_long_is_an_error(ranks):
    def work(comm, run):
        end = comm.backend.transport
        if type(end) is Direct:
            return  # that is MPI's own affair
        if comm.rank == 0:
            message = comm.Isend(pattern(2 * CHUNK_BYTES, 0), 1, 2)
            while end.waiting:
                message.Test()
        else:
            message = comm.Irecv(np.zeros(CHUNK_BYTES + 10, np.uint8), 0, 2)
            length = f"^a message of {2 * CHUNK_BYTES} bytes from rank 0"
            words = f"{length} is too long for an array of {CHUNK_BYTES + 10} bytes$"
            for _ in range(2):
                with pytest.raises(RuntimeError, match=words):
                    run(wait_for(message))

    ranks(2, work)


# ---- by themselves


@pytest.mark.parametrize(
    "nbytes, count", [(0, 1), (1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2), (3 * CHUNK_BYTES, 3)]
)
def test_chunks_follow_one_another(nbytes, count):
    parts = list(chunk_bounds(nbytes))
    assert len(parts) == count
    assert [begin for begin, _ in parts] == [k * CHUNK_BYTES for k in range(count)]
    assert [end for _, end in parts] == [*(begin for begin, _ in parts[1:]), nbytes]


def test_how_much_host_memory_a_message_takes(monkeypatch):
    """Of ranks of one host, no more than a short message; of any rank, as much as the farthest may send."""

    def work(mpi):
        for near, at_most in ([0, 1, 2], [SHORT_BYTES] * 4), ([0, 1], [SHORT_BYTES, SHORT_BYTES, 10**6, 10**6]):
            end = Ipc(MpiBackend(mpi), Memory(), mpi.Get_group().Incl(near))
            assert [end.staged_bytes(10**6, source) for source in (0, 1, 2, ANY_RANK)] == at_most
            assert end.staged_bytes(7, 0) == 7
        staged = Staged(MpiBackend(mpi), Memory())
        assert staged.staged_bytes(10**6, 0) == 10**6
        numbers = [staged.next_number() for _ in range(3)]
        assert numbers == [1, 2, 3] and HEADER_BYTES % 8 == 0
        tags = {staged.tag_of(number) for number in range(staged.tags)}
        assert len(tags) == staged.tags and min(tags) == staged.tags and max(tags) < 2**15, "all of them beyond others'"

    on_threads(monkeypatch, 3, work)


class Posted:
    """A request of MPI that is complete when the test says so."""

    def __init__(self):
        self.complete = False

    def Test(self):
        return self.complete


def test_pieces_reach_mpi_in_order_and_when_they_are_ready():
    memory, posted = Memory(), []

    def piece(name, ready=None):
        def post():
            posted.append(name)
            return Posted()

        return Chunk(ready, post)

    end = GpuTransport(None, memory)
    late = Event(memory.computing)
    first = end.begin(None, [piece("first", late)])
    second = end.begin(None, [piece("second")])
    assert posted == [] and not first.Test() and not second.Test(), "none overtakes another"
    while not late.over:
        second.Test()
    second.Test()
    assert posted == ["first", "second"]


def test_a_transfer_ends_when_all_has_landed():
    memory, done = Memory(), []
    requests = [Posted(), Posted()]
    landing = Event(memory.inward, partial(done.append, "landed"))
    parts = [Chunk(on_received=lambda: landing, request=requests[0]), Chunk(request=requests[1])]
    transfer = GpuTransport(None, memory).begin(None, parts, partial(done.append, "afterwards"))
    assert not transfer.Test()
    requests[0].complete = True
    for _ in range(10):
        assert not transfer.Test() and done == []
    requests[1].complete = True
    while not transfer.Test():
        assert done in ([], ["landed"])
    assert done == ["landed", "afterwards"] and transfer.Test()


def test_what_goes_wrong_in_one_transfer_concerns_no_other():
    def fail():
        raise OSError("cable")

    end = GpuTransport(None, Memory())
    request = Posted()
    good = end.begin(None, [Chunk(request=request)])
    broken, complete = Posted(), Posted()
    broken.Test, complete.complete = fail, True
    bad = end.begin(None, [Chunk(request=broken)])
    for _ in range(2):
        with pytest.raises(OSError, match="cable"):
            bad.Test()
    assert not good.Test()
    request.complete = True
    assert good.Test() and end.under_way == []
