"""Simulated ranks, each of which minimises |A x - b|^2 / 2 for its own A and b, for tests of algorithms; and a
reference computation of the same models in NumPy."""

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from grsgd.algorithms.central import workers_of
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.find import find
from grsgd.algorithms.hooks import schedule_of
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.comm.pollables import Compute
from grsgd.models.replica import Replica
from grsgd.simulator.compute import ComputeTime
from grsgd.simulator.driver import SimulatedDriver
from grsgd.testing.simulated import Ranks, network_of
from grsgd.training.progress import Progress

SIZE, STEPS = 7, 20
M = 8 * SIZE
RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 0.1


@dataclass(frozen=True)
class Problem:
    """Losses of all ranks: the loss of a rank is |A x - b|^2 / 2 for its own A and b. The matrix A of a rank is the
    identity plus ``skew`` times noise. The vector b of a rank is ``shift`` plus noise, which differs from step to step.
    If ``is_still`` is True, the vector b of a rank is the same in all steps."""

    size: int = SIZE
    skew: float = 0.1
    shift: float = 0.0
    is_still: bool = False

    @property
    def start(self):
        return np.linspace(-1, 1, self.size)

    def initial(self, n):
        """Return the models of ``n`` ranks before training, as a matrix with one row per rank."""
        return np.tile(self.start, (n, 1))

    @cache  # noqa: B019
    def matrix(self, rank):
        return np.eye(self.size) + self.skew * np.random.default_rng(rank).standard_normal((self.size, self.size))

    def target(self, rank, step):
        return self.shift + np.random.default_rng((rank, 0 if self.is_still else step)).standard_normal(self.size)

    def gradient(self, rank, x, step):
        A = self.matrix(rank)
        return A.T @ (A @ x - self.target(rank, step))

    def optimum(self, n):
        """Return the vector x that minimises the sum of the losses of ``n`` ranks, if the losses are the same in all
        steps."""
        matrices = [self.matrix(rank) for rank in range(n)]
        return np.linalg.solve(
            sum(A.T @ A for A in matrices), sum(A.T @ self.target(rank, 0) for rank, A in enumerate(matrices))
        )

    def gradients(self, X, step):
        """Return a matrix whose row i is the gradient of rank i at the model in row i of ``X``."""
        return np.array([self.gradient(i, x, step) for i, x in enumerate(X)])


PROBLEM = Problem()
SHIFTED = Problem(12, skew=0.0, shift=3.0)
"""Problem in which all ranks have the same optimum, except for noise, and start far from this optimum."""


class Quadratic(torch.nn.Module):
    """Model of one rank with a quadratic loss; its parameters form two layers. ``statistics`` is the number of elements
    of a buffer that stands for the statistics of a batch normalisation layer. If ``statistics`` is 0, the model has no
    buffer."""

    def __init__(self, rank: int, problem: Problem = PROBLEM, statistics: int = 0):
        super().__init__()
        self.rank, self.problem = rank, problem
        parts = torch.from_numpy(problem.start).split([problem.size - 3, 3])
        self.layers = torch.nn.ParameterList([torch.nn.Parameter(part.clone()) for part in parts])
        if statistics:
            self.register_buffer("statistics", torch.zeros(statistics, dtype=torch.float64))

    @property
    def x(self) -> torch.Tensor:
        return torch.cat(list(self.layers))

    def forward(self, step):
        A = torch.from_numpy(self.problem.matrix(self.rank))
        return (A @ self.x - torch.from_numpy(self.problem.target(self.rank, step))).square().sum() / 2

    def set_gradients(self, step):
        """Set the gradients that a backward pass of step number ``step`` would compute, without a backward pass."""
        x = self.x.detach().numpy()
        gradient = torch.from_numpy(self.problem.gradient(self.rank, x, step))
        for layer, part in zip(self.layers, gradient.split([x.size - 3, 3]), strict=True):
            layer.grad = part.clone()


