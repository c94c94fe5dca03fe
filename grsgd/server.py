"""The server's side of a parameter server: what it does with what workers push, when its strategy says so."""

import copy
import math
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from grsgd.comm.communicator import LostRank
from grsgd.comm.pollables import Delay, Signal
from grsgd.replica import Flat, Replica
from grsgd.strategies import Strategy

PUSH, GRADIENT, ANSWER, MODEL, FAREWELL = 0, 1, 2, 3, 4
GOODBYE = -1
"""What a worker says in place of its step when it has ended its training."""
EVICTED = -1
"""What a server says in place of its version to a worker that it has given up."""


class LostWorker(LostRank):
    """A worker has died or been silent for too long; says which."""


class Server:
    """Elements ``begin`` to ``end`` of the model w, on a rank that may be a worker as well.

    ``strategy``: makes one, given the time. ``trained``: the rank's replica, whose model is w if it is no worker; else
    w is a copy of it. ``optimizer``: of its
    parameters; from now on the server's. ``compensation``: lambda. ``timeout``: seconds of silence after which a worker
    is lost, which is an error unless ``evicts``. ``before_update``: called before every update, to set learning rates;
    ``step_optimizer``: has the optimizer apply the gradient.
    """

    def __init__(
        self,
        comm,
        driver,
        workers: int,
        strategy: Callable[[float], Strategy],
        trained: Replica,
        optimizer: torch.optim.Optimizer,
        part: tuple[int, int],
        compensation: float,
        timeout: float,
        evicts: bool,
        before_update,
        step_optimizer,
    ):
        self.comm, self.driver, self.make_strategy, self.optimizer = comm, driver, strategy, optimizer
        self.compensation, self.timeout, self.evicts, self.before_update = compensation, timeout, evicts, before_update
        self.step_optimizer = step_optimizer
        self.n = workers
        self.decays = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]
        is_worker = comm.rank < self.n
        self.replica = with_optimizer(trained, optimizer) if is_worker else trained
        begin, end = part
        self.w = self.replica.params.tensor[begin:end]
        self.gradient = self.replica.grads.tensor[begin:end]
        leave_out(self.replica.model, begin, end)
        device = self.replica.device
        self.g = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """The last gradient of each worker."""
        self.answers = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """The w that each worker was last answered with, and computes its gradient at."""
        for answer in self.answers:
            answer.tensor.copy_(self.w)
        self.versions = [0] * self.n
        """V of each worker's answer."""
        self.applied = 0
        """Gradients that are in w."""
        self.answered = [Signal(f"the answer to worker {worker}") for worker in range(self.n)]
        self.evicted: dict[int, str] = {}
        """Lost workers, and why."""
        self.gone: set[int] = set()
        """Workers that have said goodbye."""
        self.staleness: Counter[int] = Counter()
        self.farewell: np.ndarray | None = None
        """int64 of shape [ranks], 1 for those who were lost and had not come back when all others had ended."""
        self.lock = threading.Lock()
        self.activities = []

    def start(self):
        """Serve all workers but the one on this rank, in the background."""
        others = [worker for worker in range(self.n) if worker != self.comm.rank]
        self.strategy = self.make_strategy(self.driver.clock())
        self.activities = [self.driver.start(self.serve(worker)) for worker in others]
        if others and self.timeout < math.inf:
            self.activities.append(self.driver.start(self.watch(others)))

    def serve(self, worker: int):
        """Background schedule: everything that ``worker`` pushes, until it has ended its training or has died."""
        try:
            yield from self.serve_living(worker)
        except LostRank as error:
            self.lose(worker, str(error))

    def serve_living(self, worker: int):
        word = np.zeros(1, np.int64)
        while True:
            yield self.comm.Irecv(word, worker, PUSH)
            if word[0] == GOODBYE:
                self.leave(worker)
                if self.farewell is not None:  # too late
                    yield self.say_farewell(worker)
                return
            yield self.comm.Irecv(self.g[worker].array, worker, GRADIENT)
            yield from self.push(worker)
            version = EVICTED if worker in self.evicted else self.versions[worker]
            answer = np.array([version, self.applied], np.int64)
            model = self.answers[worker].array
            yield (
                self.comm.Isend(answer, worker, ANSWER, header=answer.nbytes),
                self.comm.Isend(model, worker, MODEL),
            )

    def push(self, worker: int):
        """Schedule: deal with ``g[worker]``; it ends when the worker may have its answer."""
        with self.lock:
            if worker in self.evicted:
                return
            self.answered[worker].clear()
            decision = self.strategy.push(worker, self.versions[worker], self.driver.clock())
            self.staleness[self.strategy.staleness] += 1
            self.act(decision)
        yield self.answered[worker]

    def push_own(self, g: torch.Tensor, answer: torch.Tensor):
        """Schedule: the same for the worker on this rank, whose gradient and model are these."""
        worker = self.comm.rank
        self.g[worker].tensor.copy_(g)
        yield from self.push(worker)
        answer.copy_(self.answers[worker].tensor)

    def leave(self, worker: int):
        """``worker`` has ended its training."""
        with self.lock:
            self.gone.add(worker)
            if worker not in self.evicted:
                self.act(self.strategy.lost(worker, self.driver.clock()))

    def watch(self, others: list[int]):
        """Background schedule: see to it that nobody is silent for too long."""
        while not self.deserted(others):
            yield Delay(self.timeout / 10)
            for worker in sorted(self.strategy.living.intersection(others) - self.strategy.holding):
                silence = self.driver.clock() - self.strategy.pulled_at[worker]
                if silence > self.timeout:
                    self.lose(worker, f"no push for {silence:.3g} s, algorithm.worker_timeout = {self.timeout:g}")

    def lose(self, worker: int, why: str):
        if not self.evicts:
            raise LostWorker(f"the server on rank {self.comm.rank} has lost worker {worker}: {why}")
        with self.lock:
            if worker not in self.strategy.living:
                return
            self.evicted[worker] = why
            self.act(self.strategy.lost(worker, self.driver.clock()))

    def part(self):
        """Schedule, when all have left: tell those who are still there who is not."""
        lost = self.evicted.keys() - self.gone
        self.farewell = np.zeros(self.comm.size, np.int64)
        self.farewell[list(lost)] = 1
        yield [self.say_farewell(worker) for worker in range(self.n) if worker not in {*lost, self.comm.rank}]

    def say_farewell(self, worker: int):
        return self.comm.Isend(self.farewell, worker, FAREWELL, header=self.farewell.nbytes)

    def deserted(self, others=None) -> bool:
        """Whether all workers, or all of ``others``, have ended their training or are lost."""
        living = self.strategy.living
        return not (living if others is None else living.intersection(others))

    def check(self):
        """Raise what went wrong in the background."""
        for activity in self.activities:
            activity.Test()

    def over(self) -> bool:
        """Whether there is nobody left to serve; raises what went wrong in the background."""
        self.check()
        return self.deserted()

    def act(self, decision):
        """Do what the strategy has decided."""
        for update in decision.updates:
            self.update(update, decision.compensated)
        for worker in decision.answers:
            self.answers[worker].tensor.copy_(self.w)
            self.versions[worker] = self.strategy.version
            self.answered[worker].set()

    def update(self, weights: tuple[tuple[int, float], ...], compensated: tuple[int, ...]):
        """w = w - eta/n * sum of weight * g.

        Weight decay is part of each gradient: where these are not n, there is less of it.
        """
        self.before_update()
        self.gradient.zero_()
        for worker, weight in weights:
            g = self.g[worker].tensor
            if worker in compensated:
                g = g + self.compensation * g * g * (self.w - self.answers[worker].tensor)
            self.gradient.add_(g, alpha=weight / self.n)
        share = sum(weight for _, weight in weights) / self.n
        for group, decay in zip(self.optimizer.param_groups, self.decays, strict=True):
            group["weight_decay"] = decay * share
        self.step_optimizer()
        self.applied += len(weights)


def with_optimizer(trained: Replica, optimizer: torch.optim.Optimizer) -> Replica:
    """A copy of a replica that takes over the optimizer, which has not taken a step yet."""
    model = copy.deepcopy(trained.model)
    copies = dict(zip(trained.model.parameters(), model.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [copies[p] for p in group["params"]]
    return Replica(model)


def leave_out(model: torch.nn.Module, begin: int, end: int):
    """Take away the gradients of all parameters outside this part of the flat vector: optimizers pass over them."""
    at = 0
    for p in model.parameters():
        if p.requires_grad:
            if at + p.numel() <= begin or at >= end:
                p.grad = None
            at += p.numel()
