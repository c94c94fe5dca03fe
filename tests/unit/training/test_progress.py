"""How far a run is: marks, ranks in lockstep, ranks that run free."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.driver import MpiDriver
from grsgd.comm.pollables import Delay
from grsgd.simulator.driver import SimulatedDriver
from grsgd.testing.simulated import Ranks, network_of
from grsgd.training.marks import Marks
from grsgd.training.progress import Counted, FreeRunning, Lockstep
from tests.support.seeded import seeded


class Clock(MpiDriver):
    """A driver whose time the test sets."""

    now = 100.0

    def clock(self):
        return self.now


# ---- marks


def test_marks():
    marks = Marks(100, 4)
    assert [value for value in range(100) if marks.due(value)] == [25, 50, 75]


def test_several_marks_passed_at_once():
    marks = Marks(100, 10)
    assert [marks.due(value) for value in (9, 35, 36, 39.9, 40, 99, 100, 200)] == [0, 3, 0, 0, 1, 5, 0, 0]


def test_early_marks_halve_the_first_interval():
    marks = Marks(6400, 4, early=3)
    assert [value for value in range(6400) if marks.due(value)] == [200, 400, 800, 1600, 3200, 4800]
    assert marks.passed == marks.total - 1
    marks = Marks(6400, 4, early=3)
    assert marks.next == 200 and marks.due(500) == 2 and marks.next == 800 and marks.due(3200) == 3
    assert marks.next == 4800 and marks.due(10**6) == 1
    marks = Marks(8, 1, early=2)
    assert [value for value in range(8) if marks.due(value)] == [2, 4] and marks.total == 3


@pytest.mark.parametrize("early", [0, 6])
@pytest.mark.parametrize("at", [0, 5, 60, 240, 450, 479])
def test_the_same_marks_go_on_as_if_nothing_had_been(early, at):
    marks, same = Marks(480, 10, early), Marks(480, 10, early)
    marks.due(at)
    assert same.go_on(marks.state(), at, 0.0, early) == early and same.shift == 0


@pytest.mark.parametrize("early", [0, 6])
@pytest.mark.parametrize(("end", "count"), [(480, 2), (480, 40), (960, 10), (2880, 5), (30, 10), (240, 1)])
def test_other_marks_go_on_from_where_a_run_is(end, count, early):
    """Those that are left are passed, each as often as there is a place for a snapshot; the end has one, too."""
    at, marks, others = 250, Marks(480, 10, early), Marks(end, count, early)
    taken = marks.due(at)
    assert taken == early + 5
    early_ones = others.go_on(marks.state(), at, 0.0, early)
    others.passed = taken
    passed = [value for value in range(at, end) if others.due(value)]
    expected = [k * end / count for k in range(1, count) if k * end / count > at]
    later = [value for value in passed if value >= end / count]
    np.testing.assert_allclose(later, expected, atol=1)
    assert others.passed == taken + len(passed) == others.total - 1
    assert early_ones == early + len(passed) - len(later)


def test_marks_in_samples_go_on_in_seconds():
    marks, others = Marks(480, 10), Marks(20.0, 4, in_seconds=True)
    marks.due(250)
    others.go_on(marks.state(), 250, 7.0, 0)
    others.passed = marks.passed
    assert [second for second in range(7, 30) if others.due(second)] == [10, 15] and others.total == 5 + 2 + 1


@seeded
@given(end=st.integers(1, 10**7), count=st.integers(1, 100), data=st.data())
def test_every_mark_is_passed_once(end, count, data):
    """Whatever values one looks at, and as often as one looks; the end itself is no mark to wait for."""
    marks = Marks(end, count)
    values = sorted(data.draw(st.lists(st.integers(0, end - 1), max_size=30)))
    passed = 0
    for value in values:
        assert value * count < end * (passed + 1) or marks.next <= value
        passed += marks.due(value)
        assert marks.next > value
        assert marks.due(value) == 0
        assert passed == min(value * count // end, count - 1) == marks.passed
    assert passed + marks.due(10 * end) == count - 1


# ---- lockstep


def single(**ends):
    driver = Clock(progress_mode="inline")
    progress = Lockstep(Ranks(1).comms[0], driver, ends.get("end"), ends.get("seconds"), ends.get("snapshots", 4))
    progress.start()
    progress.begin()
    return driver, progress


def test_lockstep_in_samples():
    driver, progress = single(end=80)
    decisions = []
    while True:
        ended, snapshot = driver.run(progress.decide())
        decisions.append(snapshot)
        if ended:
            break
        progress.advance(10)
    driver.run(progress.finish())
    assert progress.samples == progress.own == 80
    assert decisions == [0, 0, 1, 0, 1, 0, 1, 0, 0]


def test_lockstep_goes_past_an_end_between_two_steps():
    driver, progress = single(end=75)
    while not driver.run(progress.decide())[0]:
        progress.advance(10)
    assert progress.samples == 80


def test_lockstep_counts_all_ranks():
    progress = Lockstep(Ranks(4).comms[2], Clock(progress_mode="inline"), 1000, None, 4)
    progress.start()
    progress.begin()
    progress.advance(16)
    progress.advance(16)
    assert (progress.own, progress.samples) == (32, 128)


def test_lockstep_in_seconds():
    driver, progress = single(seconds=10.0)
    steps, snapshots = 0, []
    while True:
        ended, snapshot = driver.run(progress.decide())
        if snapshot:
            snapshots.append(driver.now - 100)
        if ended:
            break
        driver.now += 0.01
        progress.advance(1)
        steps += 1
    assert 10 <= progress.elapsed() < 10.05
    assert steps == pytest.approx(1000, abs=5)
    for seen, due in zip(snapshots, (2.5, 5.0, 7.5), strict=False):
        assert due <= seen < due + 0.05


class OwnClock(SimulatedDriver):
    """A simulated rank whose clock goes wrong, but for that of rank 0."""

    def clock(self):
        return 1000.0 * self.rank + (1, 50, 0.1)[self.rank] * self.env.now


@pytest.mark.parametrize("seconds", [(0.01, 0.01, 0.01), (0.01, 0.002, 0.009)])
def test_lockstep_ranks_end_at_the_same_step(seconds):
    """In seconds rank 0 decides; the clocks of the others do not matter."""
    ranks = Ranks(3, random=np.random.default_rng(1), driver=OwnClock)
    everyone = [Lockstep(comm, driver, None, 1.0, 2) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]

    def train(rank):
        progress, snapshots = everyone[rank], []
        progress.start()
        progress.begin()
        while True:
            ended, snapshot = yield from progress.decide()
            snapshots.append((progress.step, snapshot))
            if ended:
                return progress.step, [step for step, due in snapshots if due]
            yield Delay(seconds[rank])
            progress.advance(1)

    results = ranks.finish([train(rank) for rank in range(3)])
    assert results[0] == results[1] == results[2]
    assert results[0][0] == pytest.approx(100, abs=3)
    assert results[0][1] == [pytest.approx(50, abs=3)]


# ---- free-running


def free_running(ranks):
    return [FreeRunning(comm, driver, 3000, None, 4) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_free_running_ranks_agree_on_the_total(n, seed):
    random = np.random.default_rng(seed)
    ranks = Ranks(n, random=random)
    everyone = free_running(ranks)
    speeds = random.uniform(0.1, 1, n)
    if seed % 2:
        speeds[0] = 0.01  # the rank that adds up is the last to end
    seen = [0] * n

    def train(progress, speed):
        progress.start()
        progress.begin()
        while not (yield from progress.decide())[0]:
            yield Delay(random.exponential(1e-3 / speed))
            progress.advance(8)
        yield from progress.finish()

    def check():
        for rank, progress in enumerate(everyone):
            assert progress.samples >= seen[rank]  # it never goes back
            assert progress.samples <= sum(each.own for each in everyone)  # nor ahead of the truth
            seen[rank] = progress.samples

    ranks.finish([train(progress, speed) for progress, speed in zip(everyone, speeds, strict=True)], after=check)
    total = sum(progress.own for progress in everyone)
    assert total >= 3000
    assert [progress.samples for progress in everyone] == [total] * n


def test_nobody_waits_for_the_total():
    """Reports and answers go on behind the training: a rank's steps take their own time and nothing more."""
    ranks = Ranks(3, spec=network_of(latency="70 ms"))
    everyone = free_running(ranks)

    def train(progress):
        progress.start()
        progress.begin()
        steps = 0
        while not (yield from progress.decide())[0]:
            yield Delay(0.01)
            progress.advance(8)
            steps += 1
        return steps, progress.driver.clock()

    for steps, time in ranks.finish([train(progress) for progress in everyone]):
        assert time == pytest.approx(0.01 * steps, rel=1e-9)


