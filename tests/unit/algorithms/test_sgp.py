from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.mailbox import ModelMessage
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import models_under_way, network_of
from tests.support.seeded import seeded


def hop(n, step):
    return 2 ** (step % (n - 1).bit_length())


class PushSum(Reference):
    """Every message is merged ``delay`` steps late."""

    def __init__(self, n, delay=0):
        super().__init__(n)
        self.w = np.ones(n)
        self.under_way = deque()
        self.delay = delay

    def step(self, step):
        """``X`` is z here, as between two steps of the algorithm."""
        n = len(self.X)
        z = self.X.copy()
        super().step(step)
        x = self.w[:, None] * z + (self.X - z)
        half = x / 2, self.w / 2
        P = np.roll(np.eye(n), hop(n, step), 0)
        self.under_way.append((P @ half[0], P @ half[1]))
        x, self.w = half
        if len(self.under_way) > self.delay:
            x, self.w = self.merged(x)
        self.X = x / self.w[:, None]

    def merged(self, x):
        y, w = self.under_way.popleft()
        return x + y, self.w + w

    def drain(self):
        x = self.w[:, None] * self.X
        while self.under_way:
            x, self.w = self.merged(x)
        self.X = x / self.w[:, None]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_against_dense_reference(n):
    """Whatever the speeds and latencies, without overlap each message is merged in its step."""
    reference = PushSum(n)
    for step in range(STEPS):
        reference.step(step)
    job = Job("sgp", n, random_speeds(n), random=np.random.default_rng(n)).train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert [algorithm.w for algorithm in job.algorithms] == [1.0] * n
    job.average()
    assert np.abs(job.X - reference.X.mean(0)).max() < 1e-12


@pytest.mark.parametrize(
    "tau, late, delay", [(1, 0.5, 1), (2, 0.5, 1), (2, 1.5, 2), (3, 1.5, 2), (1, 2.5, 1), (2, 4.25, 2)]
)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_overlapped_against_dense_reference(n, tau, late, delay):
    """Messages that take ``late`` steps are merged ``delay`` steps later; waiting makes it tau at most."""
    reference = PushSum(n, delay)
    for step in range(STEPS):
        reference.step(step)
    job = Job("sgp", n, spec=network_of(latency=f"{late} s"), tau=tau).train(drain=False)
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert np.allclose([algorithm.w for algorithm in job.algorithms], reference.w, rtol=0, atol=1e-12)
    for algorithm, driver in zip(job.algorithms, job.ranks.drivers, strict=True):
        assert set(algorithm.staleness) == {delay}
        assert (driver.wait_seconds > 0) == (late > tau)
    reference.drain()
    job.ranks.finish([algorithm.drain() for algorithm in job.algorithms])
    assert not any(algorithm.sending or algorithm.receiving for algorithm in job.algorithms)
    assert np.abs(job.X - reference.X).max() < 1e-12
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - reference.w @ reference.X / n).max() < 1e-12


class Conserved:
    """After each event: the weights, and the sum of all numerators without what has been learnt."""

    def __init__(self, job):
        self.job = job
        self.learnt = 0.0
        self.inside = [False] * job.n
        """Whether the rank's model holds the numerator x and not z = x / w."""
        for algorithm in job.algorithms:
            self.watch(algorithm)
        self.begin = self.total()

    def watch(self, algorithm):
        update, sent, rank = algorithm.update, algorithm.sent, algorithm.comm.rank

        def noted_update():
            before = algorithm.x.array.copy()
            update()
            self.learnt = self.learnt + algorithm.x.array - before

        def inside(hook):
            def schedule():
                self.inside[rank] = True
                yield from hook()
                self.inside[rank] = False

            return schedule

        def noted_sent():
            self.inside[rank] = False  # it waits for what it has sent at the very end
            yield from sent()

        algorithm.update, algorithm.sent = noted_update, noted_sent
        algorithm.step, algorithm.drain = inside(algorithm.step), inside(algorithm.drain)

    def parts(self):
        for algorithm, inside in zip(self.job.algorithms, self.inside, strict=True):
            yield algorithm.w, algorithm.x.array * (1 if inside else algorithm.w)
            for _, received, message in algorithm.receiving:
                if received.Test():
                    yield message.weight, message.x.array
        message = ModelMessage(self.job.algorithms[0].x)
        for sending in models_under_way(self.job.ranks.fabric):
            has_left = sending.complete and not sending.short  # then the sender's buffer is free again
            message.buffer[:] = sending.receiving.array if has_left else sending.array
            yield message.weight, message.x.array.copy()

    def total(self):
        parts = list(self.parts())
        return sum(w for w, _ in parts), sum(x for _, x in parts)

    def check(self):
        w, x = self.total()
        assert abs(w - self.job.n) < 1e-12 * self.job.n
        assert np.abs(x - self.learnt - self.begin[1]).max() < 1e-11


@seeded
@given(
    n=st.integers(2, 6),
    steps=st.integers(1, 15),
    tau=st.integers(0, 4),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_weights_and_sums_at_every_moment(n, steps, tau, eager_bytes, seed):
    spec, random = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed)
    job = Job("sgp", n, lambda *key: 2e-3 * random_speeds(seed)(*key), spec, random, tau=tau)
    conserved = Conserved(job)
    job.train(steps, conserved.check)
    conserved.check()
    assert not any(conserved.inside)
    assert job.nothing_is_left()
    for algorithm in job.algorithms:
        assert sum(algorithm.staleness.values()) == steps
        assert 0 <= min(algorithm.staleness)
    assert job.sent() == n * steps * (M + 8)
    assert job.headers() == n * steps * 8
    mean = sum(x for _, x in conserved.parts()) / n
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-12


def test_memory_is_bounded():
    job = Job("sgp", 3, spec=network_of(latency="2.5 s"), tau=3)

    def check():
        for algorithm in job.algorithms:
            assert len(algorithm.sending) <= 5 and len(algorithm.receiving) <= 4 and len(algorithm.spare) <= 9

    job.train(40, check)


@pytest.mark.parametrize("tau", [0, 2])
def test_one_straggler_slows_all_down(tau):
    job = Job("sgp", 4, straggler(4), tau=tau).train(40)
    assert min(ends[-1] for ends in job.ends) >= 4 * (40 - 2 * (tau + 1))


def test_one_pause_slows_nobody_down_within_tau():
    def seconds(rank, step):
        return 3.0 if (rank, step) == (0, 10) else 1.0

    for tau, waited in ((0, 2.0), (2, 0.0)):
        job = Job("sgp", 4, seconds, tau=tau).train(drain=False)
        assert [driver.wait_seconds for driver in job.ranks.drivers[1:]] == [waited] * 3


def test_a_rank_that_is_stopped_while_it_waits_keeps_z():
    """And not half of it, which is what it has kept of the numerator."""
    job = Job("sgp", 2, spec=network_of(latency="9 s"))
    algorithm, alone = job.algorithms[0], Reference(1)
    job.differentiate(0, 0)
    alone.step(0)
    hook = algorithm.step()
    next(hook)
    hook.close()
    assert np.abs(algorithm.x.array - alone.X[0]).max() < 1e-15
