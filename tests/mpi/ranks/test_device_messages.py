"""Messages of arrays in GPU memory, by every way; a double stands for the GPU."""

from functools import partial

import numpy as np
import pytest
import torch
from mpi4py import MPI

from grsgd.comm.communicator import ANY_RANK, Communicator
from grsgd.comm.gpu.direct import Direct
from grsgd.comm.gpu.ipc import SHORT_BYTES, Ipc
from grsgd.comm.gpu.select import cuda_aware_mpi_error, self_test
from grsgd.comm.gpu.staged import CHUNK_BYTES, Staged
from tests.support.device_double import DeviceDouble, Memory

kept = []
"""Messages that nobody takes up: MPI may still read them."""
LENGTHS = (0, 1, 100, SHORT_BYTES, SHORT_BYTES + 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5)
"""Bytes."""


@pytest.fixture(params=["direct", "staged", "ipc"])
def device_comm(world, request):
    """A communicator that treats all arrays as if they lay on a GPU."""
    memory = Memory()
    host = world.Split_type(MPI.COMM_TYPE_SHARED).Get_group()
    transports = {
        "direct": partial(Direct, memory=memory),
        "staged": partial(Staged, memory=memory),
        "ipc": partial(Ipc, memory=memory, host=host),
    }
    return Communicator(DeviceDouble(world.Dup(), transports[request.param]))


def pattern(nbytes, seed):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def test_every_verb_with_several_sizes(device_comm, driver):
    driver.run(self_test(device_comm, torch.device("cpu")))


def test_messages_come_in_order_whatever_their_length(device_comm, driver):
    """Every rank sends to every other one, all messages at once, with one tag."""
    comm = device_comm
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    got = {(rank, k): np.zeros(max(LENGTHS), np.uint8) for rank in others for k in range(len(LENGTHS))}
    receiving = [comm.Irecv(array, rank, 5) for (rank, _), array in got.items()]
    sending = [comm.Isend(pattern(nbytes, (comm.rank, rank, nbytes)), rank, 5) for nbytes in LENGTHS for rank in others]

    def everything():
        yield receiving + sending

    driver.run(everything())
    for (rank, k), array in got.items():
        expected = pattern(LENGTHS[k], (rank, comm.rank, LENGTHS[k]))
        np.testing.assert_array_equal(array[: LENGTHS[k]], expected)
        assert not array[LENGTHS[k] :].any()


def test_every_message_moves_on_whichever_is_asked_for(device_comm, driver):
    """All ranks ask for what they send before they ask for what they receive, in the foreground and behind."""
    comm, nbytes = device_comm, 3 * CHUNK_BYTES
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def exchange():
        got = np.zeros(nbytes, np.uint8)
        receiving, sending = comm.Irecv(got, left), comm.Isend(pattern(nbytes, comm.rank), right)
        yield sending
        yield receiving
        np.testing.assert_array_equal(got, pattern(nbytes, left))

    def behind():
        yield driver.start(exchange())

    driver.run(exchange())
    driver.run(behind())


def test_from_any_rank(device_comm, driver):
    """Every rank sends to rank 0, itself included."""
    comm, nbytes = device_comm, 2 * CHUNK_BYTES + 10

    def content(rank, k):
        return np.concatenate([np.array([rank, k], np.uint8), pattern(nbytes, (rank, k))])

    def schedule():
        sending = [comm.Issend(content(comm.rank, k), 0, 7) for k in range(3)]
        if comm.rank == 0:
            heard = {rank: 0 for rank in range(comm.size)}
            arrays = [np.zeros(nbytes + 100, np.uint8) for _ in range(3 * comm.size)]
            for message, array in [(comm.Irecv(array, ANY_RANK, 7), array) for array in arrays]:
                yield message
                rank, k = array[:2].tolist()
                assert k == heard[rank]
                heard[rank] += 1
                np.testing.assert_array_equal(array[: nbytes + 2], content(rank, k))
        yield sending

    driver.run(schedule())


def test_a_message_that_is_too_long_is_an_error(device_comm, driver):
    comm = device_comm
    if isinstance(comm.backend.transport, Direct):
        pytest.skip("that is MPI's own affair")

    def schedule():
        if comm.rank == 0:
            message = comm.Isend(pattern(2 * CHUNK_BYTES, 0), 1, 2)  # never taken up
            while comm.backend.transport.waiting:
                message.Test()
            kept.append(message)
        elif comm.rank == 1:
            with pytest.raises(RuntimeError, match=f"a message of {2 * CHUNK_BYTES} bytes from rank 0 is too long"):
                yield comm.Irecv(np.zeros(CHUNK_BYTES + 10, np.uint8), 0, 2)

    if comm.size > 1:
        driver.run(schedule())


def test_groups(device_comm, driver):
    """Broadcasts and sums in groups, several under way at once."""
    comm = device_comm
    if comm.size < 3:
        pytest.skip("groups of all but one rank")
    members = [rank for rank in range(comm.size) if rank != 1]
    if comm.rank == 1:
        return
    group = comm.subset(members)
    arrays = [pattern(nbytes, (nbytes, comm.rank)) for nbytes in (8, CHUNK_BYTES + 8)]
    sums = [np.full(CHUNK_BYTES // 4, comm.rank, np.float64) for _ in range(2)]

    def schedule():
        yield [group.Ibcast(array, group.size - 1) for array in arrays] + [group.Iallreduce(x) for x in sums]

    driver.run(schedule())
    for array in arrays:
        np.testing.assert_array_equal(array, pattern(array.nbytes, (array.nbytes, members[-1])))
    assert all((x == sum(members)).all() for x in sums)


@pytest.mark.ranks(1, 2)
def test_a_process_of_its_own_tries_the_library(world):
    if world.rank == 0:
        assert cuda_aware_mpi_error("numpy") is None
        error = cuda_aware_mpi_error("no_such_module")
        assert "no_such_module" in error and "\n" not in error