def test_reports_are_rare():
    ranks = Ranks(2)
    comm = ranks.comms[1]
    progress = FreeRunning(comm, ranks.drivers[1], 1_000_000, None, 4)
    progress.start()
    progress.begin()
    for _ in range(60):
        ranks.at_once(1, lambda: progress.advance(8))
    assert comm.traffic.messages.sum() == 0  # 480 samples, and 500 make a report
    for _ in range(4):
        ranks.at_once(1, lambda: progress.advance(8))
    assert comm.traffic.messages.tolist() == [1, 0]


def test_reports_that_have_been_received_are_let_go():
    ranks = Ranks(2)
    progress = [Counted(comm, driver, 3000, None, 4) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]
    for each in progress:
        each.start()
        each.begin()
    for _ in range(250):
        ranks.at_once(1, lambda: progress[1].advance(8))
        ranks.settle()
    assert progress[0].samples >= 1900 and len(progress[1]._sending) <= 2


def test_one_schedule_receives_reports_after_each_rest():
    """Two schedules would receive into one array. A regrouping abandons the schedule, so the next one begins anew."""
    ranks = Ranks(2)
    driver, started = ranks.drivers[0], []
    start = driver.start
    driver.start = lambda schedule: started.append(schedule.__name__) or start(schedule)
    progress = Counted(ranks.comms[0], driver, 3000, None, 4)
    progress.start()
    for _ in range(3):
        progress.begin()
    assert started == ["_learn"]
    progress.go_on(ranks.comms[0], SimpleNamespace(counts=np.array([8, 16]), marks=0))
    progress.begin()
    assert started == ["_learn", "_learn"] and progress.samples == 24


@pytest.mark.parametrize(("before", "after"), [(FreeRunning, Counted), (Counted, FreeRunning), (Counted, Counted)])
def test_a_run_goes_on_from_a_checkpoint_with_spares_and_without(before, after):
    first, second = (
        [kind(comm, driver, 3000, None, 4, 4) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]
        for kind, ranks in ((before, Ranks(2)), (after, Ranks(2)))
    )
    for rank, (one, other) in enumerate(zip(first, second, strict=True)):
        one.advance(8 * (rank + 1))
        other.restore(one.state([0, 1]))
        assert other.own == 8 * (rank + 1) and other.batches == 2 * (rank + 1)
