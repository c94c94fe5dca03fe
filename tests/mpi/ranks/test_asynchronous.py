"""Local SGD, LASGD, SGP, GoSGD and AD-PSGD with one slow rank: what must hold in whatever order messages arrive."""

import time

import numpy as np
import pytest
import torch

from grsgd.comm import backend
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.mailbox import ModelMessage
from grsgd.models.flat import Flat
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, RATE, SIZE, STEPS, WEIGHT_DECAY
from tests.support.real_ranks import finish, models, nothing_is_left, start, take_step

pytestmark = pytest.mark.ranks(2, 3, 4, 5)

SLOW_SECONDS = 2e-3


def train(algorithm, steps):
    """Rank 0 is slow. Returns what this rank has learnt: the sum of its updates."""
    update, x = algorithm.update, algorithm.x.array
    learnt = np.zeros(SIZE)

    def noted():
        before = x.copy()
        update()
        learnt[:] += x - before

    algorithm.update = noted
    for step in range(steps):
        take_step(algorithm, step, lambda: time.sleep(SLOW_SECONDS * (algorithm.comm.rank == 0)))
    return learnt


def unequal(world):
    """Steps of this rank: the slow one takes fewer, and all end at different times."""
    return 10 if world.rank == 0 else 40 + 10 * world.rank


def scattered(world, algorithm):
    """Give each rank a model of its own; returns their mean."""
    algorithm.x.array[:] = np.random.default_rng(world.rank).standard_normal(SIZE)
    return models(world, algorithm).mean(0)


# ---- local_sgd


@pytest.mark.parametrize("options", [{"H": 3}, {"H": 6, "post_local": 4}, {"H": 4, "beta": 0.7}])
def test_local_sgd(world, driver, options):
    n, H, beta = world.size, options["H"], options.get("beta", 0)
    algorithm = start(world, driver, "local_sgd", **options)
    X, velocity, u = PROBLEM.initial(n), 0, 0
    previous = X[0]
    for step in range(STEPS):
        take_step(algorithm, step, lambda: time.sleep(SLOW_SECONDS * (world.rank == 0)))
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        X = X - RATE * velocity
        if (step + 1) % H == 0 or step < options.get("post_local", 0):
            u = beta * u + (previous - X.mean(0)) / RATE
            previous = previous - RATE * u
            X = np.tile(previous, (n, 1))
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    finish(algorithm)
    rows = models(world, algorithm)
    assert (rows == rows[0]).all()
    assert np.abs(rows - X.mean(0)).max() < 1e-12
    assert nothing_is_left(world, algorithm)


# ---- sgp


def test_sgp(world, driver):
    n = world.size
    algorithm = start(world, driver, "sgp")
    X, velocity = PROBLEM.initial(n), 0
    for step in range(STEPS):
        take_step(algorithm, step, lambda: time.sleep(SLOW_SECONDS * (world.rank == 0)))
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        hop = 2 ** (step % (n - 1).bit_length())
        X = (np.eye(n) + np.roll(np.eye(n), hop, 0)) / 2 @ (X - RATE * velocity)
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    assert algorithm.comm.traffic.sent.sum() == STEPS * (algorithm.replica.nbytes + 8)
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X.mean(0)).max() < 1e-12
    assert nothing_is_left(world, algorithm)


@pytest.mark.parametrize("tau", [1, 3])
def test_overlapped_sgp_loses_nothing(world, driver, tau):
    algorithm = start(world, driver, "sgp", tau=tau)
    learnt = train(algorithm, STEPS)
    driver.run(algorithm.drain())
    weights = np.array(world.allgather(algorithm.w))
    assert abs(weights.sum() - world.size) < 1e-12 and weights.min() > 0
    expected = PROBLEM.initial(1)[0] + np.mean(world.allgather(learnt), 0)
    assert np.abs(weights @ models(world, algorithm) / world.size - expected).max() < 1e-12
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - expected).max() < 1e-12
    assert sum(algorithm.staleness.values()) == STEPS
    assert 0 <= min(algorithm.staleness)
    assert algorithm.comm.traffic.sent.sum() == STEPS * (algorithm.replica.nbytes + 8)
    assert nothing_is_left(world, algorithm)


# ---- gosgd


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("capacity", [1, 2])
def test_gosgd_without_gradient_keeps_the_weighted_mean(world, driver, p, capacity):
    algorithm = start(world, driver, "gosgd", rate=0.0, p=p, inbox_capacity=capacity)
    mean = scattered(world, algorithm)
    train(algorithm, unequal(world))
    assert driver.wait_seconds == 0
    driver.run(algorithm.drain())
    weights = np.array(world.allgather(algorithm.a))
    assert abs(weights.sum() - world.size) < 1e-12 and weights.min() > 0
    assert np.abs(weights @ models(world, algorithm) / world.size - mean).max() < 1e-12
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - mean).max() < 1e-12
    traffic = algorithm.comm.traffic
    assert traffic.sent.sum() == traffic.messages.sum() * (algorithm.replica.nbytes + 8)
    assert nothing_is_left(world, algorithm)


