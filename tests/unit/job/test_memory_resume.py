"""Plan of the states that hosts send each other after a restart."""

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
