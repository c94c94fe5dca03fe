"""Gossiping and elastic averaging SGD on real MPI."""

import time

import numpy as np
import pytest

from grsgd.comm.pollables import Until
from grsgd.seeding import Purpose, generator
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, RATE, SIZE, STEPS, WEIGHT_DECAY
from tests.support.real_ranks import finish, models, start, take_step


def meet(world, driver):
    """A barrier at which the ranks go on answering each other."""

    def schedule():
        yield world.Ibarrier()

    driver.run(schedule())


def wait_until(driver, condition):
    def schedule():
        yield Until(condition, "the other ranks' messages")

    driver.run(schedule())


def in_turns(world, algorithm, step, after=lambda turn: None):
    """The ranks take their step one after another, so that all runs are alike."""
    for turn in range(world.size):
        if turn == world.rank:
            take_step(algorithm, step)
        meet(world, algorithm.driver)
        after(turn)
        meet(world, algorithm.driver)


class Exchanges:
    """Which exchanges there are when the ranks take turns: the random partners, known to all ranks."""

    def __init__(self, n, period):
        self.n, self.period = n, period
        self.coins = [generator(Purpose.PARTNERS, 7, i) for i in range(n)]
        self.served = [0] * n

    def partner(self, i, step):
        """Whom rank i asks in this step, or None."""
        if self.n == 1 or (step + 1) % self.period:
            return None
        j = [j for j in range(self.n) if j != i][self.coins[i].integers(self.n - 1)]
        self.served[j] += 1
        return j


def gossip_in_turns(world, driver, mode, **options):
    """The models after each step of gossip in which every rank begins an exchange every third step; checked."""
    n, i = world.size, world.rank
    algorithm = start(world, driver, "gossip", mode=mode, **options)
    exchanges = Exchanges(n, 3)
    X, velocity = PROBLEM.initial(n), np.zeros((n, SIZE))
    trajectory = []

    def settle(turn):
        nonlocal X
        velocity[turn] = MOMENTUM * velocity[turn] + PROBLEM.gradients(X, step)[turn] + WEIGHT_DECAY * X[turn]
        X[turn] -= RATE * velocity[turn]
        j = exchanges.partner(turn, step)
        if j is not None:
            W = np.eye(n)
            if mode != "push":
                W[turn, [turn, j]] = 0.5
            if mode != "pull":
                W[j, [turn, j]] = 0.5
            X = W @ X
        wait_until(driver, lambda: algorithm.served == exchanges.served[i])

    for step in range(STEPS):
        in_turns(world, algorithm, step, settle)
        trajectory.append(models(world, algorithm))
        assert np.abs(trajectory[-1] - X).max() < 1e-12
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X.mean(0)).max() < 1e-12
    sent = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
    assert sent == (2 if mode == "pair" else 1) * algorithm.replica.nbytes * sum(exchanges.served)
    return np.array(trajectory)


@pytest.mark.parametrize("mode", ["pair", "pull", "push"])
def test_gossip_in_turns_is_its_dense_reference(world, driver, mode):
    """And so is adaptive gossip with threshold 0, bit for bit the same as with a fixed period."""
    fixed = gossip_in_turns(world, driver, mode, period=3)
    adaptive = gossip_in_turns(world, driver, mode, adaptive=True, threshold=0.0, min_interval=3)
    assert np.array_equal(fixed, adaptive)


