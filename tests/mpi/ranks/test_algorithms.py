"""Every algorithm against a dense reference: all models in one float64 matrix, a few lines of NumPy."""

import itertools

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.comm import topology
from grsgd.comm.communicator import Communicator
from grsgd.replica import Replica

SIZE, STEPS = 12, 20
RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 0.1
FOR_ANY_LOOP = sorted(name for name, cls in ALGORITHMS.items() if cls.for_any_loop)


class Quadratic(torch.nn.Module):
    """Loss |A x - b_step|^2 / 2 of one rank, with its gradient known in closed form."""

    def __init__(self, rank):
        super().__init__()
        self.x = torch.nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=torch.float64))
        self.A = torch.from_numpy(matrix(rank))
        self.rank = rank

    def forward(self, step):
        return (self.A @ self.x - torch.from_numpy(target(self.rank, step))).square().sum() / 2


def matrix(rank):
    return np.eye(SIZE) + 0.1 * np.random.default_rng(rank).standard_normal((SIZE, SIZE))


def target(rank, step):
    return np.random.default_rng((rank, step)).standard_normal(SIZE)


def gradients(X, step):
    """Row i: the gradient of rank i at row i of X."""
    return np.array([matrix(i).T @ (matrix(i) @ x - target(i, step)) for i, x in enumerate(X)])


def start(world, driver, name, rate=RATE, **options):
    cls = ALGORITHMS[name]
    model = Quadratic(world.rank)
    replica = Replica(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    comms = Communicator(world.Dup()), Communicator(world.Dup())
    algorithm = cls(cls.Options(**options), replica, optimizer, *comms, driver, 7)
    algorithm.start()
    return algorithm


def take_step(algorithm, step, in_between=lambda: None):
    algorithm.driver.run(algorithm.before_backward())
    in_between()
    algorithm.replica.zero_gradients()
    algorithm.replica.model(step).backward()
    algorithm.replica.collect_gradients()
    algorithm.driver.run(algorithm.step())


def models(world, algorithm):
    return np.array(world.allgather(algorithm.x.array.copy()))


def finish(algorithm):
    algorithm.driver.run(algorithm.drain())
    algorithm.driver.run(algorithm.average())


def initial(n):
    return np.tile(np.linspace(-1, 1, SIZE), (n, 1))


@pytest.mark.parametrize("variant", ["ring", "halving-doubling", "tree", "mpi"])
def test_ring_allreduce(world, driver, variant):
    algorithm = start(world, driver, "ring_allreduce", variant=variant)
    X, velocity = initial(world.size), 0
    for step in range(STEPS):
        take_step(algorithm, step)
        velocity = MOMENTUM * velocity + (gradients(X, step) + WEIGHT_DECAY * X).mean(0)
        X = X - RATE * velocity
        rows = models(world, algorithm)
        assert (rows == rows[0]).all(), "replicas must stay bit-identical"
        assert np.abs(rows - X).max() < 1e-12
    finish(algorithm)
    assert (models(world, algorithm) == rows).all()
    if variant in ("ring", "mpi"):
        M = algorithm.replica.nbytes
        total = world.allreduce(int(algorithm.comm.traffic.sent.sum()))
        assert total == STEPS * 2 * (world.size - 1) * M


@pytest.mark.parametrize("graph", ["ring", "exponential", "full"])
def test_dpsgd(world, driver, graph):
    algorithm = start(world, driver, "dpsgd", topology=graph)
    n = world.size
    W = topology.build(graph, n).matrix
    X, velocity = initial(n), 0
    for step in range(STEPS):
        take_step(algorithm, step)
        velocity = MOMENTUM * velocity + gradients(X, step) + WEIGHT_DECAY * X
        X = W @ X - RATE * velocity
        assert np.abs(models(world, algorithm) - X).max() < 1e-12
    degree = len(topology.build(graph, n).receivers(world.rank))
    assert algorithm.comm.traffic.sent.sum() == STEPS * degree * algorithm.replica.nbytes
    if graph == "ring" and n > 2:
        assert degree == 2
    finish(algorithm)
    assert np.abs(models(world, algorithm) - X.mean(0)).max() < 1e-12


def lockstep(algorithm, world):
    """Wait until the letters that were sent in this step lie in the inboxes, so that all runs are alike."""
    world.Barrier()
    mailbox = algorithm.mailbox

    def arrived():
        while any(len(mailbox._waiting[source]) < 1 for source in mailbox.sources):
            algorithm.driver.poll()
            yield
        yield [message for message, _ in mailbox._sending.values()]

    algorithm.driver.run(arrived())
    world.Barrier()


def test_grsgd_in_lockstep(world, driver):
    """Policy succ, H = 1, equal speeds: a step mixes with (I + S)/2, S the cyclic shift, after the gradient."""
    n = world.size
    algorithm = start(world, driver, "grsgd", policy="succ")
    mixing = (np.eye(n) + np.roll(np.eye(n), 1, 0)) / 2 if n > 1 else np.eye(1)
    if n > 1:
        assert np.isclose(np.sort(np.abs(np.linalg.eigvals(mixing)))[-2], np.cos(np.pi / n))
    X, velocity = initial(n), 0
    for step in range(STEPS):
        take_step(algorithm, step, world.Barrier)  # nobody's letter of this step comes before the merge of the last
        velocity = MOMENTUM * velocity + gradients(X, step) + WEIGHT_DECAY * X
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


@pytest.mark.parametrize("policy", ["succ", "alt", "rand2"])
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
    letters = traffic.messages.sum()
    assert traffic.sent.sum() == letters * (algorithm.replica.nbytes + 8)
    received = sum(algorithm.staleness.values())
    assert world.allreduce(received) <= world.allreduce(int(letters))


@pytest.mark.parametrize("name", FOR_ANY_LOOP)
@pytest.mark.ranks(1)
def test_one_rank_is_plain_sgd(world, driver, name):
    algorithm = start(world, driver, name)
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
    room = {"inbox_capacity": world.size} if name == "gosgd" else {}  # for a letter of each other rank
    algorithm = start(world, driver, name, rate=0.01, **room)
    A = np.array([matrix(i) for i in range(world.size)])
    b = np.array([np.mean([target(i, step) for step in range(5)], 0) for i in range(world.size)])
    decay = world.size * WEIGHT_DECAY * np.eye(SIZE)
    optimum = np.linalg.solve(np.einsum("nki,nkj->ij", A, A) + decay, np.einsum("nki,nk->i", A, b))
    for step in itertools.islice(itertools.cycle(range(5)), 400):
        take_step(algorithm, step)
        # Equal speeds: the ranks' losses differ, so a fast rank would pull the mean to its own; and so would one
        # whose letters wait, since it keeps its weight. The driver goes on with what others need meanwhile.
        if hasattr(algorithm, "mailbox"):
            driver.run(message for message in algorithm.mailbox.under_way())
        driver.run(request for request in [world.Ibarrier()])
    finish(algorithm)
    assert np.linalg.norm(algorithm.x.array - optimum) < 0.3 * np.linalg.norm(initial(1)[0] - optimum)
