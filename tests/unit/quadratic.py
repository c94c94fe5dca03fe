"""An algorithm on simulated ranks that minimise |A x - b|^2 / 2, each with its own A and b, and the same in NumPy."""

from functools import partial

import numpy as np
import torch
from simulated import Ranks

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.pollables import Compute
from grsgd.replica import Replica
from grsgd.simulate.driver import Driver

SIZE, STEPS = 7, 20
M = 8 * SIZE
RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 0.1
START = np.linspace(-1, 1, SIZE)


def matrix(rank):
    return np.eye(SIZE) + 0.1 * np.random.default_rng(rank).standard_normal((SIZE, SIZE))


def gradient(rank, x, step):
    A = matrix(rank)
    return A.T @ (A @ x - np.random.default_rng((rank, step)).standard_normal(SIZE))


class Model(torch.nn.Module):
    """``x`` is trained; ``statistics``, if there are any, stand for what batch normalisation keeps."""

    def __init__(self, statistics: int = 0):
        super().__init__()
        self.x = torch.nn.Parameter(torch.from_numpy(START.copy()))
        if statistics:
            self.register_buffer("statistics", torch.zeros(statistics, dtype=torch.float64))


class Job:
    """``n`` simulated ranks with the algorithm ``name``.

    ``seconds(rank, step)``: how long a gradient takes. ``spec``, ``random``: the network's, see `simulated.Ranks`.
    ``log``: what the ranks have done, as tuples (what, rank, ...), in order.
    """

    def __init__(
        self, name, n, seconds=lambda rank, step: 1.0, spec=None, random=None, rate=RATE, statistics=0, **options
    ):
        self.n = n
        self.rate = lambda step: rate
        self.log: list[tuple] = []
        self.ends: list[list[float]] = [[] for _ in range(n)]
        """The times at which each rank ended a step."""
        self.ranks = Ranks(n, spec, random, driver=partial(Driver, compute_seconds=seconds))
        asides = self.ranks.world.communicators()
        cls = ALGORITHMS[name]
        self.algorithms = []
        for comm, aside, driver in zip(self.ranks.comms, asides, self.ranks.drivers, strict=True):
            model = Model(statistics)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
            replica = Replica(model, flat_gradients=cls.sends_gradients)
            algorithm = cls(cls.Options(**options), replica, optimizer, comm, aside, driver, 7)
            self.algorithms.append(algorithm)
            self.note(algorithm, "update")

    def note(self, algorithm, method, *what):
        """Log every call of ``method``, which does not wait; ``what``: functions of its arguments to log as well."""
        original = getattr(algorithm, method)

        def noted(*arguments):
            self.log.append((method, algorithm.comm.rank, *(one(*arguments) for one in what)))
            return original(*arguments)

        setattr(algorithm, method, noted)

    @property
    def X(self):
        """All models, a row a rank."""
        return np.array([algorithm.x.array for algorithm in self.algorithms])

    def train(self, steps=STEPS, after=None, drain=True):
        """Let all ranks take ``steps`` (a number, or one a rank) and drain; ``after`` is called after every event."""
        steps = [steps] * self.n if isinstance(steps, int) else steps
        self.ranks.finish([self.trainer(rank, count, drain) for rank, count in enumerate(steps)], after)
        return self

    def trainer(self, rank, steps, drain=True):
        algorithm = self.algorithms[rank]
        algorithm.start()
        for step in range(steps):
            yield from algorithm.before_backward() or ()
            yield Compute(partial(self.differentiate, rank, step))
            yield from algorithm.step() or ()
            self.ends[rank].append(self.ranks.env.now)
        if drain:
            yield from algorithm.drain() or ()

    def differentiate(self, rank, step):
        self.log.append(("gradient", rank, step))
        replica = self.algorithms[rank].replica
        self.algorithms[rank].optimizer.param_groups[0]["lr"] = self.rate(step)
        replica.model.x.grad = torch.from_numpy(gradient(rank, replica.params.array, step))
        replica.collect_gradients()

    def average(self):
        self.ranks.finish([algorithm.average() or () for algorithm in self.algorithms])
        return self

    def sent(self):
        """Payload bytes of all ranks, without what is sent aside."""
        return sum(int(comm.traffic.sent.sum()) for comm in self.ranks.comms)

    def messages(self):
        return sum(int(comm.traffic.messages.sum()) for comm in self.ranks.comms)

    def headers(self):
        return sum(int(comm.traffic.headers.sum()) for comm in self.ranks.comms)

    def nothing_is_left(self):
        """Whether every message has been received and every receive has had its message."""
        inboxes = self.ranks.world._inboxes.values()
        posted = sum(len(queue) for inbox in inboxes for queue in (inbox.posted_any, *inbox.posted.values()))
        return not self.ranks.world.under_way and not posted


class Reference:
    """All models in one matrix, float64."""

    def __init__(self, n, rate=RATE):
        self.X = np.tile(START, (n, 1))
        self.V, self.G = np.zeros_like(self.X), np.zeros_like(self.X)
        self.rate = rate
        self.learnt = np.zeros_like(self.X)
        """The sum of all updates of each rank."""

    def gradient(self, rank, step):
        self.G[rank] = gradient(rank, self.X[rank], step)

    def update(self, rank):
        self.V[rank] = MOMENTUM * self.V[rank] + self.G[rank] + WEIGHT_DECAY * self.X[rank]
        self.X[rank] -= self.rate * self.V[rank]
        self.learnt[rank] -= self.rate * self.V[rank]

    def step(self, step):
        """All ranks: one local step."""
        for rank in range(len(self.X)):
            self.gradient(rank, step)
            self.update(rank)

    def replay(self, log):
        """Go through a `Job.log`; each kind of event is a method here or in a subclass."""
        for what, *arguments in log:
            getattr(self, what)(*arguments)
        return self


def straggler(factor=4.0, rank=0):
    """``seconds`` of a `Job` with one slow rank."""
    return lambda i, step: factor if i == rank else 1.0


def uneven(rank, step):
    """``seconds`` of a `Job`: the ranks are equally fast, their steps are not."""
    return 0.6 + 0.8 * np.random.default_rng((rank, step)).random()


def random_speeds(seed):
    """``seconds`` of a `Job`: each rank has its speed, and each step a random part of it."""

    def seconds(rank, step):
        random = np.random.default_rng((seed, rank))
        speed = random.choice([0.2, 1, 3])
        return speed * (0.5 + np.random.default_rng((seed, rank, step)).random())

    return seconds
