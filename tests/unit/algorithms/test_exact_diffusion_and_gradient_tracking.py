"""Exact diffusion and gradient tracking: dense references, what they keep, and that they reach the optimum of data that
differ between the ranks, which D-PSGD does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.exact_diffusion import ExactDiffusion, ExactDiffusionOptions
from grsgd.comm.topologies import topology
from grsgd.comm.topologies.topology import TopologyError
from grsgd.models import mixing
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import STEPS, Job, M, Problem, Reference, random_speeds
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded

STILL = Problem(skew=0.5, is_still=True)
PLAIN = {"momentum": 0.0, "weight_decay": 0.0}
NAMES = ["exact_diffusion", "gradient_tracking"]


class Diffusing(Reference):
    def __init__(self, n, graph):
        super().__init__(n)
        self.W = (np.eye(n) + topology.build(graph, n).matrix(0)) / 2
        self.psi = None

    def step(self, step):
        before = self.X.copy()
        super().step(step)
        psi = self.X.copy()
        phi = psi if self.psi is None else psi + before - self.psi
        self.X, self.psi = self.W @ phi, psi


class Tracking(Reference):
    def __init__(self, n, graph):
        super().__init__(n)
        self.topology = topology.build(graph, n)
        self.Y, self.last = np.zeros_like(self.X), np.zeros_like(self.X)

    def step(self, step):
        W, before = self.topology.matrix(step), self.X.copy()
        for rank in range(len(self.X)):
            self.gradient(rank, step)
        self.Y = W @ self.Y + self.G - self.last
        self.last, self.G = self.G, self.Y
        for rank in range(len(self.X)):
            self.update(rank)
        self.X += (W - np.eye(len(W))) @ before
        self.G = np.zeros_like(self.X)


REFERENCES = {"exact_diffusion": Diffusing, "gradient_tracking": Tracking}


@pytest.mark.parametrize("graph", ["ring", "full", "torus"])
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n in (1, 4), [1, 2, 3, 4, 6]))
@pytest.mark.parametrize("name", NAMES)
def test_against_a_dense_reference(name, n, graph):
    reference = REFERENCES[name](n, graph)
    for step in range(STEPS):
        reference.step(step)
    job = Job(name, n, random_speeds(n), random=np.random.default_rng(n), topology=graph).train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert np.abs(job.average().X - reference.X.mean(0)).max() < 1e-12


@pytest.mark.parametrize("graph", ["directed-ring", "exponential", "one-peer-exponential", "base-2", "base-3"])
def test_trackers_follow_on_graphs_that_are_directed_or_take_turns(graph):
    """On some a rank has no neighbour in some steps."""
    reference = Tracking(5, graph)
    for step in range(STEPS):
        reference.step(step)
    job = Job("gradient_tracking", 5, random_speeds(5), topology=graph).train()
    assert np.abs(job.X - reference.X).max() < 1e-12


def test_trackers_sum_to_the_gradients():
    job = Job("gradient_tracking", 5, random_speeds(1), weight_decay=0.0).train()
    trackers, gradients = (
        sum(getattr(algorithm, name).tensor.numpy() for algorithm in job.algorithms) for name in ("y", "g")
    )
    assert np.abs(trackers - gradients).max() < 1e-12 and np.abs(gradients).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_of_ranks_that_differ_is_reached_at_a_linear_rate(name):
    """D-PSGD stays away from it, by as much as the learning rate is large."""

    def away(algorithm, steps):
        job = Job(algorithm, 4, problem=STILL, rate=0.02, **PLAIN).train(steps)
        return np.abs(job.X - STILL.optimum(4)).max()

    early, later, last = (away(name, steps) for steps in (100, 300, 600))
    assert later < early / 10 and last < later / 30
    dpsgd = away("dpsgd", 300)
    assert dpsgd > 0.01 > 10 * last and away("dpsgd", 600) == pytest.approx(dpsgd, rel=0.1)


@pytest.mark.parametrize("name, factor", [("exact_diffusion", 1), ("gradient_tracking", 2)])
@pytest.mark.parametrize("n, neighbours", [(2, 1), (5, 2)])
def test_bytes(name, factor, n, neighbours):
    assert Job(name, n).train().sent() == factor * n * neighbours * M * STEPS


@pytest.mark.parametrize("graph", ["base-2", "one-peer-exponential"])
def test_trackers_reach_the_optimum_on_graphs_that_take_turns(graph):
    job = Job("gradient_tracking", 5, problem=STILL, rate=0.01, topology=graph, **PLAIN).train(1500)
    assert np.abs(job.X - STILL.optimum(5)).max() < 1e-5


@pytest.mark.parametrize("name", [*NAMES, "relaysgd", "diloco", "noloco", "choco_sgd", "dpsgd", "sgp", "local_sgd"])
def test_an_algorithm_made_anew_in_the_middle_of_a_run_keeps_equal_models(name):
    """After a death all have the same model, and the number of steps that were taken before."""
    job = Job(name, 5, rate=0.0)
    for algorithm in job.algorithms:
        algorithm.k = 7
    before = job.X.copy()
    assert np.abs(job.train(12).X - before).max() < 1e-14


def test_a_gradient_that_a_rank_does_not_have_is_zero():
    job = Job("gradient_tracking", 2, **PLAIN)
    for algorithm in job.algorithms:
        algorithm.replica.model.set_gradients(0)
    missing, there = (algorithm.replica.trained[0] for algorithm in job.algorithms)
    missing.grad = None
    for algorithm in job.algorithms:
        list(algorithm.update_tracker())  # gradients of one memory need no waiting
    assert (missing.grad == 0).all() and (there.grad != 0).any()


@pytest.mark.parametrize(
    "graph, words",
    [
        ("one-peer-exponential", "graph that changes from step to step; the graph must be the same in every step"),
        ("directed-ring", "weights 0 of rank 1 at rank 0 and 0.5 back are not equal"),
    ],
)
def test_graphs_that_exact_diffusion_is_not_for(graph, words):
    with pytest.raises(TopologyError, match=f"^topology {graph}: {words}"):
        ExactDiffusion.check(ExactDiffusionOptions(topology=graph), 4)


class TestExactDiffusion(AlgorithmTests):
    algorithm = "exact_diffusion"


class TestGradientTracking(AlgorithmTests):
    algorithm, options = "gradient_tracking", {"topology": "full"}


@seeded
@given(
    name=st.sampled_from(NAMES),
    n=st.integers(1, 6),
    steps=st.integers(1, 10),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_ends_with_nothing_left(name, n, steps, eager_bytes, seed):
    spec, random = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed)
    job = Job(name, n, random_speeds(seed), spec, random).train(steps).average()
    assert job.nothing_is_left() and (job.X == job.X[0]).all()


def test_the_loop_of_a_tracker_is_compiled_before_the_first_step():
    mixing._following.cache_clear()
    Job("gradient_tracking", 2)
    assert mixing._following().signatures