OPTIONS = [
    {"period": 1},
    {"period": 4},
    {"adaptive": True, "threshold": 0.3, "max_interval": 10},
    {"adaptive": True, "target_rate": 0.2, "max_interval": 15},
    {"adaptive": True, "threshold": 0.1, "max_interval": 10, "metric": "layerwise"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_pair_gossip_with_unequal_ranks_keeps_the_mean(world, driver, options):
    """One slow rank, different numbers of steps, no gradients."""
    n, slow = world.size, world.rank == world.size - 1
    algorithm = start(world, driver, "gossip", rate=0.0, **options)
    algorithm.x.array[:] = np.random.default_rng(world.rank).standard_normal(SIZE)
    mean = models(world, algorithm).mean(0)
    for step in range(10 if slow else 40 + 10 * world.rank):
        take_step(algorithm, step, lambda: time.sleep(0.01) if slow else None)
        if n > 1 and options.get("adaptive"):
            assert algorithm.k - algorithm.trigger.k_last.min() <= options["max_interval"]
    driver.run(algorithm.drain())
    assert np.abs(models(world, algorithm).mean(0) - mean).max() < 1e-12
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - mean).max() < 1e-12
    begun, served = world.allreduce(algorithm.begun), world.allreduce(algorithm.served)
    assert begun == served and (begun > 0 or n == 1)
    assert sum(algorithm.staleness.values()) == algorithm.begun + algorithm.served
    assert world.allreduce(int(algorithm.comm.traffic.sent.sum())) == 2 * begun * algorithm.replica.nbytes
    assert world.allreduce(int(algorithm.comm.traffic.messages.sum())) == 2 * begun


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("options", OPTIONS)
def test_one_sided_gossip_with_unequal_ranks_ends(world, driver, mode, options):
    slow = world.rank == 0
    algorithm = start(world, driver, "gossip", mode=mode, **options)
    for step in range(10 if slow else 40 + 10 * world.rank):
        take_step(algorithm, step, lambda: time.sleep(0.01) if slow else None)
    finish(algorithm)
    rows = models(world, algorithm)
    assert (rows == rows[0]).all() and np.isfinite(rows).all()
    begun, served = world.allreduce(algorithm.begun), world.allreduce(algorithm.served)
    assert begun == served
    sent, whole_models = world.allreduce(int(algorithm.comm.traffic.sent.sum())), begun * algorithm.replica.nbytes
    assert sent == whole_models or (options.get("metric") == "layerwise" and 0 < sent < whole_models)


@pytest.mark.parametrize("period", [1, 4])
def test_easgd_in_turns_is_its_dense_reference(world, driver, period):
    n = world.size
    algorithm = start(world, driver, "easgd", period=period)
    X, velocity, c = PROBLEM.initial(n), np.zeros((n, SIZE)), PROBLEM.initial(1)[0]

    def settle(turn):
        velocity[turn] = MOMENTUM * velocity[turn] + PROBLEM.gradients(X, step)[turn] + WEIGHT_DECAY * X[turn]
        X[turn] -= RATE * velocity[turn]
        if n > 1 and (step + 1) % period == 0:
            d = 0.9 / n * (X[turn] - c)
            X[turn] -= d
            c[:] += d

    for step in range(STEPS):
        in_turns(world, algorithm, step, settle)
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    sent = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
    assert sent == 2 * algorithm.replica.nbytes * (n - 1) * (STEPS // period)
    finish(algorithm)
    assert np.abs(models(world, algorithm) - (c if n > 1 else X[0])).max() < 1e-12


@pytest.mark.parametrize("period", [1, 4])
def test_easgd_by_allreduce_is_its_dense_reference(world, driver, period):
    n = world.size
    algorithm = start(world, driver, "easgd", period=period, centre="allreduce")
    X, velocity, c = PROBLEM.initial(n), np.zeros((n, SIZE)), PROBLEM.initial(1)[0]
    for step in range(STEPS):
        take_step(algorithm, step)
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        X = X - RATE * velocity
        if n > 1 and (step + 1) % period == 0:
            D = 0.9 / n * (X - c)
            X, c = X - D, c + D.sum(0)
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    sent = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
    assert sent == 2 * (n - 1) * algorithm.replica.nbytes * (STEPS // period)
    finish(algorithm)
    assert np.abs(models(world, algorithm) - (c if n > 1 else X[0])).max() < 1e-12


@pytest.mark.parametrize("slow", [0, -1])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.ranks(2, 3, 4, 5)
def test_easgd_with_unequal_ranks_keeps_models_and_centre(world, driver, slow, options):
    """One slow rank, the server or another one; no gradients."""
    slow = world.rank == slow % world.size
    algorithm = start(world, driver, "easgd", rate=0.0, **options)
    algorithm.x.array[:] = np.random.default_rng(world.rank).standard_normal(SIZE)
    total = models(world, algorithm).sum(0) + PROBLEM.initial(1)[0]
    for step in range(10 if slow else 40 + 10 * world.rank):
        take_step(algorithm, step, lambda: time.sleep(0.01) if slow else None)
    driver.run(algorithm.drain())
    rows = models(world, algorithm)
    driver.run(algorithm.average())
    centre = models(world, algorithm)
    assert (centre == centre[0]).all()
    assert np.abs(rows.sum(0) + centre[0] - total).max() < 1e-12
    by_workers = world.allreduce(algorithm.exchanges if world.rank else 0)
    assert by_workers > 0
    assert world.allreduce(int(algorithm.comm.traffic.sent.sum())) == 2 * by_workers * algorithm.replica.nbytes
