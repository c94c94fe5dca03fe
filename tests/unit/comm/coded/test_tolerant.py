"""Sums in steps that end without silent ranks, on simulated ranks: which are silent, come back, or stay too late."""

from collections import defaultdict
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from coding.cost import cost_in_bytes
from coding.fixed_point import FixedPoint
from coding.prime_field import HALF
from grsgd.comm.coded.errors import SilentRanks, UnequalBlocks
from grsgd.comm.coded.parting import Parting
from grsgd.comm.coded.streams import FIXED, HeaderKind
from grsgd.comm.coded.tolerant import TolerantSum
from grsgd.comm.pollables import Delay
from grsgd.simulator.driver import Deadlock
from grsgd.testing.simulated import Ranks, network_of
from tests.support.exhaustive import exhaustive_unless

LENGTH, STEPS = 23, 6
PATIENCE = 100.0
ALL = [(n, r, s) for n in range(1, 7) for r in range(1, n + 1) for s in range(r)]
in_all_cases = pytest.mark.parametrize(
    "n, r, s", exhaustive_unless(lambda n, r, s: n <= 4 or (n, r, s) == (5, 3, 2), ALL)
)


class Job:
    """The scheme on n simulated ranks, which add up random blocks."""

    def __init__(self, n, r, s, random=None, spec=None, steps=STEPS, lag=None, patience=PATIENCE, timing_only=False):
        self.n, self.ranks = n, Ranks(n, spec, random)
        fixed = FixedPoint(10.0, HALF // n)
        self.schemes = [
            TolerantSum(comm, driver, n, r, rank, LENGTH, fixed, np.empty, s, lag, patience)
            for rank, (comm, driver) in enumerate(zip(self.ranks.comms, self.ranks.drivers, strict=True))
        ]
        top, numbers = HALF // n, np.random.default_rng((n, r, s))
        self.blocks = numbers.integers(-top, top + 1, (steps, n, LENGTH)).astype(np.int32)
        self.over = [[] for _ in range(n)]
        """When each rank was through with each step."""

    def train(self, rank, seconds=0.0, falls_silent=None, blocks=None):
        """Schedule that adds up the blocks of all steps; returns who was left behind. ``falls_silent``: in this
        step."""
        scheme, driver = self.schemes[rank], self.ranks.drivers[rank]
        scheme.open()
        for step, parts in enumerate(self.blocks if blocks is None else blocks):
            yield from scheme.look()
            if not scheme.needs_no_blocks:
                yield Delay(seconds(step) if callable(seconds) else seconds)
                for k, block in enumerate(scheme.blocks):
                    scheme.block_buffer(k)[:] = parts[block]
            if step == falls_silent:
                driver.abandon()
                return None
            yield from scheme.add_up()
            if scheme.is_left_behind:
                break
            if blocks is None:
                np.testing.assert_array_equal(scheme.total, self.blocks[step].sum(0, dtype=np.int64))
            self.over[rank].append(self.ranks.env.now)
        yield from scheme.close()
        return scheme.lost

    def falls_silent_in_the_end(self, rank):
        def close():
            self.ranks.drivers[rank].abandon()
            return ()

        self.schemes[rank].close = close

    def finish(self, **of_rank):
        """Let all ranks train; ``of_rank``: further arguments of `train`, by name and rank."""
        given = [{name: values[rank] for name, values in of_rank.items() if rank in values} for rank in range(self.n)]
        return self.ranks.finish([self.train(rank, **given[rank]) for rank in range(self.n)])


# ---- exact sums, without any silent ranks


@in_all_cases
def test_all_ranks_have_the_sums(n, r, s):
    """Whichever message overtakes which; and no message is under way in the end."""
    job = Job(n, r, s, random=np.random.default_rng((n, r, s)))
    assert job.finish() == [frozenset()] * n
    assert job.ranks.fabric.is_idle()
    for scheme in job.schemes:
        assert scheme.used.sum() == STEPS * (n - s)


@in_all_cases
def test_without_every_set_of_silent_ranks(n, r, s):
    """They fall silent in different steps, and stay so; all others agree who they are."""
    for silent in (set(each) for size in range(1, s + 1) for each in combinations(range(n), size)):
        job = Job(n, r, s, random=np.random.default_rng(len(silent)))
        found = job.finish(falls_silent={rank: 1 + rank % 3 for rank in silent})
        expected = [None if rank in silent else frozenset(silent) for rank in range(n)]
        assert found == expected, silent


@in_all_cases
def test_without_ranks_that_are_cut_off_for_a_while(n, r, s):
    """They come back, are told all that they have missed, and are in the last steps again."""
    for silent in combinations(range(n), s):
        job = Job(n, r, s, spec=network_of(latency="1 ms"), steps=12)
        job.ranks.network.cuts = dict.fromkeys(silent, (2.5, 6.5))
        found = job.finish(seconds=dict.fromkeys(range(n), 1.0))
        assert found == [frozenset()] * n
        assert max(each[-1] for each in job.over) < 13.5
        for rank in range(n):
            if rank in silent and n - s > 1:
                assert 3 <= job.schemes[rank].made <= 5
            else:
                assert job.schemes[rank].made == 0 or n - s == 1


def test_bytes():
    """A message of each rank to all others, as `coding.cost` says, and headers."""
    job = Job(4, 3, 1)
    job.finish()
    cost = cost_in_bytes("tolerant-1", 4, 3, LENGTH)
    for comm, copies in zip(job.ranks.comms, cost.copies, strict=True):
        assert comm.traffic.sent.sum() == STEPS * copies
        assert comm.traffic.headers.sum() > 0


def test_one_more_silent_rank_stops_all_others_who_name_it():
    job = Job(4, 2, 1)
    with pytest.raises(Deadlock) as caught:
        job.finish(falls_silent={1: 2, 3: 2})
    without = "without ranks 1, 3: at most 1 may be silent (algorithm.silent)"
    assert f"rank 0 waits for step 2 to end {without}" in str(caught.value)


def test_a_step_ends_although_a_rank_falls_silent_in_the_midst_of_sending():
    """Rank 0 reaches rank 2 and not rank 1, which needs another message: rank 2, which is late, makes its own of those
    of ranks 0 and 1."""
    job = Job(3, 2, 1)
    of_all = job.schemes[0]._in_need
    job.schemes[0]._in_need = lambda step: [2] if step == 3 else of_all(step)

    job.falls_silent_in_the_end(0)
    late = job.train(2, seconds=lambda step: 50.0 if step == 2 else 1.0)
    found = job.ranks.finish([job.train(0, blocks=job.blocks[:4]), job.train(1, seconds=1.0), late])
    assert found[1:] == [frozenset({0})] * 2
    assert job.schemes[2].made >= 1


def drawn(seed):
    """A job of random size and speed; returns also the seconds of each rank's steps."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    r = int(random.integers(1, n + 1))
    s = int(random.integers(0, r))
    job = Job(n, r, s, random=np.random.default_rng(seed), steps=8)
    times = 1 + random.exponential(1.0, (n, 8)) * (random.random((n, 8)) < 0.3)
    return random, job, s, {rank: times[rank].__getitem__ for rank in range(n)}


@pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed < 30, range(300)))
def test_ranks_that_fall_silent_at_any_moment(seed):
    """Whatever they are about: the others end all steps, and agree on who is silent."""
    random, job, s, seconds = drawn(seed)
    silent = random.permutation(job.n)[: random.integers(0, s + 1)].tolist()
    for rank in silent:
        event = job.ranks.env.timeout(random.uniform(0, 7))
        event.callbacks.append(lambda _, rank=rank: job.ranks.drivers[rank].kill())
    found = job.finish(seconds=seconds)
    left = [rank for rank in range(job.n) if rank not in silent]
    assert [found[rank] for rank in left] == [frozenset(silent)] * len(left)
    assert all(len(job.over[rank]) == 8 for rank in left)


@pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed < 30, range(300)))
def test_any_ranks_that_are_cut_off_at_any_time(seed):
    """Even all at once: in the end all have all sums."""
    random, job, _, seconds = drawn(seed)
    begins, lengths = random.uniform(0, 10, job.n), random.exponential(3.0, job.n)
    job.ranks.network.cuts = {
        rank: (begin, begin + length) for rank, (begin, length) in enumerate(zip(begins, lengths, strict=True))
    }
    assert job.finish(seconds=seconds) == [frozenset()] * job.n
    assert all(len(over) == 8 for over in job.over)
    assert job.ranks.fabric.is_idle()


# ---- ranks that are late


def test_a_rank_that_is_late_catches_up():
    """After one long step it takes those that it has missed without blocks; then it is less than a step late."""
    job = Job(4, 2, 1, spec=network_of(latency="1 ms"), steps=20)
    seconds = {rank: 1.0 for rank in range(4)} | {1: lambda step: 5.5 if step == 2 else 1.0}
    assert job.finish(seconds=seconds) == [frozenset()] * 4
    assert job.over[0][-1] == pytest.approx(20, abs=0.2)
    assert 4 <= job.schemes[1].made <= 5
    assert job.over[1][10:] == pytest.approx(job.over[0][10:], abs=1)


def test_a_slow_rank_does_not_slow_down_the_others():
    job = Job(4, 2, 1, spec=network_of(latency="1 ms"), steps=20)
    seconds = dict.fromkeys(range(4), 1.0) | {2: 4.0}
    assert job.finish(seconds=seconds) == [frozenset()] * 4
    assert job.over[0][-1] == pytest.approx(20, abs=0.2)
    assert job.schemes[2].made >= 12
    assert job.schemes[0].made == 0


def test_two_ranks_that_are_late_in_turn():
    """A step with two that are late waits for the first of them; without tolerance six steps would take 2.5 s."""
    job = Job(5, 2, 1, spec=network_of(latency="1 ms"), steps=30)
    seconds = {rank: partial(lambda rank, step: 2.5 if step % 25 == 5 * rank else 1.0, rank) for rank in range(5)}
    assert job.finish(seconds=seconds) == [frozenset()] * 5
    assert 30 < job.over[3][-1] < 30 + 6 * 1.5 / 2


# ---- ranks that are left behind


def test_a_rank_that_is_too_far_behind_is_left_behind():
    job = Job(4, 2, 1, spec=network_of(latency="1 ms"), steps=30, lag=3)
    job.ranks.network.cuts = {2: (2.5, 20.5)}
    found = job.finish(seconds=dict.fromkeys(range(4), 1.0))
    assert found == [frozenset({2})] * 4
    assert len(job.over[2]) < 10 and job.schemes[2].is_left_behind
    assert job.over[0][-1] == pytest.approx(30, abs=0.2)


def test_what_waits_for_a_rank_is_bounded():
    """The buffers of ``lag`` steps, one under way, and one that is written."""
    job = Job(3, 2, 1, steps=20, lag=4)
    made = []
    make = job.schemes[0].queues.make_buffer
    job.schemes[0].queues.make_buffer = lambda: made.append(make()) or made[-1]
    job.finish(falls_silent={2: 1})
    assert 4 <= len(made) <= 4 + 2


def test_nobody_waits_for_ranks_that_have_been_left_behind():
    """Neither for one that has said that it gives up, nor for one that says nothing."""
    job = Job(4, 2, 1, spec=network_of(latency="1 ms"), steps=12, lag=3)
    assert job.finish(seconds=dict.fromkeys(range(4), 1.0), falls_silent={3: 2}) == [frozenset({3})] * 3 + [None]
    assert job.ranks.env.now < 13


def test_too_many_silent_ranks_in_the_end_are_named():
    job = Job(4, 2, 1, patience=5.0)
    for rank in (2, 3):  # fall silent when they have taken all steps, before they say so
        job.falls_silent_in_the_end(rank)
    with pytest.raises(SilentRanks, match=r"^silent at the end of the training: ranks 2, 3; at most 1 may be silent"):
        job.finish()


@pytest.mark.parametrize("late", np.linspace(-0.02, 0.02, 21).round(4).tolist())
def test_a_rank_that_comes_back_when_the_others_lose_patience(late):
    """Whether it is left behind or not, all agree."""
    job = Job(4, 2, 1, spec=network_of(latency="1 ms"), patience=3.0)
    job.ranks.network.cuts = {0: (5.5, STEPS + 3.0 + late)}
    found = job.finish(seconds=dict.fromkeys(range(4), 1.0))
    assert found in ([frozenset()] * 4, [frozenset({0})] * 4)
    assert found[0] == (frozenset() if late <= -0.02 else frozenset({0}) if late >= 0.02 else found[0])


@pytest.mark.parametrize("n, r, s, slow", [(4, 2, 1, (1, 3)), (5, 3, 2, (2, 4))])
def test_ranks_that_hear_of_two_proposals_in_another_order_agree_all_the_same(n, r, s, slow):
    """One link is slow, so some hear first of the arbiter that comes back, some of the one that does without it."""
    for late in np.linspace(-0.01, 0.03, 9).round(4).tolist():
        link = {"from": slow[0], "to": slow[1], "latency": "20 ms"}
        job = Job(n, r, s, spec=network_of(latency="1 ms", link=[link]), patience=3.0)
        job.ranks.network.cuts = {rank: (5.5, STEPS + 3.0 + late * (1 + rank)) for rank in range(s)}
        found = job.finish(seconds=dict.fromkeys(range(n), 1.0))
        assert len(set(found)) == 1, (late, found)


def test_a_rank_agrees_to_one_proposal():
    """Rank 0 comes back when ranks 1 and 2 are about to leave it behind, and would have all go on."""
    said, spoken = defaultdict(dict), []
    streams = SimpleNamespace(said=said, dead=set(), values=3)
    tell = lambda numbers, ranks: spoken.append((HeaderKind(numbers[0]), ranks))  # noqa: E731
    queues = SimpleNamespace(comm=SimpleNamespace(rank=2, size=3), left_behind=set(), tell=tell)
    parting = Parting(queues, streams, None, 1, PATIENCE)
    said[HeaderKind.FINISHED] = {1: None}
    assert parting.decision() is None and not spoken
    said[HeaderKind.PROPOSAL] = {1: np.array([1, 0, 0])}
    assert parting.decision() is None and spoken == [(HeaderKind.AGREED, [1])]
    said[HeaderKind.FINISHED][0], said[HeaderKind.PROPOSAL] = None, {0: np.array([0, 0, 0]), 1: np.array([1, 0, 0])}
    assert parting.decision() is None and spoken == [(HeaderKind.AGREED, [1])]
    said[HeaderKind.WITHDRAWN] = {1: None}
    assert parting.decision() is None and spoken == [(HeaderKind.AGREED, [1]), (HeaderKind.AGREED, [0])]
    said[HeaderKind.DECISION] = {1: np.array([1, 0, 0])}
    assert parting.decision() == {0}


def test_an_arbiter_withdraws_its_proposal_when_a_lower_rank_has_finished():
    """Unless all have agreed to it: then it is the decision."""
    for agreed, expected in (({2: None}, None), ({2: None, 3: None}, frozenset({0}))):
        said, spoken = defaultdict(dict), []
        streams = SimpleNamespace(said=said, dead=set(), values=4)
        tell = lambda numbers, ranks, spoken=spoken: spoken.append((HeaderKind(numbers[0]), ranks))  # noqa: E731
        queues = SimpleNamespace(comm=SimpleNamespace(rank=1, size=4), left_behind={0}, tell=tell)
        parting = Parting(queues, streams, None, 1, PATIENCE)
        said[HeaderKind.FINISHED] = {2: None, 3: None}
        assert parting.decision() is None and spoken == [(HeaderKind.PROPOSAL, [2, 3])]
        said[HeaderKind.FINISHED][0], said[HeaderKind.AGREED] = None, agreed
        assert parting.decision() == expected
        if expected is None:
            assert spoken[1:] == [(HeaderKind.WITHDRAWN, [2, 3])]
            said[HeaderKind.PROPOSAL] = {0: np.zeros(4)}
            assert parting.decision() is None and spoken[2:] == [(HeaderKind.AGREED, [0])]
        else:
            assert spoken[1:] == [(HeaderKind.DECISION, [0, 2, 3])]


def waits_for(rank, finished, proposals=(), agreed=()):
    """What a rank says that has waited for too long for the others to agree, when it has heard so much."""
    said, now = defaultdict(dict), [0.0]
    said[HeaderKind.FINISHED] = dict.fromkeys(finished)
    said[HeaderKind.PROPOSAL] = {proposer: np.zeros(4) for proposer in proposals}
    said[HeaderKind.AGREED] = dict.fromkeys(agreed)
    streams = SimpleNamespace(said=said, dead=set(), values=4, heard=0)
    queues = SimpleNamespace(comm=SimpleNamespace(rank=rank, size=4), left_behind=set(), tell=lambda *_: None)
    alarm = SimpleNamespace(Test=lambda: now[0] > 3)
    driver = SimpleNamespace(clock=lambda: now[0], timeout=10.0, start=lambda schedule: alarm)
    with pytest.raises(SilentRanks) as error:
        for pending in Parting(queues, streams, driver, 1, 3.0).agree():
            while not pending.Test():
                now[0] += 0.5
    return str(error.value)


def test_who_keeps_the_others_from_going_on_is_named():
    """Rank 2 has fallen silent since its last step, or rank 0, to which others have agreed."""
    begin = "rank {} waited 20 s for "
    assert waits_for(0, [1, 2, 3], agreed=[1, 3]) == begin.format(0) + "rank 2 to agree which ranks go on"
    assert waits_for(0, [1, 2], agreed=[]) == begin.format(0) + "ranks 1, 2 to agree which ranks go on"
    assert waits_for(3, [0, 1, 2]) == begin.format(3) + "rank 0 to decide which ranks go on"
    assert waits_for(3, [0, 1, 2], proposals=[1]) == begin.format(3) + "rank 1 to decide which ranks go on"


# ---- blocks that differ


@pytest.mark.parametrize("n, r, s", [(3, 2, 1), (4, 3, 1), (5, 3, 2)])
def test_ranks_that_compute_different_gradients_are_named(n, r, s):
    job = Job(n, r, s)
    other = job.blocks.copy()
    other[2, 1, 5] += 1
    with pytest.raises(UnequalBlocks, match=r"^step 2: ranks \d and \d have computed different gradients of block 1: "):
        job.finish(blocks={1: other})


def test_headers_have_room_for_what_they_say():
    job = Job(5, 3, 1)
    assert job.schemes[0].queues.farewell.size == FIXED + 5


@pytest.mark.parametrize("is_left_behind", [True, False])
@pytest.mark.parametrize("dead, gone, is_lost", [({1}, {}, False), ({1}, {2: 5}, True), ({1, 2}, {2: 5}, True)])
def test_a_rank_that_the_others_have_left_behind_does_not_miss_them(dead, gone, is_lost, is_left_behind):
    scheme = SimpleNamespace(
        streams=SimpleNamespace(dead=dead, said={HeaderKind.GONE: gone}),
        code=SimpleNamespace(needed=3),
        silent=1,
        is_left_behind=is_left_behind,
        _without=lambda ranks: 4 - len(ranks),
    )
    if is_lost and not is_left_behind:
        with pytest.raises(SilentRanks, match="lost: ranks 1, 2; at most 1 may be lost or silent"):
            TolerantSum.check_lost(scheme)
    else:
        TolerantSum.check_lost(scheme)
