"""Parameter servers in simulated time: whole trainings, and small ones against references in NumPy."""

import heapq
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from grsgd.algorithms.parameter_server.server import LostWorker
from grsgd.algorithms.parameter_server.strategy import STATES
from grsgd.errors import ConfigError
from grsgd.runs.bound import time_over_optimum
from grsgd.runs.run_file import load_run
from grsgd.simulator.run import simulate
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, WEIGHT_DECAY, Job
from grsgd.testing.simulated import network_of
from grsgd.training.record import RankMeasurements, assemble
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, MODEL_BYTES, SLOW, STEP, config, simulation

NAMES = ("bsp", "asp", "ssp", "dssp", "adsp", "m_sync", "rennala", "ringmaster")
DROPS = ("m_sync", "rennala", "ringmaster")
"""Those that drop gradients."""
STRAGGLERS = {
    "slowdown": {0: 1.5},
    "tail": {1: {"probability": 0.3, "seconds": 0.05}},
    "pause": {2: {"every": 5, "seconds": 0.1}},
}
RANDOM = f"lognormal:{STEP},0.5"
every_strategy = pytest.mark.parametrize("strategy", NAMES)
PLACES = [("dedicated", 1), ("dedicated", 2), ("dedicated", 3), ("shared", 1), ("shared", 2), ("shared", 3)]
every_place = pytest.mark.parametrize("server, servers", PLACES)
every_strategy_and_place = pytest.mark.parametrize(
    "strategy, server, servers",
    exhaustive_unless(
        lambda strategy, server, servers: (NAMES.index(strategy) + servers) % 3 == 0,
        [(strategy, *place) for strategy in NAMES for place in PLACES],
    ),
)
"""The quick ones are every strategy with every kind of server, and every place with a strategy or two."""

ALONE = ("shared", 1)


def section(strategy, **options):
    return {"name": "parameter_server", "strategy": strategy, **options}


def job_of(strategy, workers, network=None, compute=CONSTANT, server="dedicated", servers=1, options=None, **sections):
    """A simulation with so many workers, on a network without latency unless given."""
    ranks = workers + servers * (server == "dedicated")
    algorithm = section(strategy, server=server, servers=servers, **(options or {}))
    sections = {"dtype": "float64"} | sections
    return simulation(algorithm, ranks, network or network_of(), compute, **sections)


def servers_of(job):
    return [trainer.algorithm.server for trainer in job.trainers if trainer.algorithm.server is not None]


def steps_of(job):
    return [trainer.totals.steps for trainer in job.trainers]


def models(job):
    return np.array([trainer.replica.params.array for trainer in job.trainers])


def final_model(job):
    """The model of all ranks, which must be the same."""
    rows = models(job)
    assert (rows == rows[0]).all() and np.isfinite(rows).all()
    return rows[0]


def run_of(job):
    """All that a run file would have, but for why the run ended."""
    attributes = {"algorithm": "parameter_server", "ranks": job.ranks, "hosts": ["here"] * job.ranks, "reason": "steps"}
    return assemble([RankMeasurements.of(trainer) for trainer in job.trainers], attributes, *job.evaluate())


def assert_same_run(one, other):
    for part in ("curve", "ranks", "traffic", "staleness"):
        first, second = getattr(one, part), getattr(other, part)
        assert first.keys() == second.keys()
        for key in first:
            np.testing.assert_array_equal(first[key], second[key], err_msg=f"{part}/{key}")
    assert one.attributes["final_test_accuracy"] == other.attributes["final_test_accuracy"]


# ---- how fast


@pytest.mark.parametrize("strategy, rate", [("bsp", 2.00), ("ssp", 2.14), ("asp", 7.24)])
@pytest.mark.parametrize("server", ["dedicated", "shared"])
def test_rates_with_a_constant_straggler(strategy, rate, server):
    """8 workers, of which the last takes 4 s a step, the others 1 s; in 150 s, which shows SSP's lead at first."""
    job = job_of(
        strategy,
        8,
        compute="constant:1",
        server=server,
        stragglers={"slowdown": {7: 4.0}},
        train={"seconds": 150.0, "snapshots": 2},
    )
    pushes = []
    (one,) = servers_of(job)
    apply_decision = one.apply_decision

    def noted(decision):
        pushes.append(sum(one.strategy.clocks))
        if job.env.now <= 150.0:
            within[0] = pushes[-1]
        apply_decision(decision)

    within, one.apply_decision = [0], noted
    assert job.train() == "seconds"
    assert within[0] / 150 == pytest.approx(rate, rel=0.05)
    assert one.applied == sum(steps_of(job)) == pushes[-1]
    assert one.applied / 150 == pytest.approx(rate, rel=0.05)


