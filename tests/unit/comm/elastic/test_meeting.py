"""Meetings of simulated ranks between two steps. On real ranks: ``tests/mpi/ranks/test_checkpoints.py``."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm import tags
from grsgd.comm.allreduce import halving_doubling_allreduce, ring_allreduce
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.elastic.meeting import ASKED, GO_ON, Meeting
from grsgd.comm.pollables import Delay
from grsgd.testing.simulated import Ranks
from tests.support.seeded import seeded

STEPS = 8


def meetings_of(n: int, in_lockstep: bool, seed: int) -> tuple[Ranks, list[Meeting]]:
    ranks = Ranks(n, random=np.random.default_rng(seed))
    return ranks, [Meeting(comm, driver, in_lockstep) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]


def no_message_is_left(ranks: Ranks) -> bool:
    return not any(comm.Iprobe(ANY_RANK, tags.MEETING) for comm in ranks.comms)


def in_lockstep(meeting: Meeting, asks: dict[int, str], seconds: float, met: list):
    """Schedule that takes steps that need all ranks, asks for meetings before the steps in ``asks``, and notes meetings
    in ``met``."""
    comm, step = meeting.comm, 0
    meeting.driver.watch = lambda: meeting.watch(step)
    for step in range(STEPS):
        if step in asks:
            meeting.ask(asks[step])
        if (yield from meeting.before_step(step)):
            told = np.array([float(step)])
            yield from ring_allreduce(comm, told)
            assert told[0] == step * comm.size, "all ranks are before the same step"
            reason = meeting.over()
            met.append((step, reason))
            if reason:
                return
        yield Delay(seconds)
        yield from ring_allreduce(comm, np.zeros(1))
    yield from meeting.end()


@seeded
@given(st.data(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_ranks_in_lockstep_meet_soon_and_before_the_same_step(data, n, seed):
    ranks, meetings = meetings_of(n, True, seed)
    when = st.dictionaries(st.integers(0, STEPS - 1), st.just(GO_ON), max_size=2)
    asks = [data.draw(when) for _ in range(n)]
    met = [[] for _ in range(n)]
    seconds = ranks.network.random.exponential(1e-3, n)
    ranks.finish(map(in_lockstep, meetings, asks, seconds, met))
    assert all(each == met[0] for each in met) and {reason for _, reason in met[0]} <= {GO_ON}
    asked = sorted(step for each in asks for step in each)
    assert len(met[0]) <= len(asked) and (not asked or asked[0] > STEPS - 4 or met[0])
    for (step, _), ask in zip(met[0][:1], asked[:1], strict=True):
        assert ask <= step <= ask + 3
    assert no_message_is_left(ranks) and len({meeting.number for meeting in meetings}) == 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_ranks_end_after_the_meeting_for_which_one_has_a_reason(n):
    ranks, meetings = meetings_of(n, True, 0)
    met = [[] for _ in range(n)]
    ranks.finish(map(in_lockstep, meetings, [{}] * (n - 1) + [{2: "SIGTERM"}], [1e-3] * n, met))
    steps, reasons = zip(*(each[0] for each in met), strict=True)
    assert len(set(steps)) == 1 and steps[0] in (2, 3, 4) and set(reasons) == {"SIGTERM"}


def test_a_rank_that_asks_without_a_reason_may_end_for_that_of_another():
    ranks, meetings = meetings_of(2, True, 0)
    met = [[], []]
    ranks.finish(map(in_lockstep, meetings, [{2: GO_ON}, {2: "SIGTERM"}], [1e-3] * 2, met))
    assert [each[0][1] for each in met] == [ASKED, "SIGTERM"]


def test_a_reason_counts_whenever_it_is_given():
    ranks, meetings = meetings_of(1, True, 0)
    met = []
    meetings[0].ask()
    meetings[0].ask("SIGTERM")
    meetings[0].ask("SIGINT")
    ranks.finish([in_lockstep(meetings[0], {}, 0.0, met)])
    assert met == [(1, "SIGTERM")]


def freely(meeting: Meeting, asks: dict[int, str], seconds: float, met: list):
    """Schedule that takes steps without other ranks, and meets whenever a rank has asked."""
    step = 0
    while True:
        if step in asks:
            meeting.ask(asks[step])
        if (yield from meeting.before_step(step)):
            meeting.is_held = True
            want_the_end = np.array([float(bool(meeting.reason))])
            yield from halving_doubling_allreduce(meeting.comm, want_the_end, tags.CHECKPOINT)
            yield from meeting.arranged()
            reason = meeting.over(want_the_end[0])
            met.append(reason)
            if reason:
                return
        yield Delay(seconds)
        step += 1


def test_ranks_that_run_freely_meet_at_once():
    ranks, meetings = meetings_of(3, False, 0)
    met = [[], [], []]
    ranks.finish(map(freely, meetings, [{3: GO_ON}, {40: GO_ON, 90: "SIGTERM"}, {}], [1e-2, 2e-3, 1e-3], met))
    assert [len(each) for each in met] == [3] * 3 and {reason for each in met for reason in each[:2]} == {GO_ON}
    assert [each[2] for each in met] == ["SIGTERM"] * 3 and no_message_is_left(ranks)
    assert [(each.number, each.reason, each.is_held) for each in meetings] == [(3, None, False)] * 3


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_request_that_comes_after_the_last_step_leaves_no_message(n, lockstep):
    ranks, meetings = meetings_of(n, lockstep, n)

    def at_the_end(meeting):
        if meeting.comm.rank == n - 1:
            meeting.ask()
        if meeting.comm.rank != 0:  # which is at its end before it can hear
            meeting.watch(7)
        yield from meeting.end()

    ranks.finish(map(at_the_end, meetings))
    assert no_message_is_left(ranks) and ranks.fabric.is_idle()
    assert all(meeting.is_held for meeting in meetings)
    meetings[0].ask()
    meetings[0].watch(8)
    assert no_message_is_left(ranks), "a rank that has ended tells nobody"


def test_requests_that_are_under_way_are_kept():
    """MPI reads their buffer until they are complete."""
    sent = []

    def send(*_):
        number = len(sent)
        sent.append(SimpleNamespace(Test=lambda: number % 2 == 0))
        return sent[-1]

    meeting = Meeting(SimpleNamespace(size=3, rank=1, Isend=send), None, False)
    for step in range(3):
        meeting.ask()
        meeting.watch(step)
        meeting.over(0)
    assert len(sent) == 6 and meeting._sending == [sent[1], sent[3], sent[4], sent[5]]
