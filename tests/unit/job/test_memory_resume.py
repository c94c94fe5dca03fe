"""Plan of the states that hosts send each other after a restart."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from grsgd.job import memory_resume
from grsgd.job.host_memory import HostFolder
from grsgd.job.memory_resume import _transfers
from grsgd.training.checkpoint_folder import Found


def test_a_host_gets_only_the_states_that_it_needs_and_lacks():
    hosts, there = ["a", "b", "b", "c"], [{0, 3}, {1}, {2, 0}, set()]
    assert list(_transfers(hosts, Found(1, 4), there, 4)) == [(0, 3, 3)]
    assert list(_transfers(hosts, Found(1, 4), [{0}, {1}, set(), {2, 3}], 4)) == [(3, 1, 2)]


def test_the_host_of_rank_0_gets_all_states_if_the_number_of_ranks_has_changed():
    hosts, there = ["a", "a", "b"], [{1}, set(), {0, 1, 2, 3}]
    assert list(_transfers(hosts, Found(1, 4), there, 3)) == [(2, 0, 0), (2, 0, 2), (2, 0, 3)]
    assert list(_transfers(hosts, Found(1, 4), [{0, 1, 2}, {3}, set()], 3)) == [(0, 2, 0)]


def test_hosts_share_the_work_of_sending():
    hosts, there = ["a", "b", "c", "d"], [{*range(5)}, {0}, set(), set()]
    assert list(_transfers(hosts, Found(1, 5), there, 4)) == [(0, 2, 0), (1, 3, 0)]


def test_the_time_limit_of_a_transfer_grows_with_the_states(monkeypatch):
    """Process 0 sends the state of rank 1, of 20 MB, to process 1, which cannot keep it; process 2 waits."""
    limits, told = [], iter([[{1: 20_000_000}, {}, {}], ["", "disk full", ""]])
    monkeypatch.setattr(memory_resume, "within", lambda seconds, what: limits.append(seconds) or nullcontext())
    mpi = SimpleNamespace(rank=2, allgather=lambda own: next(told))
    memory, there = HostFolder(Path("memory"), ["a", "b", "c"]), [{0, 1}, {2}, {2}]
    assert memory_resume._fetch(mpi, memory, Found(12, 3), there, 3, 60.0) == "disk full"
    assert limits == [60.0, 60.0 + 20e6 / memory_resume.SLOWEST] == [60.0, 100.0]
