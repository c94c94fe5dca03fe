"""Every algorithm against a dense reference: all models in one float64 matrix, a few lines of NumPy."""

import itertools

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.allreduce import ALLREDUCE, THROUGH_MEMORY
from grsgd.comm.topologies import topology
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, RATE, SIZE, STEPS, WEIGHT_DECAY, Quadratic
from tests.support.real_ranks import finish, models, start, take_step

BUCKETED = [(name, 2) for name in ALLREDUCE if name not in THROUGH_MEMORY]
FOR_ANY_LOOP = sorted(name for name, cls in ALGORITHMS.items() if not cls.traits.decides_who_computes)


@pytest.mark.parametrize(("variant", "buckets"), [(name, None) for name in ALLREDUCE] + BUCKETED)
def test_ring_allreduce(world, driver, variant, buckets):
    algorithm = start(world, driver, "ring_allreduce", variant=variant, buckets=buckets)
    X, velocity = PROBLEM.initial(world.size), 0
    for step in range(STEPS):
        take_step(algorithm, step)
        velocity = MOMENTUM * velocity + (PROBLEM.gradients(X, step) + WEIGHT_DECAY * X).mean(0)
        X = X - RATE * velocity
        rows = models(world, algorithm)
        assert (rows == rows[0]).all(), "replicas must stay bit-identical"
        assert np.abs(rows - X).max() < 1e-12
    finish(algorithm)
    assert (models(world, algorithm) == rows).all()
    if variant in ("ring", "swing", "mpi", "shared"):
        M = algorithm.replica.nbytes
        total = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
        assert total == STEPS * 2 * (world.size - 1) * M


@pytest.mark.parametrize("graph", ["ring", "exponential", "full"])
def test_dpsgd(world, driver, graph):
    algorithm = start(world, driver, "dpsgd", topology=graph)
    n = world.size
    W = topology.build(graph, n).matrix(0)
    X, velocity = PROBLEM.initial(n), 0
    for step in range(STEPS):
        take_step(algorithm, step)
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        X = W @ X - RATE * velocity
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    degree = len(topology.build(graph, n).out_neighbours(world.rank))
    assert algorithm.comm.traffic.sent.sum() == STEPS * degree * algorithm.replica.nbytes
    if graph == "ring" and n > 2:
        assert degree == 2
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X.mean(0)).max() < 1e-12


def lockstep(algorithm, world):
    """Wait until the messages that were sent in this step lie in the inboxes, so that all runs are alike."""
    world.Barrier()
    mailbox = algorithm.mailbox
    senders = {(world.rank - 1) % world.size} - {world.rank}

    def arrived():
        while senders - {message.sender for message in mailbox.waiting()}:
            algorithm.driver.poll()
            yield
        yield from mailbox.until_delivered()

    algorithm.driver.run(arrived())
    world.Barrier()


def test_grsgd_in_lockstep(world, driver):
    """Policy successor, H = 1, equal speeds: a step mixes with (I + S)/2, S the cyclic shift, after the gradient."""
    n = world.size
    algorithm = start(world, driver, "grsgd", policy="successor")
    mixing = (np.eye(n) + np.roll(np.eye(n), 1, 0)) / 2 if n > 1 else np.eye(1)
    if n > 1:
        assert np.isclose(np.sort(np.abs(np.linalg.eigvals(mixing)))[-2], np.cos(np.pi / n))
    X, velocity = PROBLEM.initial(n), 0
    for step in range(STEPS):
        take_step(algorithm, step, world.Barrier)  # no message of this step comes before the merge of the last
        velocity = MOMENTUM * velocity + PROBLEM.gradients(X, step) + WEIGHT_DECAY * X
        X = X - RATE * velocity
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
        lockstep(algorithm, world)
        X = mixing @ X  # merged before the next gradient
        if n > 1:
            assert algorithm.a == 0.5
    messages = algorithm.comm.traffic.messages.sum()
    assert messages == (STEPS if n > 1 else 0)
    assert algorithm.comm.traffic.sent.sum() == messages * (algorithm.replica.nbytes + 8)
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X.mean(0)).max() < 1e-12


@pytest.mark.parametrize("policy", ["successor", "alternate", "random"])
@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("capacity", [1, 2])
def test_grsgd_without_gradient_keeps_the_weighted_mean(world, driver, policy, H, capacity):
    algorithm = start(world, driver, "grsgd", rate=0.0, policy=policy, H=H, inbox_capacity=capacity)
    algorithm.x.array[:] = np.random.default_rng(world.rank).standard_normal(SIZE)
    mean = models(world, algorithm).mean(0)
    for step in range(40 + 10 * world.rank):  # unequal lengths and speeds
        take_step(algorithm, step)
    driver.run(algorithm.drain())
    weights = world.allgather(algorithm.a)
    assert abs(sum(weights) - world.size) < 1e-12 and min(weights) > 0
    rows = models(world, algorithm)
    assert np.abs(np.array(weights) @ rows / world.size - mean).max() < 1e-12
    driver.run(algorithm.average())
    assert np.abs(models(world, algorithm) - mean).max() < 1e-12
    traffic = algorithm.comm.traffic
    messages = traffic.messages.sum()
    assert traffic.sent.sum() == messages * (algorithm.replica.nbytes + 8)
    received = sum(algorithm.staleness.values())
    assert world.allreduce(received) <= world.allreduce(int(messages))


@pytest.mark.parametrize("name", FOR_ANY_LOOP)
@pytest.mark.ranks(1)
def test_one_rank_is_plain_sgd(world, driver, name):
    no_outer_momentum = {"outer_lr": 1.0, "outer_momentum": 0.0} if name in ("diloco", "noloco") else {}
    algorithm = start(world, driver, name, **no_outer_momentum)
    model = Quadratic(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for step in range(STEPS):
        take_step(algorithm, step)
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    finish(algorithm)
    assert torch.equal(algorithm.x.tensor, model.x.data)
    assert algorithm.comm.traffic.messages.sum() == 0


@pytest.mark.parametrize("name", FOR_ANY_LOOP)
def test_reaches_the_optimum_of_a_quadratic(world, driver, name):
    """The averaged model comes near the optimum of the mean loss, whatever the mixing."""
    room = {"inbox_capacity": world.size} if name == "gosgd" else {}  # for a message of each other rank
    algorithm = start(world, driver, name, rate=0.01, **room)
    A = np.array([PROBLEM.matrix(i) for i in range(world.size)])
    b = np.array([np.mean([PROBLEM.target(i, step) for step in range(5)], 0) for i in range(world.size)])
    decay = world.size * WEIGHT_DECAY * np.eye(SIZE)
    optimum = np.linalg.solve(np.einsum("nki,nkj->ij", A, A) + decay, np.einsum("nki,nk->i", A, b))
    for step in itertools.islice(itertools.cycle(range(5)), 400):
        take_step(algorithm, step)
        # Equal speeds: the ranks' losses differ, so a fast rank would pull the mean to its own; and so would one
        # whose messages wait, since it keeps its weight. The driver goes on with what others need meanwhile.
        if hasattr(algorithm, "mailbox"):
            driver.run(algorithm.mailbox.until_delivered())
        driver.run(request for request in [world.Ibarrier()])
    finish(algorithm)
    assert np.linalg.norm(algorithm.x.array - optimum) < 0.3 * np.linalg.norm(PROBLEM.initial(1)[0] - optimum)
