"""Server's side of a parameter server, which processes the workers' pushes as the strategy decides.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections import Counter

import numpy as np

from coding.partition import bounds
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.parameter_server.messages import Answer, Push, Word
from grsgd.algorithms.parameter_server.strategy import STATES, Strategy
from grsgd.comm import records, tags
from grsgd.comm.communicator import LostRank
from grsgd.comm.compression.compressors import make_compressor
from grsgd.comm.pollables import Delay, Signal
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.models.values import fill

torch = LazyModule("torch")

COMPENSATION = 0.04
"""lambda of the delay compensation, if only straggler_weight = "compensated" asks for compensation."""
PATIENCE = 0.8
"""Default time of silence after which the server reports a worker as lost, as a share of comm.timeout. With a share of
1, the other workers might give up first, and report the server as lost."""


def make_strategy(options, workers: int, now: float = 0.0) -> Strategy:
    """Return the strategy of ``options``, begun at time ``now`` in seconds. Raises ValueError on invalid options."""
    cls = options.strategy_class
    return cls(
        workers,
        start=now,
        staleness_aware=options.staleness_aware,
        delay_compensation=options.compensation is not None,
        **{key: getattr(options, key) for key in cls.Options.model_fields},
    )


def count_workers(options, ranks: int) -> int:
    """Return the number of ranks that compute gradients, which are the ranks with the lowest numbers."""
    return ranks - options.servers if options.server == "dedicated" else ranks


def server_shards(options, elements: int, ranks: int) -> dict[int, tuple[int, int]]:
    """Return the begin and end of each server's shard of a model of ``elements`` elements, by the server's rank."""
    first = count_workers(options, ranks) if options.server == "dedicated" else 0
    edges = bounds(elements, options.servers).tolist()
    return {first + j: (edges[j], edges[j + 1]) for j in range(options.servers)}


class LostWorker(LostRank):
    """Error that names a worker that has died or been silent for too long."""


class Server:
    """The server of one shard of the model w, on a rank that may be a worker as well.

    Parameters
    ----------
    trained
        The rank's replica. If the rank is no worker, the model of this replica is w itself; otherwise w is a copy of
        the model.
    optimizer
        Optimizer of the parameters of ``trained``; from now on it belongs to the server.
    context
        Context of the rank; its ``progress`` is told how many gradients are in w.
    """

    def __init__(self, options, trained: Replica, optimizer, context: RankContext):
        self.options, self.optimizer, self.progress = options, optimizer, context.progress
        self.comm, self.driver = context.comm, context.driver
        self.n = count_workers(options, self.comm.size)
        self.compensation = COMPENSATION if options.compensation is None else options.compensation
        self.timeout = PATIENCE * self.driver.timeout if options.worker_timeout is None else options.worker_timeout
        """Seconds of silence after which a worker is lost, which is an error unless ``on_lost_worker = "evict"``."""
        self.decays = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]
        self.settings: dict[int, list[dict]] = {}
        """Settings of each worker's parameter groups, such as learning rates, if the worker has sent settings."""
        self.replica = with_optimizer(trained, optimizer) if self.comm.rank < self.n else trained
        begin, end = server_shards(options, trained.params.array.size, self.comm.size)[self.comm.rank]
        self.part = slice(begin, end)
        self.w = self.replica.params.tensor[self.part]
        leave_out(self.replica.model, begin, end)
        device = self.replica.device
        self.g = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """The last gradient of each worker."""
        has_narrow_sum = self.replica.grads is not None and self.w.dtype is torch.bfloat16
        self.sum = torch.zeros_like(self.w, dtype=torch.float32) if has_narrow_sum else None
        """Sum of weighted gradients of bfloat16, which is rounded once, before the update; None for other dtypes."""
        self.compressor = make_compressor(options, self.w) if options.compresses else None
        """Compressor of the gradients that workers send; None without compression."""
        self.payloads = [self.compressor.payload() for _ in range(self.n)] if self.compressor is not None else self.g
        """Buffers in which the workers' gradients arrive."""
        self.answers = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """The model w in the last answer to each worker. The worker computes its gradient at this model."""
        for answer in self.answers:
            answer.tensor.copy_(self.w)
        self.versions = [0] * self.n
        """Version (number V of updates) of the model in the last answer to each worker."""
        self.steps = [0] * self.n
        """Number of steps in each worker's last push."""
        self.gathered: list[float] = []
        """Weights of the gradients in the sum of the next update."""
        self.applied = 0
        """Number of gradients that were applied to the server's model w."""
        self.answered = [Signal(f"the answer to worker {worker}") for worker in range(self.n)]
        self.evicted: dict[int, str] = {}
        """Lost workers, each with the reason."""
        self.finished: set[int] = set()
        """Workers that have ended their training."""
        self.staleness: Counter[int] = Counter()
        self.states: list[list[int]] = [[] for _ in range(self.n)]
        """The state of each worker at each of its pushes, by its place in `STATES`; empty if there are no states."""
        self.lost_ranks: np.ndarray | None = None
        """int64 of shape [ranks]: 1 for ranks that were lost and had not come back when all other workers had ended."""
        self.lock = threading.Lock()
        self.activities = []
        self.strategy = make_strategy(options, self.n)

    def start(self):
        """Begin the strategy's time; all workers hold the first model now."""
        self.strategy = make_strategy(self.options, self.n, self.driver.clock())

    def go_on(self):
        """Go on after a rest. All workers hold the server's model w now."""
        self.finished.clear()
        self.strategy.go_on(set(range(self.n)), self.driver.clock())
        self.versions = [self.strategy.version] * self.n
        for answer in self.answers:
            answer.tensor.copy_(self.w)

    def begin(self):
        """Serve all workers except the worker on this rank, in the background."""
        others = [worker for worker in range(self.n) if worker != self.comm.rank]
        self.activities = [self.driver.start(self.receive_pushes(worker)) for worker in others]
        if others and self.timeout < math.inf:
            self.activities.append(self.driver.start(self.watch(others)))

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint, while all workers rest."""
        strategy = {name: getattr(self.strategy, name) for name in self.strategy.remembers}
        kept = {"w": self.w, "applied": self.applied, "states": self.states, "strategy": strategy}
        return kept | ({"sum": self.gradient, "gathered": self.gathered} if self.gathered else {})

    def restore(self, state: dict[str, object]):
        """Continue from the state of another process."""
        self.applied, self.states = state["applied"], state["states"]
        fill(self.w, state["w"])
        if "sum" in state:
            fill(self.gradient, state["sum"])
            self.gathered = state["gathered"]
        for name, value in state["strategy"].items():
            setattr(self.strategy, name, value)

    def receive_pushes(self, worker: int):
        """Schedule, run in the background, that processes all pushes of ``worker``, until it has ended its training or
        died."""
        try:
            yield from self.receive_until_finished(worker)
        except LostRank as error:
            self.worker_lost(worker, str(error))

    def receive_until_finished(self, worker: int):
        """Schedule that receives and processes all pushes of ``worker``, until the worker has ended its training."""
        message = records.empty(Push)
        while True:
            yield self.comm.Irecv(message, worker, tags.SERVER_PUSH)
            word, steps = records.unpack(Push, message)
            if word == Word.SETTINGS:
                settings = np.empty(steps, np.uint8)
                yield self.comm.Irecv(settings, worker, tags.SERVER_SETTINGS)
                self.settings[worker] = pickle.loads(settings)
                continue
            if word != Word.GOES_ON:
                yield from self.receive_rest(worker, steps)
                self.worker_finished(worker, word == Word.RESTS)
                # a worker that was recorded as lost was not told of the lost ranks before, so it is told now
                if self.lost_ranks is not None:
                    yield self.send_lost_ranks(worker)
                return
            yield self.comm.Irecv(self.payloads[worker].array, worker, tags.SERVER_GRADIENT)
            if self.compressor is not None:
                self.compressor.decode(self.payloads[worker].tensor, self.g[worker].tensor)
            yield from self.push(worker, steps)
            answer = records.pack(Answer(worker in self.evicted, self.applied))
            model = self.answers[worker].array
            yield (
                self.comm.Isend(answer, worker, tags.SERVER_ANSWER, header=answer.nbytes),
                self.comm.Isend(model, worker, tags.SERVER_MODEL),
            )

    def receive_rest(self, worker: int, steps: int):
        """Schedule that receives the content that follows a worker's last message and comes from ``steps`` steps; by
        default nothing follows."""
        yield from ()

    def push(self, worker: int, steps: int = 1):
        """Schedule that processes ``g[worker]``, the result of ``steps`` steps. The schedule ends when the worker may
        have its answer."""
        with self.lock:
            if worker in self.evicted:
                return
            self.steps[worker] = steps
            self.answered[worker].clear()
            dropped = self.strategy.dropped[worker]
            decision = self.strategy.push(worker, self.versions[worker], self.driver.clock())
            if self.strategy.dropped[worker] == dropped:
                self.staleness[self.strategy.staleness] += 1
            if (state := self.strategy.state(worker)) is not None:
                self.states[worker].append(STATES.index(state))
            self.apply_decision(decision)
        self.begin_waiting()
        yield self.answered[worker]

    def begin_waiting(self):
        """Begin background activities after a push has been processed. This hook is called without the server's lock.
        By default it does nothing."""

    def push_own(self, g: torch.Tensor, answer: torch.Tensor):
        """Schedule that pushes the gradient ``g`` of the worker on this rank; ``answer`` becomes its next model."""
        worker = self.comm.rank
        self.g[worker].tensor.copy_(g)
        yield from self.push(worker)
        answer.copy_(self.answers[worker].tensor)

    def worker_finished(self, worker: int, rests: bool):
        """Record that ``worker`` has ended its training, or ``rests`` for a checkpoint."""
        with self.lock:
            self.finished.add(worker)
            if worker not in self.evicted:
                leaves = self.strategy.rests if rests else self.strategy.lost
                self.apply_decision(leaves(worker, self.driver.clock()))

    def watch(self, others: list[int]):
        """Schedule, run in the background, that gives up workers that are silent for too long."""
        while not self.all_done(others):
            yield Delay(self.timeout / 10)
            for worker in sorted(self.strategy.active.intersection(others) - self.strategy.blocked):
                silence = self.driver.clock() - self.strategy.pulled_at[worker]
                if silence > self.timeout:
                    self.worker_lost(
                        worker, f"no push for {silence:.3g} s, algorithm.worker_timeout = {self.timeout:g}"
                    )

    def worker_lost(self, worker: int, why: str):
        """Go on without ``worker`` if ``on_lost_worker = "evict"``; otherwise raise LostWorker."""
        if self.options.on_lost_worker == "stop":
            raise LostWorker(f"the server on rank {self.comm.rank} has lost worker {worker}: {why}")
        with self.lock:
            if worker not in self.strategy.active:
                return
            self.evicted[worker] = why
            self.apply_decision(self.strategy.lost(worker, self.driver.clock()))

    def tell_lost_ranks(self):
        """Schedule, called when all workers have ended or are lost, that tells the ended workers which workers are
        lost."""
        lost = self.evicted.keys() - self.finished
        self.lost_ranks = np.zeros(self.comm.size, np.int64)
        self.lost_ranks[list(lost)] = 1
        yield [self.send_lost_ranks(worker) for worker in range(self.n) if worker not in {*lost, self.comm.rank}]

    def send_lost_ranks(self, worker: int):
        """Begin to send ``lost_ranks`` to ``worker``."""
        return self.comm.Isend(self.lost_ranks, worker, tags.SERVER_LOST_RANKS, header=self.lost_ranks.nbytes)

    def all_done(self, others=None) -> bool:
        """Return whether all workers, or all of ``others``, have ended their training or are lost."""
        with self.lock:  # the last worker to end may still be about to apply gathered gradients
            active = self.strategy.active
            return not (active if others is None else active.intersection(others))

    @property
    def pushes(self) -> int:
        """Number of gradients that have arrived."""
        return sum(self.strategy.clocks)

    def check(self):
        """Raise the error of a background activity, if one has failed."""
        for activity in self.activities:
            activity.Test()

    def is_done(self) -> bool:
        """Return whether no worker is left to serve; raise the error of a background activity, if one has failed."""
        self.check()
        return self.all_done()

    def apply_decision(self, decision):
        """Update w and answer workers according to the strategy's ``decision``."""
        for worker, weight in decision.gathered:
            self.gather(worker, weight, worker in decision.compensated)
        if decision.update:
            self.update()
        for worker in decision.answers:
            self.answer(worker)

    def answer(self, worker: int):
        """Answer ``worker`` with the model w."""
        self.answers[worker].tensor.copy_(self.w)
        self.versions[worker] = self.strategy.version
        self.answered[worker].set()

    @property
    def gradient(self) -> torch.Tensor:
        """The sum of weighted gradients that the next update applies."""
        return self.replica.grads.tensor[self.part] if self.sum is None else self.sum

    def gather(self, worker: int, weight: float, compensated: bool):
        """Add a worker's last gradient to the sum of the next update, which has the settings of the last worker."""
        g = self.g[worker].tensor.to(self.gradient.dtype)
        for group, settings in zip(self.optimizer.param_groups, self.settings.get(worker, ()), strict=False):
            group |= settings
        if worker in self.settings:
            self.decays = [settings.get("weight_decay", 0.0) for settings in self.settings[worker]]
        if compensated:
            g = g + self.compensation * g * g * (self.w.to(g.dtype) - self.answers[worker].tensor)
        self.gradient.add_(g, alpha=weight / self.n)
        self.gathered.append(weight)

    def update(self):
        """Update ``w = w - eta/n * sum of weight * g`` with the gradients gathered since the last update.

        Weight decay is part of each gradient: an update of fewer than n gradients applies proportionally less weight
        decay.
        """
        share = sum(self.gathered) / self.n
        for group, decay in zip(self.optimizer.param_groups, self.decays, strict=True):
            group["weight_decay"] = decay * share
        if self.sum is not None:
            self.replica.grads.tensor[self.part].copy_(self.sum)
        self.optimizer.step()
        self.applied += len(self.gathered)
        self.gradient.zero_()
        self.gathered.clear()
        self.progress.note_steps(self.applied)


def with_optimizer(trained: Replica, optimizer: torch.optim.Optimizer) -> Replica:
    """Return a copy of the replica ``trained`` whose parameters ``optimizer`` updates from now on."""
    model = copy.deepcopy(trained.model)
    copies = dict(zip(trained.model.parameters(), model.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [copies[p] for p in group["params"]]
    return Replica(model)


def leave_out(model: torch.nn.Module, begin: int, end: int):
    """Remove the gradients of all parameters outside the elements ``begin`` to ``end`` of the flat vector of
    parameters, so that optimizers skip these parameters."""
    at = 0
    for p in model.parameters():
        if p.requires_grad:
            if at + p.numel() <= begin or at >= end:
                p.grad = None
            at += p.numel()
