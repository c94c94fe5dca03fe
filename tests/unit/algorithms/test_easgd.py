"""Elastic averaging in simulated time, against dense references."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grsgd.algorithms.easgd import EASGDOptions
from grsgd.simulator.compute import ComputeTime
from grsgd.testing.quadratic import (
    MOMENTUM,
    RATE,
    SHIFTED,
    STEPS,
    WEIGHT_DECAY,
    Quadratic,
    in_order_of_time,
    shifted_job,
)
from tests.support.seeded import seeded


def centre(job):
    return job.algorithms[0].c.array.copy()


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("alpha", [None, 0.3])
def test_server_against_a_dense_reference(n, period, alpha):
    """Without latency an exchange is over at once: x and c move towards each other, by alpha."""
    slowdown = {i: 1 + i / 100 for i in range(n)}  # never two steps end at the same time
    job = shifted_job("easgd", n, ComputeTime(1.0, slowdown=slowdown), period=period, alpha=alpha).train()
    X, V, c = SHIFTED.initial(n), np.zeros((n, SHIFTED.size)), SHIFTED.initial(1)[0]
    k, staleness = [0] * n, Counter()
    for i, step in in_order_of_time(slowdown):
        k[i] += 1
        V[i] = MOMENTUM * V[i] + X[i] - SHIFTED.target(i, step) + WEIGHT_DECAY * X[i]
        X[i] -= RATE * V[i]
        if (step + 1) % period == 0:
            d = (0.9 / n if alpha is None else alpha) * (X[i] - c)
            X[i] -= d
            c += d
            if i:
                staleness[k[0] - k[i]] += 1
    assert job.algorithms[0].staleness == staleness
    assert np.abs(job.X - X).max() < 1e-12
    assert np.abs(centre(job) - c).max() < 1e-12
    assert job.sent() == 2 * job.M * (n - 1) * (STEPS // period)  # rank 0 has the centre at hand
    assert np.abs(job.average().X - c).max() < 1e-12


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("final", ["centre", "average"])
def test_allreduce_against_a_dense_reference(n, period, final):
    job = shifted_job("easgd", n, ComputeTime(1e-3, 0.5), 1, period=period, centre="allreduce", final=final).train()
    assert all(rank.traits.synchronous for rank in job.algorithms) and not type(job.algorithms[0]).traits.synchronous
    X, V, c = SHIFTED.initial(n), np.zeros((n, SHIFTED.size)), SHIFTED.initial(1)[0]
    for step in range(STEPS):
        V = MOMENTUM * V + X - np.array([SHIFTED.target(i, step) for i in range(n)]) + WEIGHT_DECAY * X
        X = X - RATE * V
        if (step + 1) % period == 0:
            D = 0.9 / n * (X - c)
            X, c = X - D, c + D.sum(0)
    assert np.abs(job.X - X).max() < 1e-12
    assert all(np.array_equal(rank.c.array, centre(job)) for rank in job.algorithms)
    assert np.abs(centre(job) - c).max() < 1e-12
    assert job.sent() == 2 * (n - 1) * job.M * (STEPS // period)
    assert all(rank.staleness == {0: (n - 1) * (STEPS // period)} for rank in job.algorithms)
    assert np.abs(job.average().X - (c if final == "centre" else X.mean(0))).max() < 1e-12


def test_final_average():
    job = shifted_job("easgd", 3, final="average").train()
    mean = job.X.mean(0)
    assert np.abs(job.average().X - mean).max() < 1e-12


@pytest.mark.parametrize("period", [1, 3])
def test_threshold_zero_is_a_fixed_period(period):
    compute = ComputeTime(1e-3, 0.7)
    fixed = shifted_job("easgd", 4, compute, 3, period=period).train(40)
    adaptive = shifted_job("easgd", 4, compute, 3, adaptive=True, threshold=0.0, min_interval=period).train(40)
    assert np.array_equal(fixed.trajectories, adaptive.trajectories)
    assert np.array_equal(centre(fixed), centre(adaptive)) and fixed.sent() == adaptive.sent()


@seeded
@given(
    n=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    sigma=st.sampled_from([0.0, 0.3, 1.5]),
    latencies=st.sampled_from([None, 1, 2]),
    slow=st.integers(0, 1),
    options=st.sampled_from(
        [
            {"period": 1},
            {"period": 7, "alpha": 1.0},
            {"adaptive": True, "threshold": 0.1, "max_interval": 12},
            {"adaptive": True, "target_rate": 0.2, "max_interval": 15},
            {"adaptive": True, "threshold": 0.1, "max_interval": 12, "metric": "layerwise"},
        ]
    ),
)
def test_what_a_model_loses_goes_to_the_centre(n, seed, sigma, latencies, slow, options):
    """Unequal ranks, no gradients: the sum of all models and the centre stays, and no rank hangs."""
    steps = np.random.default_rng(seed).integers(0, 40, n).tolist()
    job = shifted_job("easgd", n, ComputeTime(1e-3, sigma, seed, {slow: 5.0}), latencies, rate=0.0, **options)
    job.scatter()
    lags = [0]

    def observe(rank):
        if rank.options.adaptive:
            lags.append(rank.k - rank.trigger.k_last.min() - rank.options.max_interval)

    start = job.X
    job.train(steps, after_step=observe)
    assert max(lags) <= 0 and not job.ranks.fabric.under_way
    total = start.sum(0) + start[0]  # the centre began as rank 0's model
    assert np.abs(job.X.sum(0) + centre(job) - total).max() < 1e-12
    by_workers = sum(rank.exchanges for rank in job.algorithms[1:])
    if options.get("metric") != "layerwise":
        assert job.sent() == 2 * job.M * by_workers
    assert sum(job.algorithms[0].staleness.values()) == by_workers


@seeded
@given(n=st.integers(2, 6), seed=st.integers(0, 100), period=st.integers(1, 5))
def test_elastic_symmetry_of_the_allreduce(n, seed, period):
    job = shifted_job("easgd", n, ComputeTime(1e-3, 1.0, seed), 1, rate=0.0, period=period, centre="allreduce")
    job.scatter()
    for rank in job.algorithms[1:]:
        rank.start = started_with(rank, job.algorithms[0].x.array.copy())
    total = job.X.sum(0) + job.X[0]
    job.train(10)
    assert np.abs(job.X.sum(0) + centre(job) - total).max() < 1e-12


def mean_of_snapshots(job):
    """What the curve shows of a moment: the mean of all ranks' snapshots by weight."""
    weights = [rank.weight for rank in job.algorithms]
    snapshots = [rank.snapshot()[0].numpy() for rank in job.algorithms]
    return np.average(snapshots, axis=0, weights=weights)