def test_order_of_speed_with_random_delays():
    """The bounded ones are between bulk-synchronous and asynchronous; adsp is not behind ssp."""
    pushes = {}
    for strategy in NAMES:
        stragglers = {"tail": {rank: {"probability": 0.2, "seconds": 10 * STEP} for rank in range(6)}}
        job = job_of(strategy, 6, compute=RANDOM, stragglers=stragglers, train={"seconds": 2.5, "snapshots": 2})
        job.train()
        pushes[strategy] = servers_of(job)[0].applied
    assert 1.2 * pushes["bsp"] < pushes["ssp"] < pushes["asp"]
    assert 1.2 * pushes["bsp"] < pushes["adsp"] < pushes["asp"]
    assert 1.2 * pushes["bsp"] < pushes["dssp"] < pushes["asp"]


# ---- bulk-synchronous


def all_reduce(workers, **sections):
    job = simulation("ring_allreduce", workers, dtype="float64", **sections)
    job.train()
    return final_model(job)


OPTIMIZERS = {
    "plain": {"optimizer": {"lr": 0.1}},
    "momentum": {"optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
    "adam": {"optimizer": {"name": "adam", "lr": 0.02}},
    "warmup": {"optimizer": {"lr": 0.2, "momentum": 0.9}, "schedule": {"warmup": 2.0}},
    "milestones": {
        "optimizer": {"lr": 0.2},
        "schedule": {"name": "step", "milestones": [1.0, 2.0], "factor": 0.5},
    },
    "cosine": {"optimizer": {"lr": 0.2, "momentum": 0.9}, "schedule": {"name": "cosine", "warmup": 1.0}},
}
SIZES = [("dedicated", 1), ("dedicated", 2), ("dedicated", 5), ALONE, ("shared", 2), ("shared", 5)]


@pytest.mark.parametrize(
    "optimizer, server, workers",
    exhaustive_unless(
        lambda optimizer, *size: size == ("dedicated", 2) or optimizer == "momentum" and size != ("dedicated", 5),
        [(optimizer, *size) for optimizer in OPTIMIZERS for size in SIZES],
    ),
)
def test_bulk_synchronous_is_all_reduce(optimizer, server, workers):
    """The same shards and batches, the same schedule: only the order of the sum differs."""
    sections = OPTIMIZERS[optimizer]
    job = job_of("bsp", workers, network_of(**SLOW), RANDOM, server, steps=25, **sections)
    start = models(job)[0].copy()
    assert job.train() == "steps"
    expected = all_reduce(workers, steps=25, **sections)
    assert np.abs(final_model(job) - expected).max() < 1e-13 * max(1, np.abs(expected).max())
    assert np.abs(expected - start).max() > 0.01
    assert steps_of(job)[:workers] == [25] * workers and sum(steps_of(job)[workers:]) == 0
    assert servers_of(job)[0].applied == 25 * workers
    assert {trainer.progress.samples for trainer in job.trainers} == {25 * workers * 4}


def test_bulk_synchronous_runs_are_alike_bit_for_bit():
    """Whatever the delays."""
    found = {}
    for compute, network in ((CONSTANT, network_of()), (RANDOM, network_of(**SLOW)), (RANDOM, network_of(**SLOW))):
        job = job_of("bsp", 4, network, compute, stragglers=STRAGGLERS, steps=20)
        job.train()
        run = run_of(job)
        found.setdefault(final_model(job).tobytes(), []).append(run)
    (runs,) = found.values()
    assert_same_run(*runs[1:])
    for key in ("train_loss", "test_accuracy", "samples"):
        np.testing.assert_array_equal(runs[0].curve[key], runs[1].curve[key])
    assert runs[0].staleness["value"].tolist() == [0]


@pytest.mark.parametrize("steps", exhaustive_unless(lambda steps: steps != 2, [1, 2, 13]))
@every_place
def test_number_of_steps(server, servers, steps):
    """Exact where all keep step; else what was under way at the end comes on top."""
    job = job_of("bsp", 3, network_of(**SLOW), RANDOM, server, servers, steps=steps)
    job.train()
    assert steps_of(job)[:3] == [steps] * 3
    job = job_of("asp", 3, network_of(**SLOW), RANDOM, server, servers, steps=steps)
    job.train()
    assert 3 * steps <= sum(steps_of(job)) <= 3 * steps + 3


# ---- reductions


@pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed == 0, [0, 1, 2]))
@pytest.mark.parametrize(
    "options, strategy, others",
    [
        (dict(s=math.inf, smax=math.inf, slow_factor=math.inf), "asp", {}),
        (dict(s=math.inf, smax=math.inf, straggler_weight="one"), "asp", {}),
        (dict(s=2, smax=2, slow_factor=math.inf, ahead_mode="apply"), "ssp", dict(s=2)),
        (dict(s=2, smax=2, straggler_weight="one", ahead_mode="apply"), "ssp", dict(s=2)),
        (dict(s=0, smax=0, slow_factor=math.inf), "bsp", {}),
        (dict(s=0, smax=0, straggler_weight="one", slow_factor=1.0, slow_streak=1), "bsp", {}),
    ],
    ids=["asp", "asp, phi", "ssp", "ssp, phi", "bsp", "bsp, phi"],
)
def test_adsp_reduces_to(options, strategy, others, seed):
    """Bit for bit: the model, the curve with its times, everybody's steps, traffic and staleness."""
    runs, ends = [], []
    for name, chosen in (("adsp", options), (strategy, others)):
        sections = dict(stragglers=STRAGGLERS, steps=25, seed=seed, dtype="float32")
        job = job_of(name, 4, network_of(**SLOW), RANDOM, options=chosen, **sections)
        job.train()
        ends.append(final_model(job))
        runs.append(run_of(job))
    np.testing.assert_array_equal(*ends)
    assert_same_run(*runs)
    assert (len(runs[0].staleness["value"]) > 2) == (strategy != "bsp")


