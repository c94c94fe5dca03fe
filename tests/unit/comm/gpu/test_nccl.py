"""Connections of NCCL, and how CuPy's NCCL is called; doubles stand for both. Messages: test_gpu.py."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm.backend import MpiBackend
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.gpu import nccl
from grsgd.comm.gpu.ipc import SHORT_BYTES
from grsgd.comm.gpu.nccl import CupyNccl, Nccl, NcclConnection
from grsgd.comm.gpu.staged import CHUNK_BYTES
from tests.support.device_double import Event, Memory
from tests.support.nccl_double import NcclDouble
from tests.support.threads import on_threads

LONG = SHORT_BYTES + 1


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Told:
    """A link that notes its calls, and whose calls end at once."""

    def __init__(self):
        self.calls, self.aborted, self.error = [], 0, None

    def call(self, *words):
        self.calls.append(words)
        return SimpleNamespace(done=words[0] != "never")

    def check(self):
        if self.error is not None:
            raise self.error

    def abort(self):
        self.aborted += 1


def test_calls_are_made_in_the_order_of_their_turns():
    link = Told()
    connection = NcclConnection(lambda: link, 20.0)
    assert [connection.next_turn() for _ in range(3)] == [0, 1, 2]
    calls = [connection.call(turn, f"turn {turn}") for turn in (2, 1)]
    assert not any(call.Test() for call in calls) and link.calls == []
    calls.append(connection.call(0, "turn 0"))
    until(lambda: all(call.Test() for call in calls))
    assert link.calls == [("turn 0",), ("turn 1",), ("turn 2",)] and not link.aborted


def test_a_call_that_takes_too_long_aborts():
    link = Told()
    call = NcclConnection(lambda: link, 0.05).call(0, "never")
    with pytest.raises(WaitTimeout, match="not ended a call in 0.05 s: NCCL's communicator is aborted"):
        until(call.Test)
    assert link.aborted == 1
    with pytest.raises(RuntimeError, match="NCCL has failed: NCCL has not ended"):
        call.Test()


def test_ranks_that_join_too_late_are_left():
    link = Told()
    connection = NcclConnection(lambda: time.sleep(0.2) or link, 0.01)
    with pytest.raises(WaitTimeout):
        until(connection.call(0, "never").Test)
    until(lambda: link.aborted)


def test_errors_of_nccl_are_raised():
    link = Told()
    call = NcclConnection(lambda: link, 20.0).call(0, "never")
    until(lambda: link.calls)
    link.error = OSError("remote process exited")
    with pytest.raises(RuntimeError, match="NCCL has failed: remote process exited"):
        call.Test()
    assert link.aborted
    call = NcclConnection(lambda: 1 / 0, 20.0).call(0, "send")
    with pytest.raises(RuntimeError, match="NCCL has failed: division by zero"):
        until(call.Test)


def test_messages_to_further_ranks_are_staged(monkeypatch):
    monkeypatch.setattr(nccl, "MAX_PEERS", 1)
    rooms = {}

    def work(mpi):
        transport = Nccl(MpiBackend(mpi, 20.0), Memory(), NcclDouble(rooms))
        got = {rank: np.zeros(LONG, np.uint8) for rank in range(3)}
        requests = [transport.Irecv(array, rank, 5) for rank, array in got.items()]
        requests += [transport.Isend(np.full(LONG, mpi.rank + 1, np.uint8), rank, 5) for rank in range(3)]
        until(lambda: all(request.Test() for request in requests))
        assert all((array == rank + 1).all() for rank, array in got.items())
        assert transport.Iallreduce(np.zeros(0, np.float32)) and transport.Iallreduce(np.zeros(3, np.uint16))
        mpi.Barrier()
        return list(transport._to)

    assert on_threads(monkeypatch, 3, work) == [[1], [0], [0]]


def test_answers_are_told_from_chunks(monkeypatch):
    """Message 2 of rank 0 is staged in two chunks, and message 2 of rank 2 to rank 0 is answered for NCCL."""
    monkeypatch.setattr(nccl, "MAX_PEERS", 1)
    rooms, size = {}, CHUNK_BYTES + 1
    dests = {0: (1, 2), 1: (), 2: (2, 0)}

    def work(mpi):
        transport = Nccl(MpiBackend(mpi, 20.0), Memory(), NcclDouble(rooms))
        got = {rank: np.zeros(size, np.uint8) for rank, of in dests.items() if mpi.rank in of}
        sent = np.full(size, mpi.rank + 1, np.uint8)
        requests = [transport.Isend(sent, dest, 5) for dest in dests[mpi.rank]]
        mpi.Barrier()
        requests += [transport.Irecv(array, rank, 5) for rank, array in got.items()]
        until(lambda: all(request.Test() for request in requests))
        assert all((array == rank + 1).all() for rank, array in got.items())
        mpi.Barrier()
        return list(transport._to), transport.number

    assert on_threads(monkeypatch, 3, work) == [([1], 2), ([], 0), ([0], 2)]


class Communicator:
    """A double of CuPy's NcclCommunicator, of a version that takes the identifier as ``kind``."""

    def __init__(self, kind, size, identifier, rank):
        if not isinstance(identifier, kind):
            raise TypeError
        self.made, self.calls = (size, identifier, rank), []

    def check_async_error(self):
        self.calls.append("check")

    def abort(self):
        self.calls.append("abort")

    def __getattr__(self, name):
        return lambda *words: self.calls.append((name, *words))


