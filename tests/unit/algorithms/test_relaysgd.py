import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.relaysgd import neighbours
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import STEPS, Job, M, Problem, Reference, random_speeds
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded

TREES = ["chain", "binary"]


def hops(tree, n) -> np.ndarray:
    """How far each rank is from each other."""
    distance = np.full((n, n), n)
    for i in range(n):
        distance[i, [i, *neighbours(tree, i, n)]] = [0, *[1] * len(neighbours(tree, i, n))]
    for k in range(n):
        distance = np.minimum(distance, distance[:, k, None] + distance[None, k])
    return distance


class Relaying(Reference):
    """Each rank has the mean of all models that can have come: the neighbours' of the same step, and so on."""

    def __init__(self, n, tree):
        super().__init__(n)
        self.ages, self.past = np.maximum(hops(tree, n) - 1, 0), []

    def step(self, step):
        super().step(step)
        self.past.append(self.X.copy())
        for i, row in enumerate(self.ages):
            self.X[i] = np.mean([self.past[step - age][j] for j, age in enumerate(row) if age <= step], axis=0)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n in (1, 5), [1, 2, 3, 5, 8]))
def test_against_a_dense_reference(n, tree):
    reference = Relaying(n, tree)
    for step in range(STEPS):
        reference.step(step)
    job = Job("relaysgd", n, random_speeds(n), random=np.random.default_rng(n), tree=tree).train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert np.abs(job.average().X - reference.X.mean(0)).max() < 1e-12


@pytest.mark.parametrize("tree", TREES)
def test_how_old_models_are(tree):
    n, distance = 6, hops(tree, 6)
    job = Job("relaysgd", n, tree=tree).train()
    for algorithm, row in zip(job.algorithms, distance, strict=True):
        expected = {d - 1: STEPS - d + 1 for d in row if d}
        assert {age: algorithm.staleness[age] for age in expected} == {
            age: times * int((row == age + 1).sum()) for age, times in expected.items()
        }


def test_trees():
    assert [neighbours("chain", rank, 4) for rank in range(4)] == [[1], [0, 2], [1, 3], [2]]
    assert [neighbours("binary", rank, 6) for rank in range(6)] == [[1, 2], [0, 3, 4], [0, 5], [1], [1], [2]]


@pytest.mark.parametrize("n", [2, 5])
def test_bytes(n):
    assert Job("relaysgd", n).train().sent() == 2 * (n - 1) * M * STEPS


def test_ranks_that_differ_reach_the_optimum():
    """D-PSGD stays away from it."""
    problem = Problem(skew=0.5, is_still=True)

    def away(name, steps):
        job = Job(name, 4, problem=problem, rate=0.02, momentum=0.0, weight_decay=0.0).train(steps)
        return np.abs(job.X - problem.optimum(4)).max()

    assert away("relaysgd", 600) < 1e-4 < 1e-2 < away("dpsgd", 600)


class TestRelaySGD(AlgorithmTests):
    algorithm, options = "relaysgd", {"tree": "binary"}


@seeded
@given(
    n=st.integers(1, 7),
    steps=st.integers(1, 10),
    tree=st.sampled_from(TREES),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_ends_with_nothing_left(n, steps, tree, eager_bytes, seed):
    spec, random = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed)
    job = Job("relaysgd", n, random_speeds(seed), spec, random, tree=tree).train(steps).average()
    assert job.nothing_is_left() and (job.X == job.X[0]).all()