def test_asgd_is_asp():
    runs, ends = [], []
    for algorithm in ({"name": "asgd"}, section("asp")):
        job = simulation(algorithm, 5, network_of(**SLOW), RANDOM, stragglers=STRAGGLERS, steps=20)
        job.train()
        ends.append(final_model(job))
        runs.append(run_of(job))
    np.testing.assert_array_equal(*ends)
    assert_same_run(*runs)


def test_strategies_differ():
    """Else the reductions would say nothing."""
    ends = set()
    for strategy in NAMES:
        job = job_of(strategy, 4, network_of(**SLOW), RANDOM, stragglers=STRAGGLERS, steps=40)
        job.train()
        ends.add(final_model(job).tobytes())
    assert len(ends) == len(NAMES)


# ---- every gradient once


def watch_gradients(job):
    """What is pushed and what is applied, a list of gradients for each server and worker, filled in while training."""
    pushed, applied = {}, {}
    for trainer in job.trainers:
        algorithm = trainer.algorithm
        if algorithm.is_worker:

            def step(algorithm=algorithm, original=algorithm.step):
                for rank, (begin, end) in algorithm.shards.items():
                    part = algorithm.replica.grads.array[begin:end].tobytes()
                    pushed.setdefault((rank, algorithm.comm.rank), []).append(part)
                return original()

            algorithm.step = step
        if algorithm.server is not None:

            def gather(worker, weight, compensated, server=algorithm.server, original=algorithm.server.gather):
                applied.setdefault((server.comm.rank, worker), []).append(server.g[worker].array.tobytes())
                return original(worker, weight, compensated)

            algorithm.server.gather = gather
    return pushed, applied


def watch_versions(server):
    """Check at every decision what must hold of versions; returns the versions seen."""
    seen, apply_decision = [0], server.apply_decision

    def watched(decision):
        before, version = list(server.versions), server.strategy.version
        assert version == seen[-1] + decision.update
        apply_decision(decision)
        seen.append(version)
        for worker, (old, new) in enumerate(zip(before, server.versions, strict=True)):
            assert new == (version if worker in decision.answers else old) >= old

    server.apply_decision = watched
    return seen


def assert_applied_but_dropped(server, pushed, applied, late=()):
    """All that is pushed is applied, in order, but for what was dropped, and the last push of workers that are late."""
    for worker, dropped in enumerate(server.strategy.dropped):
        pushes = pushed[server.comm.rank, worker][: -1 if worker in late else None]
        of_it, left = applied.get((server.comm.rank, worker), []), iter(pushes)
        assert all(g in left for g in of_it) and len(of_it) + dropped == len(pushes)


@every_strategy_and_place
def test_every_gradient_is_applied_exactly_once(strategy, server, servers):
    job = job_of(strategy, 4, network_of(**SLOW), RANDOM, server, servers, stragglers=STRAGGLERS, steps=30)
    pushed, applied = watch_gradients(job)
    versions = [watch_versions(one) for one in servers_of(job)]
    assert job.train() == "steps"
    assert len(pushed) == 4 * servers
    for one, seen in zip(servers_of(job), versions, strict=True):
        assert_applied_but_dropped(one, pushed, applied)
        dropped = sum(one.strategy.dropped)
        assert (dropped > 0) == (strategy in DROPS)
        assert one.applied == sum(one.staleness.values()) == sum(steps_of(job)) - dropped
        assert sum(one.strategy.clocks) == sum(steps_of(job))
        assert seen[-1] == one.strategy.version <= one.applied
        assert not one.strategy.buffer and not one.strategy.active and one.finished == set(range(4))
    for trainer in job.trainers:
        assert trainer.algorithm.warnings() == [] and trainer.algorithm.lost == frozenset()
    if strategy == "bsp":
        assert set(servers_of(job)[0].staleness) == {0}
        assert servers_of(job)[0].strategy.version == 30
    if strategy == "asp":
        assert servers_of(job)[0].strategy.version == servers_of(job)[0].applied
    assert not job.fabric.under_way