def test_messages_that_mpi_counts_in_words(world, driver, monkeypatch):
    """As it does those above 2 GiB."""
    monkeypatch.setattr(backend, "MAX_ELEMENTS", 20)
    posted = backend.countable(ModelMessage(Flat.zeros(SIZE, torch.float64, torch.device("cpu"))).buffer)
    assert (posted.dtype, posted.size) == (np.int64, SIZE + 2)
    test_gosgd_without_gradient_keeps_the_weighted_mean(world, driver, 1.0, 1)


# ---- adpsgd


@pytest.mark.parametrize("graph", ["ring", "full"])
@pytest.mark.parametrize("merge", ["average", "delta"])
def test_adpsgd_without_gradient_keeps_the_mean(world, driver, merge, graph):
    algorithm = start(world, driver, "adpsgd", rate=0.0, merge=merge, topology=graph)
    mean = scattered(world, algorithm)
    train(algorithm, unequal(world))
    assert driver.wait_seconds == 0
    driver.run(algorithm.drain())
    assert np.abs(models(world, algorithm).mean(0) - mean).max() < 1e-12
    exchanges = np.array(world.allgather(algorithm.exchanges))
    assert exchanges[1::2].sum() == exchanges[::2].sum() > 0
    traffic = algorithm.comm.traffic
    assert traffic.sent.sum() == algorithm.exchanges * algorithm.replica.nbytes
    sent = np.array(world.allgather(traffic.sent))
    assert (sent == sent.T).all()
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - mean).max() < 1e-12
    assert nothing_is_left(world, algorithm)


def test_adpsgd_delta_loses_nothing(world, driver):
    algorithm = start(world, driver, "adpsgd", merge="delta")
    learnt = train(algorithm, unequal(world))
    driver.run(algorithm.drain())
    expected = PROBLEM.initial(1)[0] + np.mean(world.allgather(learnt), 0)
    assert np.abs(models(world, algorithm).mean(0) - expected).max() < 1e-12
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - expected).max() < 1e-12


# ---- lasgd


@pytest.mark.parametrize("variant", ALLREDUCE)
def test_lasgd_waits_for_nobody_and_loses_nothing(world, driver, variant):
    algorithm, waited_for = start(world, driver, "lasgd", variant=variant), set()
    wait = driver._wait
    driver._wait = lambda pollable: waited_for.add(str(pollable)) or wait(pollable)
    learnt = train(algorithm, unequal(world))
    driver._wait = wait
    assert waited_for <= {"the end of a copy of the model"}, "no average is waited for"
    driver.run(algorithm.drain())
    expected = PROBLEM.initial(1)[0] + np.mean(world.allgather(learnt), 0)
    assert np.abs(models(world, algorithm).mean(0) - expected).max() < 1e-12
    assert len(set(world.allgather(algorithm.rounds))) == 1
    assert algorithm.rounds > 0
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - expected).max() < 1e-12
    assert sum(algorithm.staleness.values()) == algorithm.rounds
    assert nothing_is_left(world, algorithm)
    if variant == "ring":
        total = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
        assert total == algorithm.rounds * 2 * (world.size - 1) * algorithm.replica.nbytes


@pytest.mark.parametrize(
    "options",
    [
        {"Hmax": 2},
        {"resync": 3},
        {"resync": 1, "warmup": 5},
        {"merge": "cocod", "Hmin": 3, "warmup": 2, "resync": 4},
        {"merge": "anchor", "Hmin": 2, "Hmax": 4, "resync": 5, "warmup": 3},
        {"merge": "overwrite", "Hmax": 3},
    ],
)
def test_lasgd_ends_although_trainers_wait(world, driver, options):
    algorithm = start(world, driver, "lasgd", **options)
    learnt = train(algorithm, unequal(world))
    driver.run(algorithm.drain())
    assert len(set(world.allgather(algorithm.rounds))) == 1
    assert max(algorithm.staleness) <= options.get("Hmax", 100)
    if options.get("merge", "delta") in ("delta", "cocod"):
        expected = PROBLEM.initial(1)[0] + np.mean(world.allgather(learnt), 0)
        assert np.abs(models(world, algorithm).mean(0) - expected).max() < 1e-12
    driver.run(algorithm.average())
    rows = models(world, algorithm)
    assert (rows == rows[0]).all() and np.isfinite(rows).all()
    assert nothing_is_left(world, algorithm)


def test_lasgd_warmup(world, driver):
    """An average after each step, whatever the speeds."""
    algorithm = start(world, driver, "lasgd", warmup=STEPS, Hmin=4)
    X, velocity = PROBLEM.initial(world.size), 0
    for step in range(STEPS):
        take_step(algorithm, step, lambda: time.sleep(SLOW_SECONDS * (world.rank == 0)))
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        X = X - RATE * velocity
        X[:] = X.mean(0)
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X).max() < 1e-12