class Job:
    """Group of ``n`` simulated ranks that minimise quadratic losses with the algorithm ``name``.

    ``seconds(rank, step)`` returns how many simulated seconds the computation of a gradient takes. ``spec`` and
    ``random`` describe the network, as in the class `simulated.Ranks`. ``schedule(step)`` returns a factor by which the
    learning rate ``rate`` is multiplied. The attribute ``log`` has the actions of all ranks in order, as tuples
    (action, rank, ...). The attribute ``trajectories`` has, for each rank, the rank's model after each of its steps.
    """

    def __init__(
        self,
        name,
        n,
        seconds=lambda rank, step: 1.0,
        spec=None,
        random=None,
        rate=RATE,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        schedule=lambda step: 1.0,
        statistics=0,
        problem=PROBLEM,
        **options,
    ):
        self.n, self.problem = n, problem
        self.rate = lambda step: rate * schedule(step)
        self.log: list[tuple] = []
        self.ends: list[list[float]] = [[] for _ in range(n)]
        """Simulated times, in seconds, at which each rank ended its steps."""
        self.trajectories = [[] for _ in range(n)]
        self.ranks = Ranks(n, spec, random, driver=partial(SimulatedDriver, compute_seconds=seconds))
        uncounted = self.ranks.fabric.communicators()
        cls = find(name)
        self.algorithms = []
        for comm, uncounted_comm, driver in zip(self.ranks.comms, uncounted, self.ranks.drivers, strict=True):
            model = Quadratic(comm.rank, problem, statistics)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
            replica = Replica(model, flat_gradients=cls.traits.sends_gradients)
            progress = Progress(uncounted_comm, driver, end=None, seconds=1.0, snapshots=1)
            context = RankContext(comm, uncounted_comm, driver, seed=7, progress=progress)
            algorithm = cls(cls.Options(**options), replica, optimizer, context)
            self.algorithms.append(algorithm)
            self.note(algorithm, "update")
        self.workers = workers_of(cls, cls.Options(**options), n)
        """Number of ranks that train."""
        self.M = self.algorithms[0].replica.nbytes

    def scatter(self):
        """Give every rank a different model."""
        for rank, algorithm in enumerate(self.algorithms):
            algorithm.x.array[:] = np.random.default_rng(rank).standard_normal(self.problem.size)

    def note(self, algorithm, method, *what):
        """Append each call of the method named ``method`` of ``algorithm`` to ``log``. If the method is a generator
        function, the call is logged before the generator runs. Each function in ``what`` takes the arguments of the
        logged call. The results of the functions in ``what`` are added to the entry in the log."""
        original = getattr(algorithm, method)

        def noted(*arguments):
            self.log.append((method, algorithm.comm.rank, *(one(*arguments) for one in what)))
            return original(*arguments)

        setattr(algorithm, method, noted)

    @property
    def X(self):
        """Models of all ranks, as a matrix with one row per rank."""
        return np.array([algorithm.x.array for algorithm in self.algorithms])

    def train(self, steps=STEPS, after=None, drain=True, after_step=lambda algorithm: None):
        """Run all ranks for ``steps`` steps; ``steps`` is a number, or a list with a number for each rank. If ``drain``
        is True, each rank receives all messages under way after its last step.

        ``after()`` is called after every event of the simulation, and ``after_step(algorithm)`` after every step of a
        rank.
        """
        steps = [steps] * self.n if isinstance(steps, int) else steps
        self.ranks.finish([self.trainer(rank, count, drain, after_step) for rank, count in enumerate(steps)], after)
        return self

    def trainer(self, rank, steps, drain, after_step):
        algorithm = self.algorithms[rank]
        lifecycle = Lifecycle(algorithm)
        yield from lifecycle.begin()
        for step in range(steps if rank < self.workers else 0):
            algorithm.optimizer.param_groups[0]["lr"] = self.rate(step)
            yield from schedule_of(algorithm.before_backward)
            yield Compute(partial(self.differentiate, rank, step), stages=self.stages(rank))
            yield from schedule_of(algorithm.step)
            self.ends[rank].append(self.ranks.env.now)
            self.trajectories[rank].append(algorithm.x.array.copy())
            after_step(algorithm)
        if drain:
            yield from lifecycle.drain()

    def stages(self, rank):
        """Return the points of the backward pass at which the gradients of layers are complete, for algorithms with the
        trait ``sends_early``. Each point is a pair: a fraction of the backward pass, and a function that calls
        ``gradient_ready``. On odd ranks the gradient of the first layer is complete first."""
        algorithm = self.algorithms[rank]
        if self.n == 1 or not algorithm.traits.sends_early:
            return ()
        return [(0.5 + 0.25 * k, partial(algorithm.gradient_ready, (1 + rank + k) % 2)) for k in range(2)]

    def differentiate(self, rank, step):
        self.log.append(("gradient", rank, step))
        replica = self.algorithms[rank].replica
        replica.model.set_gradients(step)
        replica.collect_gradients()

    def average(self):
        self.ranks.finish([Lifecycle(algorithm).average() for algorithm in self.algorithms])
        return self

    def sent(self):
        """Return the number of payload bytes that all ranks together have sent in counted messages."""
        return sum(int(comm.traffic.sent.sum()) for comm in self.ranks.comms)

    def messages(self):
        return sum(int(comm.traffic.messages.sum()) for comm in self.ranks.comms)

    def headers(self):
        return sum(int(comm.traffic.headers.sum()) for comm in self.ranks.comms)

    def spread(self):
        """Return the root-mean-square distance of all ranks' models from the mean model."""
        return np.linalg.norm(self.X - self.X.mean(0)) / np.sqrt(self.n)

    def nothing_is_left(self):
        """Return whether every sent message has been received, and every posted receive has got its message."""
        return self.ranks.fabric.is_idle()