@every_strategy
def test_the_run_file_has_the_staleness_of_all(strategy, tmp_path):
    chosen = config(section(strategy), steps=30, stragglers=STRAGGLERS)
    assert simulate(chosen, 5, network_of(**SLOW), tmp_path / "run.h5", RANDOM) == "steps"
    run = load_run(tmp_path / "run.h5")
    assert run.staleness["count"][:4].sum() == 0
    dropped = run.extra["dropped"].sum() if strategy in DROPS else 0
    assert (dropped > 0) == (strategy in DROPS)
    assert run.staleness["count"][4].sum() + dropped == run.ranks["steps"].sum() >= 4 * 30
    assert run.ranks["steps"][4] == 0
    mean = (run.staleness["value"] * run.staleness["count"][4]).sum() / run.staleness["count"][4].sum()
    assert mean == 0 if strategy in ("bsp", "m_sync", "rennala") else 0.5 < mean < 4
    assert run.curve["samples"][-1] == 4 * (run.ranks["steps"].sum() - dropped)
    assert (np.diff(run.curve["samples"]) >= 0).all() and (np.diff(run.curve["time"]) >= 0).all()


def test_the_run_file_has_the_states_of_workers(tmp_path):
    """A worker that is always slow is a straggler from its third push on, and the others are ahead of it."""

    def run_with(strategy):
        chosen = config(section(strategy), steps=40, stragglers={"slowdown": {1: 4.0}})
        simulate(chosen, 5, network_of(), tmp_path / "run.h5", CONSTANT)
        return load_run(tmp_path / "run.h5")

    run = run_with("adsp")
    states, pushes = run.extra["states"], run.ranks["steps"][:4]
    assert states.shape == (4, pushes.max()) and ((states >= 0).sum(axis=1) == pushes).all()
    slow, others = states[1], states[[0, 2, 3]]
    assert slow[: pushes[1]].tolist() == [0, 0] + [STATES.index("straggler")] * (pushes[1] - 2)
    assert (others[:, 20:25] == STATES.index("ahead")).all() and not (others == STATES.index("straggler")).any()
    assert run.units["states"][1].endswith("0 async, 1 straggler, 2 ahead")
    assert "states" not in run_with("asp").extra


# ---- several servers, and servers that train


@pytest.mark.parametrize(
    "optimizer",
    [{"lr": 0.1, "momentum": 0.9}, {"name": "adam", "lr": 0.02}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}],
    ids=["momentum", "adam", "nesterov"],
)
def test_where_the_servers_are_makes_no_difference(optimizer):
    """Bulk-synchronous, bit for bit; the edges between servers lie in the middle of a parameter."""
    ends = []
    for server, servers in PLACES:
        job = job_of("bsp", 3, network_of(**SLOW), RANDOM, server, servers, steps=20, optimizer=optimizer)
        job.train()
        assert [end - begin for begin, end in job.trainers[0].algorithm.shards.values()][0] in (34, 17, 11, 12)
        ends.append(final_model(job))
    assert len({end.tobytes() for end in ends}) == 1


@every_strategy_and_place
def test_all_models_are_equal_and_evaluated_in_the_end(strategy, server, servers):
    job = job_of(strategy, 3, network_of(**SLOW), RANDOM, server, servers, stragglers=STRAGGLERS, steps=20)
    assert job.train() == "steps"
    assert_is_the_servers(job, final_model(job))
    run = run_of(job)
    assert (run.curve["consensus_distance"] == 0).all()
    assert np.isfinite(run.curve["test_accuracy"]).all() and len(run.curve["time"]) == 4
    assert (run.curve["test_accuracy_min"] == run.curve["test_accuracy_max"]).all()
    assert (models(job) == final_model(job)).all()


def assert_is_the_servers(job, model):
    begin = 0
    for one in servers_of(job):
        part = one.w.numpy()
        np.testing.assert_array_equal(model[begin : begin + part.size], part)
        begin += part.size
    assert begin == model.size


