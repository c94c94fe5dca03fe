"""Parameter servers: what must hold in whatever order messages arrive, and bulk-synchronous against a reference."""

import time
from collections import Counter

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.central import Excluded
from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.models.replica import Replica
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, RATE, SIZE, STEPS, WEIGHT_DECAY, Quadratic
from grsgd.training.progress import Progress
from tests.support.real_ranks import models, nothing_is_left

pytestmark = pytest.mark.ranks(2, 3, 4, 5)

NAMES = ("bsp", "asp", "ssp", "dssp", "adsp", "m_sync", "rennala", "ringmaster")
SLOW_SECONDS = 2e-3
every_strategy = pytest.mark.parametrize("strategy", NAMES)
every_place = pytest.mark.parametrize(
    "server, servers", [("dedicated", 1), ("dedicated", 2), ("shared", 1), ("shared", 2)]
)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def make(world, driver, name="parameter_server", optimizer=None, **options):
    if options.get("server") == "dedicated" and options.get("servers", 1) >= world.size:
        pytest.skip("no rank is left to train")
    cls = ALGORITHMS[name]
    options = cls.Options(**options)
    cls.check(options, world.size)
    model = Quadratic(world.rank, statistics=3)
    model.statistics.fill_(world.rank)
    replica = Replica(model)
    optimizer = (optimizer or sgd)(model.parameters())
    comms = Communicator(MpiBackend(world.Dup())), Communicator(MpiBackend(world.Dup()))
    progress = Progress(comms[1], driver, end=None, seconds=1.0, snapshots=1)
    return cls(options, replica, optimizer, RankContext(*comms, driver, seed=7, progress=progress))


def train(algorithm, steps, pause=lambda step: 0.0):
    """All of a training; returns the gradients that this rank has pushed."""
    driver, pushed = algorithm.driver, []
    algorithm.start()
    driver.run(algorithm.begin())
    while not algorithm.is_worker and not driver.run(algorithm.serve()):
        pass
    for step in range(steps if algorithm.is_worker else 0):
        time.sleep(pause(step))
        algorithm.replica.zero_gradients()
        algorithm.replica.model(step).backward()
        algorithm.replica.collect_gradients()
        pushed.append(algorithm.replica.grads.array.copy())
        try:
            driver.run(algorithm.step())
        except Excluded:
            algorithm.was_excluded = True
    driver.run(algorithm.drain())
    driver.run(algorithm.average())
    return pushed


def slow_first(rank):
    return lambda step: SLOW_SECONDS * (rank == 0) + SLOW_SECONDS * (step % 7 == rank)


@every_strategy
@every_place
def test_every_push_is_applied_and_all_end_alike(world, driver, strategy, server, servers):
    """Everybody takes a number of steps of its own; gradients are applied once each, by every server its part."""
    algorithm = make(world, driver, strategy=strategy, server=server, servers=servers)
    applied = {}
    if algorithm.server is not None:
        gather = algorithm.server.gather

        def noted(worker, weight, compensated):
            applied.setdefault(worker, []).append(algorithm.server.g[worker].array.copy())
            return gather(worker, weight, compensated)

        algorithm.server.gather = noted
    pushed = train(algorithm, 10 + 5 * world.rank, slow_first(world.rank))
    rows, everybody, workers = models(world, algorithm), world.allgather(pushed), algorithm.n
    quiet = nothing_is_left(world, algorithm)
    assert (rows == rows[0]).all() and np.isfinite(rows).all()
    assert np.abs(rows[0] - PROBLEM.initial(1)[0]).max() > 0.05
    assert [len(own) for own in everybody] == [10 + 5 * rank if rank < workers else 0 for rank in range(world.size)]
    if algorithm.server is not None:
        begin, end = algorithm.shards[world.rank]
        dropped = algorithm.server.strategy.dropped
        assert algorithm.server.applied == sum(algorithm.staleness.values())
        for worker in range(workers):
            own, pushes = applied.get(worker, []), [g[begin:end].tobytes() for g in everybody[worker]]
            assert len(own) + dropped[worker] == len(pushes)
            left = iter(pushes)
            assert all(g.tobytes() in left for g in own), "not in the order of pushes"
        assert np.array_equal(rows[0][begin:end], algorithm.server.w.numpy())
        assert not algorithm.server.strategy.active and not algorithm.server.strategy.buffer
    else:
        assert algorithm.staleness == Counter()
    assert np.abs(algorithm.replica.buffers.array - (workers - 1) / 2).max() < 1e-12
    assert quiet


