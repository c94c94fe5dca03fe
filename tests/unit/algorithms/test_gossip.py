"""Gossiping SGD in simulated time, against dense references: all models in one float64 matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grsgd.seeding import Purpose, generator
from grsgd.simulator.compute import ComputeTime
from grsgd.testing.quadratic import (
    MOMENTUM,
    RATE,
    SHIFTED,
    STEPS,
    WEIGHT_DECAY,
    Job,
    Quadratic,
    in_order_of_time,
    shifted_job,
)
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded


def begun(job):
    """Exchanges of all ranks."""
    return sum(algorithm.begun for algorithm in job.algorithms)


# ---- against dense references


class Recorder:
    """What happens in a job, in order, and the same again with one matrix."""

    def __init__(self, job: Job):
        self.job = job
        for algorithm in job.algorithms:
            self.watch(algorithm, algorithm.comm.rank)

    def watch(self, rank, i):
        record, write, take = self.job.log.append, rank.write, rank.take

        def written(message, mask):
            begins = message is getattr(rank, "mine", None) or rank.options.mode == "push"
            record(("offer", i, self.receiver(rank, message)) if begins else ("answer", i))
            write(message, mask)

        def taken(*args):
            record(("take", i))
            take(*args)

        rank.write, rank.take = written, taken

    def receiver(self, rank, message):
        return rank.theirs.sender

    def replay(self):
        """The models after all events; momentum as torch does it."""
        n = len(self.job.algorithms)
        X, G, V = SHIFTED.initial(n), np.zeros((n, SHIFTED.size)), np.zeros((n, SHIFTED.size))
        answered, offered = np.zeros((n, SHIFTED.size)), np.zeros((n, SHIFTED.size))
        for what, i, *detail in self.job.log:
            if what == "gradient":
                G[i] = X[i] - SHIFTED.target(i, *detail)
            elif what == "update":
                V[i] = MOMENTUM * V[i] + G[i] + WEIGHT_DECAY * X[i]
                X[i] -= RATE * V[i]
            elif what == "answer":
                answered[i] = X[i]
            elif what == "offer":
                offered[detail[0]] = X[i]
                X[i] = (X[i] + answered[detail[0]]) / 2
            elif what == "take":
                X[i] += (offered[i] - answered[i]) / 2
        return X


@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n < 5, [2, 3, 5]))
@pytest.mark.parametrize("latencies", [None, 1])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
@pytest.mark.parametrize("period", [1, 3])
def test_pair_gossip_is_its_dense_replay(n, latencies, sigma, period):
    job = shifted_job("gossip", n, ComputeTime(1e-3, sigma), latencies, period=period)
    recorder = Recorder(job)
    job.train()
    assert sum(what == "take" for what, *_ in job.log) == n * (STEPS // period) == begun(job)
    assert np.abs(job.X - recorder.replay()).max() < 1e-12


@pytest.mark.parametrize("mode", ["pair", "pull", "push"])
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("period", [1, 4])
def test_one_exchange_at_a_time_is_a_mixing_matrix(mode, n, period):
    """Without latency an exchange is over at once: X = W X, whose W pair makes symmetric and doubly stochastic."""
    slowdown = {i: 1 + i / 100 for i in range(n)}  # never two steps end at the same time
    job = shifted_job("gossip", n, ComputeTime(1.0, slowdown=slowdown), mode=mode, period=period).train()
    X, V = SHIFTED.initial(n), np.zeros((n, SHIFTED.size))
    pending = [X[i].copy() for i in range(n)]
    coins = [generator(Purpose.PARTNERS, 7, i) for i in range(n)]
    for i, step in in_order_of_time(slowdown):
        V[i] = MOMENTUM * V[i] + pending[i] - SHIFTED.target(i, step) + WEIGHT_DECAY * X[i]
        X[i] -= RATE * V[i]
        if (step + 1) % period == 0:
            others = [j for j in range(n) if j != i]
            j = others[coins[i].integers(n - 1)]
            W = np.eye(n)
            if mode in ("pair", "pull"):
                W[i, [i, j]] = 0.5
            if mode in ("pair", "push"):
                W[j, [i, j]] = 0.5
            if mode == "pair":
                assert (W == W.T).all() and (W.sum(0) == 1).all() and (W.sum(1) == 1).all()
            X = W @ X
        pending[i] = X[i].copy()  # the next gradient begins now
    assert np.abs(job.X - X).max() < 1e-12
    assert job.sent() == (2 if mode == "pair" else 1) * job.M * n * (STEPS // period)


@pytest.mark.parametrize("mode", ["pair", "pull", "push"])
@pytest.mark.parametrize(
    "period, metric",
    exhaustive_unless(
        lambda period, metric: (period, metric) in [(3, "relative"), (1, "norm"), (1, "cosine")],
        [(period, metric) for metric in ("relative", "norm", "cosine") for period in (1, 3)],
    ),
)
def test_threshold_zero_is_a_fixed_period(mode, period, metric):
    compute = ComputeTime(1e-3, 0.7)
    latencies = 3 if mode != "push" else None  # a push that is left out waits for the next period, or for the next step
    fixed = shifted_job("gossip", 4, compute, latencies, mode=mode, period=period).train(40)
    options = {"adaptive": True, "threshold": 0.0, "min_interval": period, "max_interval": 10**6, "metric": metric}
    adaptive = shifted_job("gossip", 4, compute, latencies, mode=mode, **options).train(40)
    assert np.array_equal(fixed.trajectories, adaptive.trajectories)
    assert fixed.sent() == adaptive.sent()


# ---- invariants


EXCHANGES = {
    "n": st.integers(2, 6),
    "seed": st.integers(0, 10**6),
    "sigma": st.sampled_from([0.0, 0.3, 1.5]),
    "latencies": st.sampled_from([None, 1, 2]),
    "options": st.sampled_from(
        [
            {"period": 1},
            {"period": 5},
            {"adaptive": True, "threshold": 0.05, "max_interval": 12},
            {"adaptive": True, "threshold": 0.2, "max_interval": 30, "min_interval": 4, "metric": "norm"},
            {"adaptive": True, "target_rate": 0.2, "max_interval": 15},
            {"adaptive": True, "threshold": 0.1, "max_interval": 12, "metric": "layerwise"},
        ]
    ),
}


@seeded
@given(mode=st.sampled_from(["pair", "push", "pull"]), **EXCHANGES)
def test_unequal_ranks_never_hang(n, seed, sigma, latencies, options, mode):
    steps = np.random.default_rng(seed).integers(0, 40, n).tolist()
    job = shifted_job("gossip", n, ComputeTime(1e-3, sigma, seed, {0: 5.0}), latencies, mode=mode, **options)
    lags = []

    def observe(rank):
        if rank.options.adaptive and rank.options.mode != "push":  # which leaves out what a receiver has no room for
            lags.append(rank.k - rank.trigger.k_last.min() - rank.options.max_interval)

    job.train(steps, after_step=observe)
    assert max(lags, default=0) <= 0
    assert [rank.k for rank in job.algorithms] == steps
    assert sum(rank.served for rank in job.algorithms) == begun(job)
    merges = sum(sum(rank.staleness.values()) for rank in job.algorithms)
    assert merges == (2 if mode == "pair" else 1) * begun(job)
    if options.get("metric") != "layerwise":
        assert job.sent() == (2 if mode == "pair" else 1) * job.M * begun(job)
    else:
        assert job.sent() <= (2 if mode == "pair" else 1) * job.M * begun(job)
    assert not job.ranks.fabric.under_way
    job.average()
    assert (job.X == job.X[0]).all()


@seeded
@given(**EXCHANGES)
def test_pair_exchanges_keep_the_sum(n, seed, sigma, latencies, options):
    steps = np.random.default_rng(seed).integers(0, 40, n).tolist()
    job = shifted_job("gossip", n, ComputeTime(1e-3, sigma, seed, {0: 5.0}), latencies, rate=0.0, **options)
    job.scatter()
    mean = job.X.mean(0)
    job.train(steps)
    assert np.abs(job.X.mean(0) - mean).max() < 1e-12
    assert np.abs(job.average().X - mean).max() < 1e-12


@pytest.mark.parametrize("latencies", [None, 5])
def test_ranks_agree_without_gradients(latencies):
    """Exchanges that overlap still bring the models together."""
    job = shifted_job("gossip", 6, ComputeTime(1e-3), latencies, rate=0.0)
    job.scatter()
    before = job.spread()
    job.train(60)
    assert job.spread() < 1e-3 * before


def test_push_and_pull_move_the_mean():
    for mode in ("push", "pull"):
        job = shifted_job("gossip", 4, rate=0.0, mode=mode)
        job.scatter()
        mean = job.X.mean(0)
        job.train(10)
        assert np.abs(job.X.mean(0) - mean).max() > 1e-3


def test_layerwise_exchanges_only_layers_over_theta():
    job = shifted_job("gossip", 2, adaptive=True, metric="layerwise", threshold=0.3, max_interval=10**6)
    job.train(30)
    assert begun(job) > 0
    layers = {3 * 8, (SHIFTED.size - 3) * 8}
    whole = 2 * sum(layers) * begun(job)
    assert 0 < job.sent() < whole and job.sent() % 48 == 0


def test_push_never_waits():
    compute = ComputeTime(1e-3, slowdown={1: 1000.0})
    job = shifted_job("gossip", 3, compute, 0, mode="push")
    ends = {}
    job.train([100, 2, 100], after_step=lambda rank: ends.__setitem__(rank.comm.rank, rank.driver.clock()))
    assert ends[0] == pytest.approx(0.1) and ends[2] == pytest.approx(0.1)
    assert all(rank.driver.wait_seconds < 2.1 for rank in job.algorithms)


def test_push_uses_few_messages():
    """As many as are under way at once, not one for each other rank."""
    job = shifted_job("gossip", 6, ComputeTime(1e-3), mode="push")
    kept = []
    job.train(40, after_step=lambda rank: kept.append(len(rank.pushing._sending) + len(rank.pushing._spare)))
    assert begun(job) == 6 * 40 and max(kept) == 1


@pytest.mark.parametrize("threshold", ["auto", 0.0])
def test_the_trigger_knows_nothing_of_pushes_that_are_left_out(threshold):
    """Messages take about a hundred steps, so most are: min_interval counts from those made, and only they raise it."""
    options = dict(adaptive=True, threshold=threshold, target_rate=0.5, min_interval=3)
    job = shifted_job("gossip", 2, ComputeTime(1e-5), 0, mode="push", **options)
    seen = {rank: [(0, None, 0)] for rank in job.algorithms}

    def observe(rank):
        begun, threshold, k_begun = seen[rank][-1]
        made = rank.begun > begun
        assert rank.trigger.k_begun == (rank.k if made else k_begun)
        assert made or threshold is None or rank.trigger.threshold <= threshold
        seen[rank].append((rank.begun, rank.trigger.threshold, rank.trigger.k_begun))

    job.train(1000, after_step=observe)
    assert all(1 < rank.begun < 100 for rank in job.algorithms)


def test_a_rank_that_computes_still_answers():
    """A slow rank does not keep the others: its background answers while it computes."""
    compute = ComputeTime(1e-3, slowdown={1: 1000.0})
    job = shifted_job("gossip", 3, compute)
    ends = {}
    job.train([100, 2, 100], after_step=lambda rank: ends.__setitem__(rank.comm.rank, rank.driver.clock()))
    assert ends[0] == pytest.approx(0.1) and ends[2] == pytest.approx(0.1)
    assert job.algorithms[1].served > 50


def test_staleness_is_in_steps_of_the_receiver():
    job = shifted_job("gossip", 2, ComputeTime(1.0, slowdown={1: 10.0}), mode="pull")
    job.train([9, 1])
    assert dict(job.algorithms[0].staleness) == {k: 1 for k in range(1, 10)}
    assert sum(job.algorithms[1].staleness.values()) == 1


@pytest.mark.parametrize("mode", ["pair", "push", "pull"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_one_rank_is_plain_sgd(mode, adaptive):
    job = shifted_job("gossip", 1, mode=mode, adaptive=adaptive).train().average()
    model = Quadratic(0, SHIFTED)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    assert np.array_equal(job.X[0], model.x.detach().numpy())
    assert job.algorithms[0].comm.traffic.headers.sum() == job.sent() == 0


@pytest.mark.parametrize("name", ["gossip", "easgd"])
def test_a_threshold_falls_with_the_learning_rate(name):
    """To zero, from which on any change is enough; and not, if it is not to."""
    for scales in (True, False):
        options = {"adaptive": True, "threshold": 1e6, "scale_threshold_with_lr": scales}
        job = shifted_job(name, 3, schedule=lambda step: float(step < STEPS - 5), **options).train()
        exchanges = [rank.begun if name == "gossip" else rank.exchanges for rank in job.algorithms]
        assert exchanges == [5 if scales else 0] * 3


def test_traffic_is_paid_for_in_disagreement():
    """Four ranks, a learning rate that decays: a higher threshold leaves less traffic and models further apart."""
    steps = 200
    sent, spread, distance = [], [], []
    for threshold in (0.0, 0.05, 0.1, 0.2):
        options = {"adaptive": True, "threshold": threshold, "rate": 0.1, "momentum": 0.0}
        job = shifted_job("gossip", 4, schedule=lambda step: 0.98**step, **options).train(steps)
        sent.append(job.sent())
        spread.append(job.spread())
        distance.append(np.linalg.norm(job.X.mean(0) - 3 / (1 + WEIGHT_DECAY)))
    assert sent[0] == 2 * job.M * 4 * steps
    assert sent == sorted(sent, reverse=True) and sent[-1] < 0.6 * sent[0]
    assert spread == sorted(spread) and spread[-1] > 2 * spread[0]
    assert max(distance) < 0.05 * np.linalg.norm(SHIFTED.initial(1) - 3)


def test_automatic_threshold_keeps_the_target():
    """After a fast start, which leaves too high a threshold, and while the learning rate decays."""
    steps, n = 1200, 4
    job = shifted_job(
        "gossip",
        n,
        ComputeTime(1e-3, 0.3),
        1,
        schedule=lambda step: 0.997**step,
        rate=0.1,
        momentum=0.0,
        adaptive=True,
        target_rate=0.08,
    )
    begun_at = []
    job.train(steps, after_step=lambda rank: begun_at.append((rank.k, rank.begun)))
    half = sum(begun for k, begun in begun_at if k == steps // 2)
    rates = half / (n * steps / 2), (begun(job) - half) / (n * steps / 2)
    assert 0.02 < rates[0] < 0.09 and 0.07 < rates[1] < 0.09
    assert job.sent() == 2 * job.M * begun(job)


# ---- exchanges that overlap, without gradients


@seeded
@given(n=st.integers(3, 6), seed=st.integers(0, 10**6), latencies=st.integers(0, 100))
def test_no_model_leaves_the_range_of_all(n, seed, latencies):
    job = shifted_job("gossip", n, ComputeTime(1e-3, 1.0, seed), latencies, rate=0.0)
    job.scatter()
    job.train(30, after_step=within_range(job))


def within_range(job):
    """To be called after steps: that a model is a mean of those at the beginning, as far as that can be seen."""
    start = job.X
    least, most = start.min(0) - 1e-12, start.max(0) + 1e-12

    def check(rank):
        assert (rank.x.array >= least).all() and (rank.x.array <= most).all()

    return check


def test_an_offer_on_a_slow_link_is_not_written_over():
    """The next exchange, with another rank, begins when it has left: the sum of all models stays."""
    job = shifted_job("gossip", 3, ComputeTime(1e-3), rate=0.0, slow_link=True)
    job.scatter()
    total = job.X.sum(0)
    job.train(30)
    assert np.abs(job.X.sum(0) - total).max() < 1e-12
    assert begun(job) == 90


def test_who_waits_for_an_offer_averages_with_one_other_at_most():
    """Half of its model has been given away already: a second average would leave less of it than is still owed."""
    job = shifted_job("gossip", 4, ComputeTime(1e-3), rate=0.0, slow_link=True)
    meanwhile = []

    def watch(rank):
        write, take, begun = rank.write, rank.take, [0]

        def noted_write(message, mask):
            if message is not rank.mine:  # an answer: from here to `take` the exchange is under way
                begun[0] = rank.begun
            write(message, mask)

        def noted_take(x, y, s):
            meanwhile.append(rank.begun - begun[0])
            take(x, y, s)

        rank.write, rank.take = noted_write, noted_take

    for rank in job.algorithms:
        watch(rank)
    job.train(30)
    assert set(meanwhile) == {0, 1}