@pytest.mark.parametrize("kind", [bytes, tuple])
def test_how_cupy_is_called(kind, monkeypatch):
    """The signatures are those of CuPy's documentation."""
    raw = bytes(range(128, 256))
    identifier = raw if kind is bytes else tuple(np.frombuffer(raw, np.int8).tolist())
    library = SimpleNamespace(
        get_version=lambda: 22800,
        get_unique_id=lambda: identifier,
        NcclCommunicator=lambda *words: Communicator(kind, *words),
        NCCL_SUM="+",
        NCCL_UINT8="octets",
        **{name: name for name in nccl.TYPES.values() if name != "NCCL_UINT8"},
    )
    waits, used = [], []
    runtime = SimpleNamespace(streamWaitEvent=lambda *words: waits.append(words))
    device = SimpleNamespace(pci_bus_id="0000:01:00.0", use=lambda: used.append(True))
    cuda = SimpleNamespace(nccl=library, runtime=runtime, Device=lambda: device)
    cuda.Stream = lambda non_blocking: SimpleNamespace(ptr=77)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(nccl, "GpuEvent", lambda stream: ("event", stream))
    nccl._cupy_nccl.cache_clear()
    try:
        found = CupyNccl()
        assert found.gpu() == "0000:01:00.0" and found.identifier().tobytes() == raw
        link = found.join(2, found.identifier(), 1)
    finally:
        nccl._cupy_nccl.cache_clear()
    assert link.communicator.made == (2, identifier, 1) and used
    array = SimpleNamespace(data=SimpleNamespace(ptr=1000), dtype=np.dtype(np.float32), size=5)
    after = SimpleNamespace(event=SimpleNamespace(ptr=9))
    assert link.call("sum", array, 20, after) == link.call("send", array, 20, after) == ("event", 77)
    link.call("receive", array, 16, after)
    assert waits == [(77, 9)] * 3
    link.check()
    found.abort()
    link.abort()
    link.check()
    assert link.communicator.calls == [
        ("allReduce", 1000, 1000, 5, "NCCL_FLOAT32", "+", 77),
        ("send", 1000, 20, "octets", 0, 77),
        ("recv", 1000, 16, "octets", 0, 77),
        "check",
        "abort",
    ]


def test_a_missing_nccl_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    nccl._cupy_nccl.cache_clear()
    with pytest.raises(ImportError):
        CupyNccl().gpu()


def test_the_double_moves_bytes_late():
    """So that a test notices a message that is complete too early."""
    memory, library = Memory(), NcclDouble({})
    link, array = library.join(1, library.identifier(), 0), np.arange(3.0)
    event = link.call("sum", array, array.nbytes, Event(memory.computing))
    assert not event.done
    until(lambda: event.done)