@every_strategy_and_place
def test_traffic(strategy, server, servers):
    """A worker sends M and gets M a step; the words that go with them are headers; on one rank nothing is sent."""
    job = job_of(strategy, 3, network_of(**SLOW), RANDOM, server, servers, stragglers=STRAGGLERS, steps=20)
    job.train()
    steps, sent = steps_of(job), np.array([trainer.comm.traffic.sent for trainer in job.trainers])
    headers = np.array([trainer.comm.traffic.headers for trainer in job.trainers])
    messages = np.array([trainer.comm.traffic.messages for trainer in job.trainers])
    parts = job.trainers[0].algorithm.shards
    assert sum(end - begin for begin, end in parts.values()) * 8 == 2 * MODEL_BYTES == job.trainers[0].replica.nbytes
    payload, words, count = np.zeros_like(sent), np.zeros_like(sent), np.zeros_like(sent)
    for rank, (begin, end) in parts.items():
        for worker in range(3):
            if worker != rank:
                payload[worker, rank] += steps[worker] * 8 * (end - begin)
                payload[rank, worker] += steps[worker] * 8 * (end - begin)
                words[worker, rank] += 8 * (steps[worker] + 1)  # and the last message
                words[rank, worker] += 16 * steps[worker]
                count[worker, rank] += steps[worker]
                count[rank, worker] += steps[worker]
    np.testing.assert_array_equal(sent, payload)
    np.testing.assert_array_equal(headers, words)
    np.testing.assert_array_equal(messages, count)
    if server == "dedicated":
        assert sent.sum() == sum(steps) * 2 * job.trainers[0].replica.nbytes


@pytest.mark.parametrize("server, workers", [("dedicated", 1), ALONE])
@pytest.mark.parametrize(
    "optimizer",
    exhaustive_unless(
        lambda optimizer: optimizer["lr"] == 0.02,
        [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"name": "adam", "lr": 0.02}, {"name": "adamw", "lr": 0.02}],
    ),
    ids=["sgd", "momentum", "adam", "adamw"],
)
@every_strategy
def test_one_worker_is_a_plain_loop(strategy, optimizer, server, workers):
    """Bit for bit, with any optimizer."""
    job = job_of(strategy, workers, network_of(**SLOW), server=server, steps=12, optimizer=optimizer)
    (other,) = simulation("ring_allreduce", 1, dtype="float64", optimizer=optimizer).trainers
    job.train()
    for _ in range(12):
        other.gradients.next_gradient()
        other.algorithm.optimizer.step()
    np.testing.assert_array_equal(final_model(job), other.replica.params.array)
    assert steps_of(job)[0] == 12 == servers_of(job)[0].applied


# ---- formulas


def job_with_server(workers, seconds, rate, **options):
    """Return a job with workers and one dedicated server, on a network that takes no time."""
    return Job("parameter_server", workers + 1, seconds, rate=rate, **options)


def server_model(job):
    return job.algorithms[-1].server.w.numpy()


def reference(workers, seconds, rate, steps, weight=lambda tau: 1.0, compensation=0.0):
    """The same, of asp, in NumPy; returns w and how often each staleness was seen."""
    w, V, staleness = PROBLEM.start.copy(), 0, Counter()
    velocity = 0.0
    pulled = [(w.copy(), 0)] * workers
    events = [(seconds(i, 0), i, 0) for i in range(workers)]
    heapq.heapify(events)
    while events:
        now, i, step = heapq.heappop(events)
        x, version = pulled[i]
        g = PROBLEM.gradient(i, x, step)
        tau = V - version
        staleness[tau] += 1
        g = g + compensation * g * g * (w - x) + WEIGHT_DECAY * w
        velocity = MOMENTUM * velocity + weight(tau) / workers * g
        w = w - rate * velocity
        V += 1
        pulled[i] = w.copy(), V
        if step + 1 < steps:
            heapq.heappush(events, (now + seconds(i, step + 1), i, step + 1))
    return w, staleness


def uneven(rank, step):
    """Never two at once; the last is slow."""
    return (1 + rank / 7) * (1 + 0.3 * math.sin(1 + step + 5 * rank)) * (4 if rank == 2 else 1)


@pytest.mark.parametrize(
    "options, formula",
    [
        ({}, {}),
        ({"staleness_aware": True}, {"weight": lambda tau: 1 / max(tau, 1)}),
        ({"compensation": 0.5}, {"compensation": 0.5}),
        ({"compensation": 0.0}, {}),
        ({"compensation": 0.3, "staleness_aware": True}, {"compensation": 0.3, "weight": lambda tau: 1 / max(tau, 1)}),
    ],
    ids=["asp", "staleness-aware", "compensated", "lambda 0", "both"],
)
def test_asynchronous_against_a_reference(options, formula):
    rate = 0.05
    job = job_with_server(3, uneven, rate, strategy="asp", **options).train(15)
    w, staleness = reference(3, uneven, rate, 15, **formula)
    assert np.abs(server_model(job) - w).max() < 1e-12
    assert job.algorithms[-1].staleness == staleness and max(staleness) >= 4
    if formula:
        assert np.abs(w - reference(3, uneven, rate, 15)[0]).max() > 1e-3


