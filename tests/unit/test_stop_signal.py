"""Word of an early end, and of the last step of a rank, between ranks that are threads."""

import numpy as np
import pytest

from grsgd.comm.backend import Failed, MpiBackend
from grsgd.comm.communicator import Communicator, LostRank
from grsgd.comm.driver import MpiDriver
from grsgd.comm.stop_signal import MESSAGE_BYTES, Stopped, StopSignal, UnevenSteps
from grsgd.own_loop.last_steps import LastSteps
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


# ---- the last steps


def test_all_hear_of_the_last_step_of_all(monkeypatch):
    def work(mpi):
        driver = MpiDriver(mpi.rank, timeout=20.0, progress_mode="inline")
        steps = LastSteps(Communicator(MpiBackend(mpi.Dup())), "dpsgd")
        steps.step = 5
        sent = steps.announce(5)
        assert steps.step == 0 and len(sent) == mpi.size - 1
        driver.run(steps.wait_for_others(sent))
        driver.close()
        return steps._steps

    for rank, found in enumerate(on_threads(monkeypatch, 3, work)):
        assert found == {other: 5 for other in range(3) if other != rank}


def test_a_rank_in_a_step_that_another_does_not_take(monkeypatch):
    def work(mpi):
        steps = LastSteps(Communicator(MpiBackend(mpi.Dup())), "dpsgd")
        if mpi.rank == 1:
            steps.announce(5)
        mpi.Barrier()
        if mpi.rank == 0:
            for step in (0, 4, 5):
                steps.step = step
                steps.watch()
            steps.step = 6
            words = "^rank 1 finished after 5 steps, rank 0 is in step 6: dpsgd needs the same number of steps on all"
            for _ in range(2):
                with pytest.raises(UnevenSteps, match=words):
                    steps.watch()

    on_threads(monkeypatch, 2, work)


def test_word_for_the_end_is_not_taken_between_two_steps(monkeypatch):
    """There is nothing to wait for: `hear` takes it."""

    def work(mpi):
        comm = Communicator(MpiBackend(mpi.Dup()))
        steps = LastSteps(comm, "dpsgd")
        if mpi.rank == 1:
            steps.announce(5)
        mpi.Barrier()
        if mpi.rank == 0:
            steps.watch()
            assert comm.Iprobe(1, 1)
            word = np.zeros(2, np.int64)
            assert comm.Irecv(word, 1, 1).Test() and word.tolist() == [1, 5]

    on_threads(monkeypatch, 2, work)
