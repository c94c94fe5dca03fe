"""A whole calibration on ranks that are threads, with few repetitions: each measurement is made, and ends.

On real ranks, where times mean something: ``tests/mpi/test_calibrate.py``.
"""

import math

import pytest

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.errors import SetupError
from grsgd.job import places
from grsgd.simulator.calibration import calibrate, eager, messages, pairs
from tests.support.threads import on_threads
from tests.support.training import config


@pytest.fixture
def measured(monkeypatch):
    """``measured(n, mode, hosts)``: the calibration that ``n`` ranks make of themselves."""
    monkeypatch.setattr(messages, "COST_SECONDS", 0.3)
    monkeypatch.setattr(messages, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(pairs, "SECONDS", 0.05)

    def measure(n, mode, hosts):
        monkeypatch.setattr(places, "hosts", lambda mpi: hosts)
        chosen = config("ring_allreduce", comm={"progress_mode": mode})
        found = on_threads(monkeypatch, n, lambda mpi: calibrate.calibrate(mpi, chosen, 3))
        assert all(repr(each) == repr(found[0]) for each in found), "the same on all ranks"
        return found[0]

    return measure


@pytest.mark.parametrize(
    "n, mode, hosts", [(2, "thread", ["one", "one"]), (3, "inline", ["one", "two", "three"])], ids=["host", "hosts"]
)
def test_all_ranks_measure_all_there_is(n, mode, hosts, measured):
    found = measured(n, mode, hosts)
    assert {pair.ranks for pair in found.pairs} == ({(0, 1), (1, 2), (2, 0)} if n == 3 else {(0, 1)})
    assert all(0 < pair.latency < math.inf and 0 < pair.bandwidth < math.inf for pair in found.pairs)
    assert len(found.compute) == n and all(0 < times.median < 1 for times in found.compute)
    assert found.hosts == hosts and (found.queue_bytes is None) == (n == 2)
    processor = found.processor
    assert processor.progress_mode == mode and processor.eager_bytes in [0, *eager.EAGER_BYTES]
    assert all(0 <= spread.low <= spread.median < 1 for spread in (processor.send, processor.receive, processor.wake))
    assert found.work is None or 0 <= found.work < 1


def test_one_rank_needs_an_mpiexec(monkeypatch):
    def refuse():
        raise SetupError("no mpiexec")

    monkeypatch.setattr(calibrate, "check_mpiexec", refuse)
    with pytest.raises(SetupError, match="no mpiexec"):
        on_threads(monkeypatch, 1, lambda mpi: calibrate.calibrate(mpi, config("ring_allreduce"), 3))


def test_exchanges_and_looks_are_measured_on_both_ranks(monkeypatch):
    """If a rank has less than a core."""
    for name, value in {"WAITS": 2, "WAIT_SECONDS": 0.01, "EXCHANGES": 3}.items():
        monkeypatch.setattr(messages, name, value)

    def work(mpi):
        comm, driver = Communicator(MpiBackend(mpi)), MpiDriver(mpi.rank, 20.0, "inline")
        meter = messages.MessageMeter(driver, comm, 1, 0, lambda: None, lambda: iter(()))
        assert (meter.is_here, meter.other, meter.by_thread) == (mpi.rank == 1, 1 - mpi.rank, False)
        assert meter.given(7.0 + mpi.rank) == 8
        return meter.exchange_seconds(), meter.look_seconds(), driver.close()

    for exchanges, looks, _ in on_threads(monkeypatch, 2, work):
        assert len(exchanges) == len(looks) == 2 and all(0 <= seconds < 1 for seconds in (*exchanges, *looks))
