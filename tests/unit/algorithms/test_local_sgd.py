import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.allreduce import ALLREDUCE
from grsgd.testing.quadratic import RATE, STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded


class Averaging(Reference):
    def __init__(self, n, H, post_local=0, beta=0.0, alpha=1.0):
        super().__init__(n)
        self.H, self.post_local, self.beta, self.alpha = H, post_local, beta, alpha
        self.u, self.previous = 0.0, self.X[0].copy()

    def step(self, step):
        super().step(step)
        if (step + 1) % self.H == 0 or step < self.post_local:
            self.u = self.beta * self.u + (self.previous - self.X.mean(0)) / self.rate
            self.previous = self.previous - self.alpha * self.rate * self.u
            self.X[:] = self.previous


@pytest.mark.parametrize("outer", [{}, {"beta": 0.7}, {"beta": 0.5, "alpha": 0.8}, {"alpha": 1.2}])
@pytest.mark.parametrize("when", [{"H": 1}, {"H": 3}, {"H": 8}, {"H": 6, "post_local": 5}])
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n < 5, [2, 3, 5]))
def test_against_dense_reference(n, when, outer):
    reference = Averaging(n, **when, **outer)
    for step in range(STEPS):
        reference.step(step)
    job = Job("local_sgd", n, random_speeds(n), random=np.random.default_rng(n), **when, **outer).train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    job.average()
    assert np.abs(job.X - reference.X.mean(0)).max() < 1e-12


@pytest.mark.parametrize("variant", ALLREDUCE)
def test_models_and_buffers_are_equal_after_an_average(variant):
    job = Job("local_sgd", 3, statistics=2, H=5, variant=variant)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.replica.buffers.array[:] = rank, 10 * rank
    job.train(5)
    assert (job.X == job.X[0]).all()
    for algorithm in job.algorithms:
        assert np.allclose(algorithm.replica.buffers.array, [1, 10], rtol=0, atol=1e-15)


def test_an_average_under_way_leaves_the_model_alone():
    """A run that is stopped then is evaluated as it is."""
    job, alone = Job("local_sgd", 3, spec=network_of(latency="9 s"), statistics=2, H=1), Reference(3)
    alone.step(0)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.replica.buffers.array[:] = 5
        job.differentiate(rank, 0)
        job.ranks.drivers[rank].start(algorithm.step())
    for now in range(1, 45, 9):  # of the model four messages, one after the other, and of the buffers
        job.ranks.env.run(until=now)
        assert np.abs(job.X - alone.X).max() < 1e-15
        assert all((algorithm.replica.buffers.array == 5).all() for algorithm in job.algorithms)
    job.ranks.settle()
    assert np.abs(job.X - alone.X.mean(0)).max() < 1e-15


@pytest.mark.parametrize("H", [1, 4])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_bytes(n, H):
    job = Job("local_sgd", n, H=H).train()
    assert job.sent() == 2 * (n - 1) * M * STEPS // H


def test_one_average_after_each_of_the_first_steps():
    job = Job("local_sgd", 3, H=100, post_local=4).train(4)
    assert (job.X == job.X[0]).all()
    job = Job("local_sgd", 3, H=100, post_local=4).train(5)
    assert np.abs(job.X - job.X[0]).max() > 1e-3


def test_waits_for_the_slowest():
    job = Job("local_sgd", 4, straggler(4), H=5).train(20)
    assert [ends[-1] for ends in job.ends] == [80.0] * 4
    waited = [driver.wait_seconds for driver in job.ranks.drivers]
    assert waited == [0, 60, 60, 60]


def test_a_learning_rate_of_nothing():
    """A warm-up begins with it, and the outer step divides by it."""
    job = Job("local_sgd", 3, H=1, beta=0.7)
    job.rate = lambda step: RATE if step else 0.0
    job.train(4)
    reference = Averaging(3, H=1, beta=0.7)
    reference.rate = 0.0
    Reference.step(reference, 0)
    reference.rate = RATE
    for step in (1, 2, 3):
        reference.step(step)
    assert np.abs(job.X - reference.X).max() < 1e-12


@seeded
@given(
    n=st.integers(1, 6),
    steps=st.integers(1, 12),
    H=st.integers(1, 5),
    post_local=st.integers(0, 5),
    beta=st.sampled_from([0.0, 0.7]),
    variant=st.sampled_from(sorted(ALLREDUCE)),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_ends_with_nothing_left(n, steps, H, post_local, beta, variant, eager_bytes, seed):
    spec = network_of(eager_bytes=eager_bytes)
    options = dict(H=H, post_local=post_local, beta=beta, variant=variant)
    job = Job("local_sgd", n, random_speeds(seed), spec, np.random.default_rng(seed), **options)
    job.train(steps).average()
    assert job.nothing_is_left()
    assert (job.X == job.X[0]).all()