def test_two_pushes_by_hand():
    """Worker 0 pushes after 1 s, worker 1 after 2 s, both a gradient at the start; the second has staleness 1."""
    slow = {"strategy": "adsp", "slow_factor": 0.5, "slow_streak": 1}
    for options, weight, lam in [
        ({"strategy": "asp"}, 1, 0),
        ({"strategy": "asp", "compensation": 2.0}, 1, 2.0),
        (slow, 1 / 2, 0),  # a straggler: slow and the last
        (slow | {"straggler_weight": "one"}, 1, 0),
        (slow | {"straggler_weight": "compensated"}, 1, 0.04),
        (slow | {"straggler_weight": "compensated", "compensation": 3.0}, 1, 3.0),
    ]:
        job = job_with_server(2, lambda rank, step: 1.0 + rank, 0.5, momentum=0.0, weight_decay=0.0, **options).train(1)
        w = PROBLEM.start - 0.5 / 2 * PROBLEM.gradient(0, PROBLEM.start, 0)
        g = PROBLEM.gradient(1, PROBLEM.start, 0)
        w = w - 0.5 / 2 * weight * (g + lam * g * g * (w - PROBLEM.start))
        assert np.abs(server_model(job) - w).max() < 1e-14, options


def test_statistics_in_the_end_are_the_mean_of_the_workers():
    """Those of a dedicated server count nowhere."""
    job = job_with_server(3, uneven, 0.1, statistics=5, strategy="asp").train(3)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.replica.buffers.array[:] = [1.0, 2.0, 6.0, 1e9][rank]
    job.ranks.finish([algorithm.average() for algorithm in job.algorithms])
    for algorithm in job.algorithms:
        np.testing.assert_allclose(algorithm.replica.buffers.array, 3.0, rtol=1e-15)
        np.testing.assert_array_equal(algorithm.x.array, server_model(job))


class Normalised(torch.nn.Module):
    """A model that keeps statistics of its batches."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


@every_place
def test_batch_normalisation(server, servers, monkeypatch):
    def build(config, dataset, device):
        torch.manual_seed(config.seed)
        return Normalised().to(device)

    monkeypatch.setattr("grsgd.simulator.simulation.build_model", build)
    job = job_of("asp", 3, network_of(**SLOW), RANDOM, server, servers, steps=10)
    own = {}
    for rank, trainer in enumerate(job.trainers):

        def average(rank=rank, trainer=trainer, original=trainer.algorithm.average):
            own[rank] = trainer.replica.buffers.array.copy()
            return original()

        trainer.algorithm.average = average
    job.train()
    mean = np.mean([own[rank] for rank in range(3)], axis=0)
    assert np.abs(own[0] - own[1]).max() > 1e-3
    for _ in range(2):
        for trainer in job.trainers:
            np.testing.assert_allclose(trainer.replica.buffers.array, mean, rtol=1e-12, atol=1e-14)
        qualities, final = job.evaluate()
    assert final.consensus_distance == 0


# ---- ends before the time


def stop_after(job, seconds, trainer, asked):
    """Ask the rank of the trainer ``asked`` to stop after the first step of ``trainer`` that ends so late."""

    def on_step(progress, loss):
        asked.stop_signal.request = "enough" if job.env.now > seconds else None

    trainer.on_step = on_step


@every_strategy_and_place
def test_a_request_to_stop(strategy, server, servers):
    """All ranks end; what is evaluated is the servers' model at that moment."""
    job = job_of(strategy, 3, network_of(**SLOW), RANDOM, server, servers, stragglers=STRAGGLERS, steps=1000)
    trainer = job.trainers[1]
    stop_after(job, 0.2, trainer, trainer)
    assert job.train() == "enough"
    assert job.env.now < 1.0
    assert 0 < sum(steps_of(job)) < 300
    kept = [one.w.clone() for one in servers_of(job)]
    run = run_of(job)
    assert 0 <= run.attributes["final_test_accuracy"] <= 1 and len(run.curve["time"]) >= 1
    for before, one in zip(kept, servers_of(job), strict=True):
        assert torch.equal(before, one.w)
    assert_is_the_servers(job, final_model(job))


def test_a_request_to_stop_on_the_server():
    job = job_of("adsp", 3, network_of(**SLOW), RANDOM, stragglers=STRAGGLERS, steps=1000)
    server, worker = job.trainers[3], job.trainers[0]
    stop_after(job, 0.2, worker, server)
    assert job.train() == "enough" and job.env.now < 1.0
    job.evaluate()
    assert_is_the_servers(job, final_model(job))


@every_strategy_and_place
def test_a_loss_that_is_no_number(strategy, server, servers):
    """It is not pushed."""
    job = job_of(strategy, 3, network_of(**SLOW), RANDOM, server, servers, stragglers=STRAGGLERS, steps=1000)
    trainer = job.trainers[2]
    gradient, calls = trainer.gradients.next_gradient, []

    def poisoned():
        calls.append(gradient())
        if len(calls) < 6:
            return calls[-1]
        trainer.replica.grads.tensor.fill_(math.nan)
        return dict.fromkeys(calls[-1], math.nan)

    trainer.gradients.next_gradient = poisoned
    reason = "non-finite loss (nan) on rank 2 at step 5"
    assert job.train() == reason
    assert {one.stop_signal.reason for one in job.trainers} == {reason}
    qualities, final = job.evaluate()
    assert 0 <= final.mean <= 1
    assert_is_the_servers(job, final_model(job))


