"""Word of an early end, and of the last step of a rank, between ranks that are threads."""

import pytest

from grsgd.comm.backend import Failed, MpiBackend
from grsgd.comm.communicator import Communicator, LostRank
from grsgd.comm.stop_signal import MESSAGE_BYTES, Stopped, StopSignal
from tests.support.threads import on_threads


def heard(stop_signal):
    """What `watch` raises on a rank when another one has told it to stop."""
    while True:
        try:
            stop_signal.watch()
        except Stopped as stopped:
            return str(stopped)


@pytest.mark.parametrize("tell", ["stop", "fail"])
@pytest.mark.parametrize("who", [0, 2])
def test_every_other_rank_is_told(who, tell, monkeypatch):
    reason = "überall " + "x" * MESSAGE_BYTES

    def work(mpi):
        stop_signal = StopSignal(Communicator(MpiBackend(mpi.Dup())))
        if mpi.rank == who:
            if tell == "stop":
                with pytest.raises(Stopped, match="überall"):
                    stop_signal.stop(reason)
            else:
                stop_signal.fail(reason)
        else:
            said = heard(stop_signal)
            assert said.startswith("überall xxx") and len(said.encode()) == MESSAGE_BYTES - 1
        mpi.Barrier()
        return stop_signal.failed

    assert on_threads(monkeypatch, 3, work) == [tell == "fail"] * 3


def test_a_failure_outdoes_a_reason_and_not_the_other_way_round(monkeypatch):
    def work(mpi):
        stop_signal = StopSignal(Communicator(MpiBackend(mpi.Dup())))
        if mpi.rank == 0:
            with pytest.raises(Stopped):
                stop_signal.stop("first")
            stop_signal.fail("second")
        mpi.Barrier()
        if mpi.rank == 1:
            with pytest.raises(Stopped, match="second"):
                stop_signal.watch_failures()
            with pytest.raises(Stopped, match="second"):
                stop_signal.watch()
            stop_signal.request = "too late"
            with pytest.raises(Stopped, match="second"):
                stop_signal.watch()

    on_threads(monkeypatch, 2, work)


def test_a_stop_is_no_failure(monkeypatch):
    """While ranks meet, one that has stopped is still waited for."""

    def work(mpi):
        stop_signal = StopSignal(Communicator(MpiBackend(mpi.Dup())))
        if mpi.rank == 0:
            stop_signal.request = "asked for"
            for _ in range(2):
                with pytest.raises(Stopped, match="^asked for$"):
                    stop_signal.watch()
        mpi.Barrier()
        if mpi.rank == 1:
            stop_signal.watch_failures()
            assert stop_signal.reason == "asked for" and not stop_signal.failed
            with pytest.raises(Stopped, match="^first of all$"):
                stop_signal.reason = "first of all"
                stop_signal.stop("another")

    on_threads(monkeypatch, 2, work)


class Dying:
    """The end of a communicator whose rank 1 dies while it is written to; ``lost``: those of whom that is known."""

    rank, size = 0, 4

    def __init__(self, error, lost=()):
        self.error, self.lost, self.sent = error, lost, []

    def Iprobe(self, source, tag):
        return False

    def Isend(self, word, dest, tag):
        if dest == 1:
            return Failed(RuntimeError(self.error))
        self.sent.append(dest)


def test_all_that_live_are_told():
    stop_signal = StopSignal(Dying("MPI_ERR_PROC_FAILED: Process Failure", lost=(2,)))
    stop_signal.fail("broken")
    assert stop_signal.comm.sent == [3]


@pytest.mark.parametrize("tolerant", [False, True])
def test_who_has_died_is_named(tolerant):
    stop_signal = StopSignal(Dying("", lost=(2,)), tolerant)
    if tolerant:
        stop_signal.watch()
    else:
        with pytest.raises(LostRank, match="^rank 2 lost: its process has died$"):
            stop_signal.watch()
        stop_signal.comm.lost = (1, 2)
        with pytest.raises(LostRank, match="^ranks 1, 2 lost: their processes have died$"):
            stop_signal.watch()