@every_place
@pytest.mark.parametrize(
    "options", [{}, {"strategy": "adsp", "s": 0.0, "smax": 0.0, "straggler_weight": "one"}], ids=["bsp", "adsp"]
)
def test_bulk_synchronous(world, driver, options, server, servers):
    """Against SGD with momentum on the mean gradient; the servers' part of the traffic is as much as the workers'."""
    algorithm = make(world, driver, **{"strategy": "bsp", "server": server, "servers": servers} | options)
    train(algorithm, STEPS, slow_first(world.rank))
    X, velocity = PROBLEM.initial(algorithm.n), 0
    for step in range(STEPS):
        velocity = MOMENTUM * velocity + (PROBLEM.gradients(X, step) + WEIGHT_DECAY * X).mean(0)
        X = X - RATE * velocity
    rows, sent = models(world, algorithm), np.array(world.allgather(algorithm.comm.traffic.sent))
    assert np.abs(rows - X[0]).max() < 1e-12
    expected = np.zeros_like(sent)
    for rank, (begin, end) in algorithm.shards.items():
        for worker in set(range(algorithm.n)) - {rank}:
            expected[worker, rank] += STEPS * 8 * (end - begin)
            expected[rank, worker] += STEPS * 8 * (end - begin)
    assert np.array_equal(sent, expected)
    if algorithm.server is not None:
        assert algorithm.server.strategy.version == STEPS and set(algorithm.staleness) == {0}


@pytest.mark.parametrize("server", ["dedicated", "shared"])
def test_bulk_synchronous_runs_are_alike_bit_for_bit(world, driver, server):
    ends = []
    for slow in (0, 1):
        algorithm = make(world, driver, strategy="bsp", server=server)
        train(algorithm, 10, lambda step, slow=slow: SLOW_SECONDS * (world.rank == slow))
        ends.append(models(world, algorithm))
    assert np.array_equal(*ends)


@pytest.mark.parametrize("server", ["dedicated", "shared"])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.Adam(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)],
    ids=["adam", "adamw"],
)
def test_any_optimizer(world, driver, server, optimizer):
    """Bulk-synchronous, against the same optimizer of one process."""
    algorithm = make(world, driver, optimizer=optimizer, strategy="bsp", server=server)
    train(algorithm, STEPS)
    x = torch.nn.Parameter(torch.from_numpy(PROBLEM.initial(1)[0].copy()))
    alone = optimizer([x])
    for step in range(STEPS):
        X = np.tile(x.detach().numpy(), (algorithm.n, 1))
        x.grad = torch.from_numpy(PROBLEM.gradients(X, step).mean(0))
        alone.step()
    assert np.abs(models(world, algorithm) - x.detach().numpy()).max() < 1e-10


def test_asgd(world, driver):
    """Nobody waits for the slow worker; what it pushes counts, and is old. So do weights and compensation."""
    if world.size < 3:
        pytest.skip("one worker alone")
    algorithm = make(world, driver, "asgd", staleness_aware=True, compensation=0.04)
    train(algorithm, 60 if world.rank else 10, lambda step: 0.0 if world.rank else 5e-3)
    rows = models(world, algorithm)
    assert (rows == rows[0]).all() and np.isfinite(rows).all() and rows.shape[1] == SIZE
    if algorithm.server is not None:
        assert algorithm.server.applied == algorithm.server.strategy.version == 10 + 60 * (algorithm.n - 1)
        assert max(algorithm.staleness) > 1


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy, server", [("bsp", "dedicated"), ("adsp", "dedicated"), ("asp", "shared")])
def test_the_others_go_on_without_one_that_is_silent(world, driver, strategy, server):
    """It comes back before the others end, is told, and all end together."""
    silent = world.size - (2 if server == "dedicated" else 1)
    algorithm = make(world, driver, strategy=strategy, server=server, worker_timeout=1.0, on_lost_worker="evict")
    if world.rank == silent:
        train(algorithm, 4, lambda step: 2.0 if step == 3 else 0.0)
    else:
        train(algorithm, 60, lambda step: 0.06)
    rows, quiet = models(world, algorithm), nothing_is_left(world, algorithm)
    assert algorithm.lost == frozenset() and (rows == rows[0]).all() and quiet
    if world.rank == silent:
        assert algorithm.was_excluded
    if algorithm.server is not None:
        assert list(algorithm.server.evicted) == [silent]
        assert algorithm.server.applied == 3 + 60 * (algorithm.n - 1)
        (warning,) = algorithm.warnings()
        assert warning.startswith(f"went on without rank {silent}: no push for 1")