# ---- lost workers


def pausing(rank, seconds, every=5, **options):
    """Sections of a run in which a rank pauses once, in its fifth step, and the time-out is 0.5 s."""
    return {
        "options": {"worker_timeout": 0.5, **options},
        "stragglers": {"pause": {rank: {"every": every, "seconds": seconds}}},
    }


@every_strategy
@pytest.mark.parametrize("server, servers", [("dedicated", 1), ("dedicated", 2), ("shared", 1), ("shared", 2)])
def test_a_lost_worker_ends_the_job(strategy, server, servers):
    job = job_of(strategy, 3, server=server, servers=servers, steps=1000, **pausing(2, 1e6))
    reason = r"the server on rank \d has lost worker 2: no push for 0.5\d* s, algorithm.worker_timeout = 0.5\n"
    with pytest.raises(LostWorker, match=reason):
        job.train()
    assert 0.5 < job.env.now < 0.7


@every_strategy
@pytest.mark.parametrize("server", ["dedicated", "shared"])
def test_a_pause_within_the_timeout_loses_nobody(strategy, server):
    """Nor do those who wait for the one that pauses."""
    job = job_of(strategy, 3, server=server, steps=12, **pausing(2, 0.4, on_lost_worker="evict"))
    assert job.train() == "steps"
    assert all(
        trainer.algorithm.lost == frozenset() == frozenset(trainer.algorithm.warnings()) for trainer in job.trainers
    )
    assert steps_of(job)[2] >= 5


@every_strategy
@pytest.mark.parametrize("server", ["dedicated", "shared"])
def test_the_others_go_on(strategy, server):
    """Without a worker that does not come back before the end."""
    job = job_of(strategy, 3, server=server, steps=40, **pausing(2, 1e6, on_lost_worker="evict"))
    ends = {}
    for rank, trainer in enumerate(job.trainers):
        trainer.algorithm.average = partial(noted, ends, rank, job, trainer.algorithm.average)
    pushed, applied = watch_gradients(job)
    assert job.train() == "steps"
    left = [0, 1, 3] if server == "dedicated" else [0, 1]
    assert job.left() == left and sorted(ends) == left and max(ends.values()) < 2
    for rank in left:
        assert job.trainers[rank].algorithm.lost == {2}
        assert job.trainers[rank].algorithm.uncounted_comm.size == len(left), "all that are left"
    (one,) = servers_of(job)
    assert one.applied == sum(one.staleness.values()) >= 3 * 40
    assert_applied_but_dropped(one, pushed, applied, late=[2])
    warned = [warning for trainer in job.trainers for warning in trainer.algorithm.warnings()]
    (warning,) = warned
    assert warning.startswith("went on without rank 2: no push for 0.5")
    qualities, final = job.evaluate()
    assert 0 <= final.mean <= 1
    rows = models(job)[left]
    assert (rows == rows[0]).all()
    assert_is_the_servers(job, rows[0])


def noted(ends, rank, job, original):
    ends[rank] = job.env.now
    return original()


@every_strategy
@pytest.mark.parametrize("server", ["dedicated", "shared"])
def test_one_that_comes_back_is_there_in_the_end(strategy, server):
    """The step whose gradient is not applied does not count; it ends regularly and is evaluated with the others."""
    job = job_of(strategy, 3, server=server, steps=150, **pausing(2, 1.0, on_lost_worker="evict"))
    pushed, applied = watch_gradients(job)
    assert job.train() == "steps"
    assert job.left() == list(range(job.ranks))
    assert steps_of(job)[2] == 4 and min(steps_of(job)[:2]) > 150
    (one,) = servers_of(job)
    assert list(one.evicted) == [2]
    assert len(applied.get((one.comm.rank, 2), [])) + one.strategy.dropped[2] == 4
    assert len(run_of(job).curve["time"]) >= 1
    assert_is_the_servers(job, final_model(job))


def test_all_workers_lost():
    """The server ends; they come back when it is over and are told."""
    pauses = {rank: {"every": 5, "seconds": 1e3} for rank in range(3)}
    options = {"worker_timeout": 0.5, "on_lost_worker": "evict"}
    job = job_of("asp", 3, steps=40, options=options, stragglers={"pause": pauses})
    job.train()
    assert job.left() == [3]
    assert servers_of(job)[0].applied == 12
    job.evaluate()


