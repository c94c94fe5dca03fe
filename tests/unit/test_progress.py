"""How far a run is: marks, ranks in lockstep, ranks that run free."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_comm import Network, drivers, finish, seeded

from grsgd.comm.driver import Driver
from grsgd.progress import FreeRunning, Lockstep, Marks


class Clock(Driver):
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
        assert marks.due(value) == 0
        assert passed == min(value * count // end, count - 1) == marks.passed
    assert passed + marks.due(10 * end) == count - 1


# ---- lockstep


def single(**ends):
    network = Network(1)
    driver = Clock(progress="inline")
    progress = Lockstep(network.comms[0], driver, ends.get("end"), ends.get("seconds"), ends.get("snapshots", 4))
    progress.start()
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
    network = Network(4)
    progress = Lockstep(network.comms[2], Clock(progress="inline"), 1000, None, 4)
    progress.start()
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


def test_lockstep_ranks_end_at_the_same_step():
    """In seconds rank 0 decides; the clocks of the others do not matter."""
    network = Network(3, seed=1)
    clocks = [Clock(rank, progress="inline") for rank in range(3)]
    everyone = [Lockstep(comm, clock, None, 1.0, 2) for comm, clock in zip(network.comms, clocks, strict=True)]
    for speed, (clock, progress) in enumerate(zip(clocks, everyone, strict=True)):
        clock.now = 1000.0 * speed
        progress.start()

    def train(rank):
        snapshots = []
        while True:
            ended, snapshot = yield from everyone[rank].decide()
            snapshots.append((everyone[rank].step, snapshot))
            if ended:
                return everyone[rank].step, [step for step, due in snapshots if due]
            clocks[rank].now += (0.01, 0.5, 0.001)[rank]
            everyone[rank].advance(1)

    results = finish(network, clocks, [train(rank) for rank in range(3)])
    assert results[0] == results[1] == results[2]
    assert results[0][0] == pytest.approx(100, abs=3)


# ---- free-running


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_free_running_ranks_agree_on_the_total(n, seed):
    network = Network(n, seed)
    everyone = [
        FreeRunning(comm, driver, 3000, None, 4) for comm, driver in zip(network.comms, drivers(n), strict=True)
    ]
    random = np.random.default_rng(seed)
    speeds = random.uniform(0.1, 1, n)
    if seed % 2:
        speeds[0] = 0.01  # the rank that adds up is the last to end
    for progress in everyone:
        progress.start()
    training, computing = set(range(n)), set()
    finishing = {}
    seen = [0] * n
    for _ in range(200_000):
        if len(finishing) == n and all(handle.Test() for handle in finishing.values()):
            break
        network.deliver()
        rank = int(random.choice(n, p=speeds / speeds.sum()))
        progress = everyone[rank]
        everyone[random.integers(n)].driver.poll()  # also in the middle of a step
        assert progress.samples >= seen[rank]  # it never goes back
        assert progress.samples <= sum(each.own for each in everyone)  # nor ahead of the truth
        seen[rank] = progress.samples
        if rank in computing:
            progress.advance(8)
            computing.remove(rank)
        elif rank in training:
            ended, _ = progress.driver.run(progress.decide())
            if ended:
                training.remove(rank)
                finishing[rank] = progress.driver.start(progress.finish())
            else:
                computing.add(rank)
    total = sum(progress.own for progress in everyone)
    assert total >= 3000
    assert [progress.samples for progress in everyone] == [total] * n


def test_reports_are_rare():
    network = Network(2)
    progress = FreeRunning(network.comms[1], Driver(progress="inline"), 1_000_000, None, 4)
    progress.start()
    for _ in range(60):
        progress.advance(8)
        progress.driver.poll()
    assert network.comms[1].traffic.messages.sum() == 0  # 480 samples, and 500 make a report
    for _ in range(4):
        progress.advance(8)
        progress.driver.poll()
    assert network.comms[1].traffic.messages.tolist() == [1, 0]