@pytest.mark.parametrize("centre", ["server", "allreduce"])
@pytest.mark.parametrize("n", [2, 3])
def test_snapshots_are_of_the_model_that_is_the_result(n, centre):
    """At any moment, and after the final average, which makes it the model of all."""
    job = shifted_job("easgd", n, ComputeTime(1e-3, 1.0, 3), 1, period=4, centre=centre)
    apart = []

    def compare(rank):
        assert np.array_equal(mean_of_snapshots(job), job.algorithms[0].c.array)
        apart.append(np.abs(job.X.mean(0) - job.algorithms[0].c.array).max())

    job.train(after_step=compare)
    assert max(apart) > 1e-3, "the centre is not the average of the models"
    c = job.algorithms[0].c.array.copy()
    assert np.array_equal(mean_of_snapshots(job), c)
    job.average()
    assert np.array_equal(mean_of_snapshots(job), c) and np.array_equal(job.X, [c] * n)


@pytest.mark.parametrize("centre", ["server", "allreduce"])
def test_snapshots_of_the_average_where_that_is_the_result(centre):
    job = shifted_job("easgd", 3, ComputeTime(1e-3, 1.0, 3), 1, period=4, centre=centre, final="average").train()
    mean = mean_of_snapshots(job)
    assert np.abs(mean - job.X.mean(0)).max() < 1e-12
    assert np.abs(job.average().X - mean).max() < 1e-12


def started_with(rank, c):
    """A start in which the centre is ``c``, as if all models had been equal."""
    start = rank.start

    def starts():
        start()
        rank.c.array[:] = c

    return starts


def test_a_slow_server_rank_still_serves():
    job = shifted_job("easgd", 3, ComputeTime(1e-3, slowdown={0: 1000.0}), period=1)
    ends = {}
    job.train([2, 100, 100], after_step=lambda rank: ends.__setitem__(rank.comm.rank, rank.driver.clock()))
    assert ends[1] == pytest.approx(0.1) and ends[2] == pytest.approx(0.1)


@pytest.mark.parametrize("options", [{}, {"centre": "allreduce"}, {"adaptive": True}, {"final": "average"}])
def test_one_rank_is_plain_sgd(options):
    job = shifted_job("easgd", 1, **options).train().average()
    model = Quadratic(0, SHIFTED)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    assert np.array_equal(job.X[0], model.x.detach().numpy())
    assert job.algorithms[0].comm.traffic.headers.sum() == job.sent() == 0


def test_an_adaptive_allreduce_is_refused():
    with pytest.raises(ValidationError, match='adaptive = true needs centre = "server"'):
        EASGDOptions(adaptive=True, centre="allreduce")
