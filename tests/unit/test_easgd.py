"""Elastic averaging in simulated time, against dense references."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from simulated import seeded
from test_gossip import (
    MOMENTUM,
    RATE,
    SIZE,
    STEPS,
    WEIGHT_DECAY,
    Job,
    Quadratic,
    in_order_of_time,
    initial,
    target,
)

from grsgd.algorithms.easgd import EASGDOptions
from grsgd.simulate.compute import ComputeTime


def centre(job):
    return job.ranks[0].c.array.copy()


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("alpha", [None, 0.3])
def test_server_against_a_dense_reference(n, period, alpha):
    """Without latency an exchange is over at once: x and c move towards each other, by alpha."""
    slowdown = {i: 1 + i / 100 for i in range(n)}  # never two steps end at the same time
    job = Job("easgd", n, ComputeTime(1.0, slowdown=slowdown), period=period, alpha=alpha).train()
    X, V, c = initial(n), np.zeros((n, SIZE)), initial(1)[0]
    k, staleness = [0] * n, Counter()
    for i, step in in_order_of_time(slowdown):
        k[i] += 1
        V[i] = MOMENTUM * V[i] + X[i] - target(i, step) + WEIGHT_DECAY * X[i]
        X[i] -= RATE * V[i]
        if (step + 1) % period == 0:
            d = (0.9 / n if alpha is None else alpha) * (X[i] - c)
            X[i] -= d
            c += d
            if i:
                staleness[k[0] - k[i]] += 1
    assert job.ranks[0].staleness == staleness
    assert np.abs(job.models() - X).max() < 1e-12
    assert np.abs(centre(job) - c).max() < 1e-12
    assert job.sent() == 2 * job.M * (n - 1) * (STEPS // period)  # rank 0 has the centre at hand
    assert np.abs(job.average().models() - c).max() < 1e-12


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("final", ["centre", "average"])
def test_allreduce_against_a_dense_reference(n, period, final):
    job = Job("easgd", n, ComputeTime(1e-3, 0.5), 1, period=period, centre="allreduce", final=final).train()
    assert all(rank.synchronous for rank in job.ranks) and not type(job.ranks[0]).synchronous
    X, V, c = initial(n), np.zeros((n, SIZE)), initial(1)[0]
    for step in range(STEPS):
        V = MOMENTUM * V + X - np.array([target(i, step) for i in range(n)]) + WEIGHT_DECAY * X
        X = X - RATE * V
        if (step + 1) % period == 0:
            D = 0.9 / n * (X - c)
            X, c = X - D, c + D.sum(0)
    assert np.abs(job.models() - X).max() < 1e-12
    assert all(np.array_equal(rank.c.array, centre(job)) for rank in job.ranks)
    assert np.abs(centre(job) - c).max() < 1e-12
    assert job.sent() == 2 * (n - 1) * job.M * (STEPS // period)
    assert all(rank.staleness == {0: (n - 1) * (STEPS // period)} for rank in job.ranks)
    assert np.abs(job.average().models() - (c if final == "centre" else X.mean(0))).max() < 1e-12


def test_final_average():
    job = Job("easgd", 3, final="average").train()
    mean = job.models().mean(0)
    assert np.abs(job.average().models() - mean).max() < 1e-12


@pytest.mark.parametrize("period", [1, 3])
def test_threshold_zero_is_a_fixed_period(period):
    compute = ComputeTime(1e-3, 0.7)
    fixed = Job("easgd", 4, compute, 3, period=period).train(40)
    adaptive = Job("easgd", 4, compute, 3, adaptive=True, theta=0.0, kmin=period).train(40)
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
            {"adaptive": True, "theta": 0.1, "kmax": 12},
            {"adaptive": True, "target": 0.2, "kmax": 15},
            {"adaptive": True, "theta": 0.1, "kmax": 12, "metric": "layerwise"},
        ]
    ),
)
def test_what_a_model_loses_goes_to_the_centre(n, seed, sigma, latencies, slow, options):
    """Unequal ranks, no gradients: the sum of all models and the centre stays, and nobody hangs."""
    steps = np.random.default_rng(seed).integers(0, 40, n).tolist()
    job = Job("easgd", n, ComputeTime(1e-3, sigma, seed, {slow: 5.0}), latencies, rate=0.0, **options)
    job.scatter()
    lags = [0]

    def observe(rank):
        if rank.options.adaptive:
            lags.append(rank.k - rank.trigger.k_last.min() - rank.options.kmax)

    start = job.models()
    job.train(steps, observe)
    assert max(lags) <= 0 and not job.simulated.world.under_way
    total = start.sum(0) + start[0]  # the centre began as rank 0's model
    assert np.abs(job.models().sum(0) + centre(job) - total).max() < 1e-12
    by_workers = sum(rank.exchanges for rank in job.ranks[1:])
    if options.get("metric") != "layerwise":
        assert job.sent() == 2 * job.M * by_workers
    assert sum(job.ranks[0].staleness.values()) == by_workers


@seeded
@given(n=st.integers(2, 6), seed=st.integers(0, 100), period=st.integers(1, 5))
def test_elastic_symmetry_of_the_allreduce(n, seed, period):
    job = Job("easgd", n, ComputeTime(1e-3, 1.0, seed), 1, rate=0.0, period=period, centre="allreduce")
    job.scatter()
    for rank in job.ranks[1:]:
        rank.start = started_with(rank, job.ranks[0].x.array.copy())
    total = job.models().sum(0) + job.models()[0]
    job.train(10)
    assert np.abs(job.models().sum(0) + centre(job) - total).max() < 1e-12


def started_with(rank, c):
    """A start in which the centre is ``c``, as if all models had been equal."""
    start = rank.start

    def starts():
        start()
        rank.c.array[:] = c

    return starts


def test_a_slow_server_rank_still_serves():
    job = Job("easgd", 3, ComputeTime(1e-3, slowdown={0: 1000.0}), period=1)
    ends = {}
    job.train([2, 100, 100], lambda rank: ends.__setitem__(rank.comm.rank, rank.driver.clock()))
    assert ends[1] == pytest.approx(0.1) and ends[2] == pytest.approx(0.1)


@pytest.mark.parametrize("options", [{}, {"centre": "allreduce"}, {"adaptive": True}, {"final": "average"}])
def test_one_rank_is_plain_sgd(options):
    job = Job("easgd", 1, **options).train().average()
    model = Quadratic(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    assert np.array_equal(job.models()[0], torch.cat(list(model.layers)).detach().numpy())
    assert job.ranks[0].comm.traffic.headers.sum() == job.sent() == 0


def test_an_adaptive_allreduce_is_refused():
    with pytest.raises(ValidationError, match='adaptive = true needs centre = "server"'):
        EASGDOptions(adaptive=True, centre="allreduce")
