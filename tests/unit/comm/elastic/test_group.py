"""Groups of the ranks that are left after deaths, on simulated ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.group import Changed, Group, GroupBackend
from grsgd.comm.pollables import Until
from tests.support.members import Members
from tests.support.seeded import seeded


def test_a_message_of_a_group_that_is_no_more_reaches_nobody():
    job = Members(3, 0)
    comms = [Communicator(end) for end in job.ends]
    groups = [Group(member, comm, comm, 1) for member, comm in zip(job.members, comms, strict=True)]
    before = [group.communicators()[0] for group in groups]
    late, got = np.zeros(1), np.zeros(1)
    receiving = before[0].Irecv(late, 1)
    job.fabric.kill(2)
    job.settle()
    assert [group.has_changed for group in groups[:2]] == [True, True]
    with pytest.raises(Changed):
        groups[0].watch()
    told = [job.drivers[rank].start(regrouping(groups[rank], rank)) for rank in range(2)]
    job.settle()
    assert [each.complete for each in told] == [True, True] and receiving.Test()
    assert [list(told[0].value), told[0].value[1].tolist()] == [[0, 1], [1]]
    before[1].Isend(np.full(1, 7.0), 0)
    after = [group.communicators()[0] for group in groups[:2]]
    receiving = after[0].Irecv(got, 1)
    job.settle()
    assert late[0] == 0 and not receiving.Test()
    after[1].Isend(np.full(1, 5.0), 0)
    job.settle()
    assert got[0] == 5 and after[0].size == 2


def regrouping(group: Group, number: int):
    yield from group.close()
    return (yield from group.meet([number]))


@seeded
@given(st.data(), st.integers(2, 5), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_all_that_are_left_meet_whoever_dies_meanwhile(data, n, spares, seed):
    """All agree on who is there, whatever order word of deaths and of those that join comes in."""
    job = Members(n, spares, np.random.default_rng(seed))
    comms = [Communicator(end) for end in job.ends]
    groups = [Group(member, comm, comm, 1) for member, comm in zip(job.members, comms, strict=True)]

    def attend(process):
        group = groups[process]
        if process >= n:
            yield job.waiting[process]
            if group.membership.rank is None:
                return
            group.membership.begin()
        while True:
            yield Until(lambda: group.has_changed, "a change")
            yield from regrouping(group, process)

    for process in range(n + spares):
        job.drivers[process].start(attend(process))
    victims = data.draw(st.permutations(range(n + spares)))[: data.draw(st.integers(0, n - 1))]
    for victim in victims:
        for _ in range(data.draw(st.integers(0, 6))):
            job.event()
        job.fabric.kill(victim, float(job.network.random.exponential(1e-3)))
    job.settle()
    there = [groups[member.process] for member in job.living() if member.rank is not None]
    ranks = sorted(there, key=lambda group: group.membership.rank)
    expected = [group.membership.process for group in ranks]
    assert all(group.processes == expected and not group.has_changed for group in there)


def test_a_group_breaks_off_its_step_after_a_death_and_has_only_messages():
    job = Members(3, 1)
    end = GroupBackend(job.comms[2].backend, job.members[2], [0, 2], 8)
    assert (end.size, end.rank, end.lost) == (2, 1, ()) and end.hosts is None
    assert not (end.survives_deaths or end.shares_memory or end.has_multicast)
    calls = end.dup, lambda: end.subset([0]), lambda: end.Ibcast(np.zeros(1), 0), lambda: end.Iallreduce(np.zeros(1))
    for refused in (*calls, *calls_of_members(job.ends[2])):
        with pytest.raises(NotImplementedError):
            refused()
    end.free()
    got = np.zeros(2)
    receiving = end.Irecv(got[:1], 0, 3), GroupBackend(job.comms[0].backend, job.members[0], [0, 2], 8)
    sending = receiving[1].Issend(np.ones(1), 1, 3)
    receiving[1].Isend(np.ones(1), 1, 4)
    job.settle()
    assert receiving[0].Test() and sending.Test() and got[0] == 1
    assert end.Iprobe(0, 4) and not end.Iprobe(0, 3)


def calls_of_members(end):
    return lambda: end.subset([0]), lambda: end.Ibcast(np.zeros(1), 0), lambda: end.Iallreduce(np.zeros(1))
