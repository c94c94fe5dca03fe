import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.allreduce import ALLREDUCE
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded


class Outer(Reference):
    """The averages of fragments, and torch's own SGD as the outer optimizer of each."""

    def __init__(self, n, H, outer_lr=0.7, outer_momentum=0.9, fragments=1, delay=0, mix=0.0):
        super().__init__(n)
        self.interval, self.delay, self.mix = H // fragments, delay, mix
        self.fragments = parts(self.X.shape[1], fragments)
        self.outer = [torch.nn.Parameter(torch.tensor(self.X[0][fragment])) for fragment in self.fragments]
        nesterov = outer_momentum > 0
        self.optimizers = [
            torch.optim.SGD([one], outer_lr, momentum=outer_momentum, nesterov=nesterov) for one in self.outer
        ]
        self.under_way = {}

    def step(self, step):
        super().step(step)
        k = step + 1
        self.take_over(k)
        if k % self.interval == 0:
            number = (k // self.interval - 1) % len(self.fragments)
            self.under_way[k + self.delay] = number, self.X[:, self.fragments[number]].mean(0)
        self.take_over(k)

    def take_over(self, k):
        if k not in self.under_way:
            return
        number, mean = self.under_way.pop(k)
        outer, fragment = self.outer[number], self.fragments[number]
        outer.grad = outer.detach() - torch.tensor(mean)
        self.optimizers[number].step()
        self.X[:, fragment] = self.mix * self.X[:, fragment] + (1 - self.mix) * outer.detach().numpy()


STREAMING = [
    {"fragments": 3},
    {"fragments": 2, "delay": 1},
    {"delay": 5, "mix": 0.5},
    {"fragments": 3, "delay": 2, "mix": 0.2},
]
OUTER = [{}, {"outer_lr": 1.0, "outer_momentum": 0.0}, {"outer_lr": 0.4, "outer_momentum": 0.5}]


def parts(size: int, fragments: int) -> list[np.ndarray]:
    """The numbers of the parameters of each fragment."""
    return np.split(np.arange(size), [size * number // fragments for number in range(1, fragments)])


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("when", [{}, *STREAMING])
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n in (1, 3), [1, 2, 3, 5]))
def test_against_a_dense_reference(n, when, outer):
    reference = Outer(n, 6, **when, **outer)
    job = Job("diloco", n, random_speeds(n), random=np.random.default_rng(n), H=6, **when, **outer)
    for step in range(STEPS):
        reference.step(step)
    assert np.abs(job.train().X - reference.X).max() < 1e-12


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_without_an_outer_step_it_is_local_sgd_bit_for_bit(n, H):
    ours = Job("diloco", n, statistics=2, H=H, outer_lr=1.0, outer_momentum=0.0).train()
    assert (ours.X == Job("local_sgd", n, statistics=2, H=H).train().X).all()


@pytest.mark.parametrize("variant", ALLREDUCE)
@pytest.mark.parametrize("streaming", [{}, {"fragments": 5, "delay": 1}])
def test_models_and_buffers_are_equal_after_an_average(variant, streaming):
    job = Job("diloco", 3, statistics=2, H=5, variant=variant, **streaming)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.replica.buffers.array[:] = rank, 10 * rank
    job.train(5 if not streaming else 2)  # of five fragments the first is taken over a step after it was sent
    fragment = parts(job.X.shape[1], streaming.get("fragments", 1))[0]
    assert (job.X[:, fragment] == job.X[:1, fragment]).all()
    for algorithm in job.algorithms:
        assert np.allclose(algorithm.replica.buffers.array, [1, 10], rtol=0, atol=1e-15)


@pytest.mark.parametrize("streaming", [{}, *STREAMING])
@pytest.mark.parametrize("n", [2, 3])
def test_bytes(n, streaming):
    job = Job("diloco", n, H=6, **streaming).train()
    fragments = parts(job.X.shape[1], streaming.get("fragments", 1))
    averages = STEPS // (6 // len(fragments))
    values = sum(len(fragments[number % len(fragments)]) for number in range(averages))
    assert job.sent() == 2 * (n - 1) * values * M // job.X.shape[1]


def test_a_delay_hides_the_time_of_an_average():
    """Messages take a second each; four of them, one after the other, an average."""
    waited = {}
    for delay in (0, 5):
        job = Job("diloco", 3, lambda rank, step: 1.0, network_of(latency="1 s"), H=6, delay=delay).train(29)
        waited[delay] = max(driver.wait_seconds for driver in job.ranks.drivers)
    assert waited == {0: 4 * 4, 5: 0}


def test_a_straggler_is_waited_for_once_it_is_so_many_steps_behind():
    job = Job("diloco", 4, straggler(4), H=5).train(20)
    assert [ends[-1] for ends in job.ends] == [80.0] * 4


def test_an_average_under_way_at_the_end_is_left_out():
    job = Job("diloco", 3, H=4, delay=3, mix=0.3).train(8)
    before = job.X.copy()
    assert job.algorithms[0].due == 11 and job.nothing_is_left()
    assert np.abs(job.average().X - before.mean(0)).max() < 1e-15


def test_statistics_of_the_steps_beside_an_average_are_kept():
    job = Job("diloco", 2, statistics=1, H=4, delay=2)

    def count(algorithm):
        algorithm.replica.buffers.array[:] += 1 + algorithm.comm.rank

    job.train(6, after_step=count)  # sent after the fourth step with three counted, taken over after the sixth
    assert [algorithm.replica.buffers.array[0] for algorithm in job.algorithms] == [4.5 + 3, 4.5 + 6]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"H": 8, "fragments": 3}, "fragments = 3: must divide H = 8"),
        ({"H": 3, "delay": 3}, "delay = 3: must be less than H"),
        ({"H": 8, "fragments": 4, "delay": 3}, "delay = 3: must not be more than H / fragments = 2"),
    ],
)
def test_what_does_not_fit_together(options, words):
    with pytest.raises(ValueError, match=words):
        Job("diloco", 2, **options)


class TestDiLoCo(AlgorithmTests):
    algorithm, options = "diloco", {"H": 4, "delay": 1, "mix": 0.2, "outer_momentum": 0.3}


@seeded
@given(
    n=st.integers(1, 6),
    steps=st.integers(1, 14),
    when=st.sampled_from([(1, 1, 0), (2, 1, 1), (4, 2, 0), (4, 2, 2), (6, 3, 1), (5, 1, 4)]),
    variant=st.sampled_from(sorted(ALLREDUCE)),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_ends_with_nothing_left(n, steps, when, variant, eager_bytes, seed):
    H, fragments, delay = when
    options = dict(H=H, fragments=fragments, delay=delay, variant=variant)
    spec, random = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed)
    job = Job("diloco", n, random_speeds(seed), spec, random, **options)
    job.train(steps).average()
    assert job.nothing_is_left()
    assert (job.X == job.X[0]).all()
