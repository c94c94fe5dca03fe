import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.seeding import Purpose, generator
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded

SEED = 7


def pairs(n: int, number: int) -> np.ndarray:
    """The matrix that averages pairs of ranks in a round."""
    order = generator(Purpose.PAIRS, SEED, number).permutation(n)
    W = np.eye(n)
    for i, j in zip(order[::2], order[1::2], strict=False):
        W[[i, i, j, j], [i, j, i, j]] = 0.5
    return W


class Pairs(Reference):
    """As the paper has it: pseudo-gradients and models averaged by themselves."""

    def __init__(self, n, H, outer_lr=0.7, outer_momentum=0.5, pull=1.0):
        super().__init__(n)
        self.H, self.beta, self.alpha, self.gamma = H, outer_lr, outer_momentum, pull
        self.slow, self.u = self.X.copy(), np.zeros_like(self.X)

    def step(self, step):
        super().step(step)
        number, rest = divmod(step + 1, self.H)
        if rest:
            return
        W = pairs(len(self.X), number)
        change = self.X - self.slow
        self.u = self.alpha * self.u + self.beta * W @ change - self.gamma * (self.slow - W @ self.slow)
        self.slow = self.slow + self.u
        self.X = self.slow.copy()


OPTIONS = [{}, {"outer_lr": 1.0, "outer_momentum": 0.0}, {"outer_lr": 0.4, "outer_momentum": 0.3, "pull": 1.7}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n in (1, 4, 5), [1, 2, 3, 4, 5]))
def test_against_a_dense_reference(n, options):
    reference = Pairs(n, 4, **options)
    job = Job("noloco", n, random_speeds(n), random=np.random.default_rng(n), H=4, **options)
    for step in range(STEPS):
        reference.step(step)
    assert np.abs(job.train().X - reference.X).max() < 1e-12


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_all_meet_all_in_some_round_and_pairs_are_the_same_everywhere(n):
    job, met = Job("noloco", n), set()
    for number in range(200):
        partners = [algorithm.partner(number) for algorithm in job.algorithms]
        assert [partners[j] for j in partners] == list(range(n))
        assert sum(i == j for i, j in enumerate(partners)) == n % 2
        met |= {(i, j) for i, j in enumerate(partners) if i != j}
    assert len(met) == n * (n - 1)


@pytest.mark.parametrize("H", [1, 3])
def test_without_an_outer_step_two_ranks_are_local_sgd(H):
    ours = Job("noloco", 2, H=H, outer_lr=1.0, outer_momentum=0.0).train()
    assert np.abs(ours.X - Job("local_sgd", 2, H=H).train().X).max() < 1e-14


def test_the_mean_moves_as_if_all_were_averaged():
    """Whatever the pairs: here without gradients, from models that differ; and they come together."""
    job = Job("noloco", 6, rate=0.0, H=1)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.x.tensor[:] = rank

    def spread(X):
        return np.abs(X - X.mean(0)).max()

    job.train(60)
    assert np.abs(job.X.mean(0) - 2.5).max() < 1e-12 and spread(job.X) < 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bytes(n):
    job = Job("noloco", n, H=5).train()
    assert job.sent() == STEPS // 5 * (n - n % 2) * M


def test_waits_for_the_partner_alone():
    """Of a slow rank's pair the other one is late; who has not met it is not."""
    job = Job("noloco", 4, straggler(4), H=4).train(4)
    slow = job.algorithms[0].partner(1)
    ends = [end[-1] for end in job.ends]
    assert [ends[rank] for rank in range(4)] == [16.0 if rank in (0, slow) else 4.0 for rank in range(4)]


@pytest.mark.parametrize("pull, momentum", [(0.5, 0.5), (2.5, 0.5), (0.1, 0.3), (2.0, 0.0)])
def test_a_pull_that_does_not_converge_is_refused(pull, momentum):
    with pytest.raises(ValueError, match=f"pull = {pull:g}: must be between outer_momentum = {momentum:g} and "):
        Job("noloco", 2, pull=pull, outer_momentum=momentum)


class TestNoLoCo(AlgorithmTests):
    algorithm, options = "noloco", {"H": 3, "outer_momentum": 0.3}


@seeded
@given(n=st.integers(1, 6), steps=st.integers(1, 14), H=st.integers(1, 5), seed=st.integers(0, 1000))
def test_ends_with_nothing_left(n, steps, H, seed):
    random = np.random.default_rng(seed)
    job = Job("noloco", n, random_speeds(seed), network_of(), random, H=H)
    job.train(steps).average()
    assert job.nothing_is_left()
    assert (job.X == job.X[0]).all()