def shifted_job(name, n, seconds=None, latencies=None, slow_link=False, **more) -> Job:
    """Return a `Job` of ``n`` ranks that minimise the losses of ``SHIFTED`` with the algorithm ``name``.

    ``latencies`` is the seed of the messages' random latencies. If ``latencies`` is None, messages have no random
    latencies. With ``slow_link`` long messages from rank 0 to rank 1 take 50 ms, and all other messages take no time.
    """
    random = None if latencies is None else np.random.default_rng(latencies)
    link = {"from": 0, "to": 1, "bandwidth": "16 kbit"}
    spec = network_of(link=[link], eager_bytes=64) if slow_link else None
    return Job(name, n, seconds or ComputeTime(1e-3), spec, random, problem=SHIFTED, **more)


def in_order_of_time(slowdown):
    """Return the pairs (rank, step) of all steps of all ranks, in the order in which the steps end. ``slowdown[rank]``
    is the duration of a step of ``rank``."""
    steps = [(i, step) for i in slowdown for step in range(STEPS)]
    return sorted(steps, key=lambda step: slowdown[step[0]] * (step[1] + 1))


class Reference:
    """Reference computation in NumPy with which tests compare algorithms; the models of all ranks are one float64
    matrix."""

    def __init__(self, n, rate=RATE):
        self.X = PROBLEM.initial(n)
        self.V, self.G = np.zeros_like(self.X), np.zeros_like(self.X)
        self.rate = rate
        self.learnt = np.zeros_like(self.X)
        """Sum of all optimizer updates of each rank's model, as a matrix with one row per rank."""

    def gradient(self, rank, step):
        self.G[rank] = PROBLEM.gradient(rank, self.X[rank], step)

    def update(self, rank):
        self.V[rank] = MOMENTUM * self.V[rank] + self.G[rank] + WEIGHT_DECAY * self.X[rank]
        self.X[rank] -= self.rate * self.V[rank]
        self.learnt[rank] -= self.rate * self.V[rank]

    def step(self, step):
        """Compute the gradients and update the models of all ranks, for step number ``step``."""
        for rank in range(len(self.X)):
            self.gradient(rank, step)
            self.update(rank)

    def replay(self, log):
        """Repeat, in NumPy, the actions in ``log``, the log of a `Job`. The first element of an entry of the log is the
        name of a method of `Reference` or of its subclass, which is called with the other elements."""
        for what, *arguments in log:
            getattr(self, what)(*arguments)
        return self


def straggler(factor=4.0, rank=0):
    """Return a function ``seconds(rank, step)`` for a `Job` in which the rank ``rank`` takes ``factor`` times as long
    as all other ranks."""
    return lambda i, step: factor if i == rank else 1.0


def uneven(rank, step):
    """Return the seconds of a step of ``rank``, for a `Job` in which all ranks are equally fast on average and steps
    take random times."""
    return 0.6 + 0.8 * np.random.default_rng((rank, step)).random()


def random_speeds(seed):
    """Return a function ``seconds(rank, step)`` for a `Job` in which each rank has its own random speed. A step takes
    0.5 to 1.5 times the mean duration of the rank's steps."""

    def seconds(rank, step):
        random = np.random.default_rng((seed, rank))
        speed = random.choice([0.2, 1, 3])
        return speed * (0.5 + np.random.default_rng((seed, rank, step)).random())

    return seconds