def run_file_after_a_loss(path, seconds):
    sections = pausing(2, seconds, on_lost_worker="evict")
    algorithm = section("adsp", **sections.pop("options"))
    chosen = config(algorithm, steps=150, **sections)
    assert simulate(chosen, 4, network_of(**SLOW), path, CONSTANT) == "steps"
    run = load_run(path)
    (warning,) = run.attributes["warnings"]
    assert warning.startswith("rank 3: went on without rank 2: no push for 0.5")
    assert 0 <= run.attributes["final_test_accuracy"] <= 1
    return run


def test_the_run_file_with_one_that_came_back(tmp_path):
    run = run_file_after_a_loss(tmp_path / "run.h5", 1.0)
    assert "lost" not in run.attributes
    assert len(run.curve["time"]) >= 1 and run.curve["time"][-1] < 20
    assert run.ranks["steps"].tolist()[2:] == [4, 0]


def test_the_run_file_with_one_lost_for_good(tmp_path):
    """As on real MPI: it is named, and nothing that it did after that counts."""
    run = run_file_after_a_loss(tmp_path / "run.h5", 1e6)
    found = run.attributes.get("lost"), run.curve["time"][-1] < 20, run.attributes["virtual_seconds"] < 20
    assert found == ([2], True, True)
    assert run.attributes["virtual_seconds"] >= run.curve["time"][-1]
    assert len(run.curve["time"]) == 4


# ---- refusals


@pytest.mark.parametrize(
    "options, ranks, message",
    [
        ({}, 1, r"servers = 1 \(dedicated\) with 1 ranks; at most 0 can be servers$"),
        ({"servers": 3}, 3, r"servers = 3 \(dedicated\) with 3 ranks; at most 2 can be servers$"),
        ({"servers": 4, "server": "shared"}, 3, r"servers = 4 \(shared\) with 3 ranks; at most 3 can be servers$"),
        ({"strategy": "adsp", "s": 5, "smax": 4}, 3, r"smax = 4(\.0)?: must be at least s = 5(\.0)?$"),
    ],
)
def test_refused_with_so_many_ranks(options, ranks, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config(section(**{"strategy": "bsp"} | options)).check_ranks(ranks)
    assert str(caught.value).startswith("algorithm parameter_server: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"on_lost_worker": "evict", "servers": 2}, 'on_lost_worker = "evict" needs servers = 1'),
        ({"servers": 0}, "algorithm.servers = 0: "),
        ({"s": -1.0}, "algorithm.s = -1.0: "),
        ({"s": 1.5}, "algorithm.s: must be a whole number from 0, or inf$"),
        ({"smax": 4.5}, "algorithm.smax: must be a whole number from 0, or inf$"),
        ({"lam": 0.5}, "algorithm.lam: is called algorithm.delay_ema now$"),
        ({"smax": -1.0}, "algorithm.smax = -1.0: "),
        ({"r_max": -1}, "algorithm.r_max = -1: "),
        ({"strategy": "sps"}, "algorithm.strategy = 'sps': "),
        ({"server": "own"}, "algorithm.server = 'own': "),
        ({"compensation": -0.1}, "algorithm.compensation = -0.1: "),
        ({"worker_timeout": 0.0}, "algorithm.worker_timeout = 0.0: "),
        ({"worker_timeout": math.inf}, "algorithm.worker_timeout = inf: "),
        ({"slow_factor": 0.0}, "algorithm.slow_factor = 0.0: "),
        ({"delay_ema": 1.5}, "algorithm.delay_ema = 1.5: "),
        ({"sevrers": 2}, "algorithm.sevrers: unknown key .did you mean servers"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config(section(**{"strategy": "adsp"} | options))
    assert "\n" not in str(caught.value)


def test_options_of_the_strategies_are_not_asgds():
    with pytest.raises(ConfigError, match="algorithm.s: unknown key"):
        config({"name": "asgd", "s": 3})


def test_smax_is_of_no_concern_to_other_strategies():
    config(section("ssp", s=20, smax=15)).check_ranks(3)


# ---- time-optimal strategies


@pytest.mark.parametrize("strategy", DROPS)
def test_near_the_optimal_time(strategy, tmp_path):
    """With a worker of a tenth of the others' speed, on a network that takes a hundredth of a step for the model."""
    chosen = config(section(strategy), steps=60, stragglers={"slowdown": {3: 10.0}})
    simulate(chosen, 5, network_of(bandwidth="100 mbit"), tmp_path / "run.h5", f"lognormal:{STEP},0.01")
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["bound_gradients"] == {"m_sync": 3, "rennala": 4, "ringmaster": 8}[strategy]
    assert 0.7 < time_over_optimum(run) < (1.2 if strategy == "m_sync" else 1.1)
    assert run.attributes["participation"] == pytest.approx(1 - run.extra["dropped"].sum() / run.ranks["steps"].sum())
    if strategy == "rennala":
        assert run.extra["dropped"][3] == run.ranks["steps"][3]  # the others make all updates
