"""Server of a parameter server, which applies the workers' gradients and answers the workers when the strategy says so.

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
"""Default value of lambda, the factor of the delay compensation, if straggler_weight is "compensated" and the option
``compensation`` is not given."""
PATIENCE = 0.8
"""Default time without a push after which the server counts a worker as lost, as a fraction of comm.timeout. With a
fraction of 1, other workers might time out before the server counts the worker as lost, and report the server as
lost."""


def make_strategy(options, workers: int, now: float = 0.0) -> Strategy:
    """Return the strategy that ``options`` name, which starts at time ``now`` in seconds. Raises ValueError on invalid
    options."""
    cls = options.strategy_class
    return cls(
        workers,
        start=now,
        staleness_aware=options.staleness_aware,
        delay_compensation=options.compensation is not None,
        **{key: getattr(options, key) for key in cls.Options.model_fields},
    )


def count_workers(options, ranks: int) -> int:
    """Return how many of ``ranks`` ranks are workers, which compute gradients. The workers are the ranks with the
    lowest numbers."""
    return ranks - options.servers if options.server == "dedicated" else ranks


def server_shards(options, elements: int, ranks: int) -> dict[int, tuple[int, int]]:
    """Return the begin and end of each server's shard of a model of ``elements`` elements, by the server's rank."""
    first = count_workers(options, ranks) if options.server == "dedicated" else 0
    edges = bounds(elements, options.servers).tolist()
    return {first + j: (edges[j], edges[j + 1]) for j in range(options.servers)}


class LostWorker(LostRank):
    """Error raised by a server if a worker has died or has sent nothing for too long; the message names the worker."""


class Server:
    """Server of one shard of the model w, on a rank that may be a worker as well.

    Parameters
    ----------
    trained
        Replica of the server's rank. If the rank is not a worker, the model of ``trained`` is w itself. If the rank is
        a worker as well, w is a copy of the model of ``trained``. optimizer Optimizer of the parameters of ``trained``.
        The server updates w with ``optimizer``.
    context
        Context of the server's rank. The server reports the number of gradients applied to w to ``context.progress``.
    """

    def __init__(self, options, trained: Replica, optimizer, context: RankContext):
        self.options, self.optimizer, self.progress = options, optimizer, context.progress
        self.comm, self.driver = context.comm, context.driver
        self.n = count_workers(options, self.comm.size)
        self.compensation = COMPENSATION if options.compensation is None else options.compensation
        self.timeout = PATIENCE * self.driver.timeout if options.worker_timeout is None else options.worker_timeout
        """Seconds without a push after which the server counts a worker as lost. A lost worker ends the run with an
        error unless ``on_lost_worker = "evict"``."""
        self.decays = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]
        self.settings: dict[int, list[dict]] = {}
        """Optimizer settings of each worker, such as learning rates, for the workers that have sent settings."""
        self.replica = with_optimizer(trained, optimizer) if self.comm.rank < self.n else trained
        begin, end = server_shards(options, trained.params.array.size, self.comm.size)[self.comm.rank]
        self.part = slice(begin, end)
        self.w = self.replica.params.tensor[self.part]
        leave_out(self.replica.model, begin, end)
        device = self.replica.device
        self.g = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """Memory for the last gradient or model that each worker has pushed."""
        has_narrow_sum = self.replica.grads is not None and self.w.dtype is torch.bfloat16
        self.sum = torch.zeros_like(self.w, dtype=torch.float32) if has_narrow_sum else None
        """Sum in float32 of weighted bfloat16 gradients, which is rounded only once, before the update of the model;
        None for gradients of other dtypes."""
        self.compressor = make_compressor(options, self.w) if options.compresses else None
        """Compressor that decodes the gradients that workers send, or None without compression."""
        self.payloads = [self.compressor.payload() for _ in range(self.n)] if self.compressor is not None else self.g
        """Buffers into which the server receives the workers' gradients."""
        self.answers = [Flat.zeros(end - begin, self.replica.dtype, device) for _ in range(self.n)]
        """Copy of the model w in the server's last answer to each worker; the worker computes its gradient at this
        model."""
        for answer in self.answers:
            answer.tensor.copy_(self.w)
        self.versions = [0] * self.n
        """Version (number of updates) of the model in the server's last answer to each worker."""
        self.steps = [0] * self.n
        """Number of steps in which each worker has computed the gradient or model of its last push."""
        self.gathered: list[float] = []
        """Weights of the gradients in the sum that the next update applies."""
        self.applied = 0
        """Number of gradients that were applied to the server's model w."""
        self.answered = [Signal(f"the answer to worker {worker}") for worker in range(self.n)]
        self.evicted: dict[int, str] = {}
        """Workers that the server has excluded from the run because they were lost, each with the reason as text."""
        self.finished: set[int] = set()
        """Workers that have ended their training."""
        self.staleness: Counter[int] = Counter()
        self.states: list[list[int]] = [[] for _ in range(self.n)]
        """State of each worker at each of its pushes, as an index into `STATES`; the lists are empty if the strategy
        has no states."""
        self.lost_ranks: np.ndarray | None = None
        """Array, int64 of shape [ranks], with 1 for each rank that was lost before the end of its training, else 0;
        None until all other workers have ended."""
        self.lock = threading.Lock()
        self.activities = []
        self.strategy = make_strategy(options, self.n)

    def start(self):
        """Start the strategy at the current time, at which all workers hold the model at the beginning of the run."""
        self.strategy = make_strategy(self.options, self.n, self.driver.clock())

    def go_on(self):
        """Continue after a checkpoint. All workers must hold the server's model w when the method `go_on` is called."""
        self.finished.clear()
        self.strategy.go_on(set(range(self.n)), self.driver.clock())
        self.versions = [self.strategy.version] * self.n
        for answer in self.answers:
            answer.tensor.copy_(self.w)

    def begin(self):
        """Begin to receive pushes from all workers except the worker on this rank, in the background."""
        others = [worker for worker in range(self.n) if worker != self.comm.rank]
        self.activities = [self.driver.start(self.receive_pushes(worker)) for worker in others]
        if others and self.timeout < math.inf:
            self.activities.append(self.driver.start(self.watch(others)))

    def state(self) -> dict[str, object]:
        """Return the state of the server that a checkpoint stores. All workers must pause when `state` is called."""
        strategy = {name: getattr(self.strategy, name) for name in self.strategy.remembers}
        kept = {"w": self.w, "applied": self.applied, "states": self.states, "strategy": strategy}
        return kept | ({"sum": self.gradient, "gathered": self.gathered} if self.gathered else {})

    def restore(self, state: dict[str, object]):
        """Set the server's attributes to ``state``, which the server of an earlier process has returned."""
        self.applied, self.states = state["applied"], state["states"]
        fill(self.w, state["w"])
        if "sum" in state:
            fill(self.gradient, state["sum"])
            self.gathered = state["gathered"]
        for name, value in state["strategy"].items():
            setattr(self.strategy, name, value)

    def receive_pushes(self, worker: int):
        """Generator, run in the background, that processes all pushes of ``worker``, until ``worker`` has ended its
        training or has died."""
        try:
            yield from self.receive_until_finished(worker)
        except LostRank as error:
            self.worker_lost(worker, str(error))

    def receive_until_finished(self, worker: int):
        """Generator that receives and processes all pushes of ``worker``, until ``worker`` has ended its training."""
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
                # a worker that was counted as lost has not received `lost_ranks` yet
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
        """Generator that receives the message that ``worker`` sends after its last `Push`, with the result of ``steps``
        steps. By default `receive_rest` receives nothing, because a worker sends no message after its last `Push`."""
        yield from ()

    def push(self, worker: int, steps: int = 1):
        """Generator that processes ``g[worker]``, which ``worker`` has computed in ``steps`` steps. The generator ends
        when the server may send ``worker`` its answer."""
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
        """Begin background activities after a push has been processed; a subclass may override the method.
        The server calls `begin_waiting` without holding its lock."""

    def push_own(self, g: torch.Tensor, answer: torch.Tensor):
        """Generator that pushes the gradient ``g`` of the worker on this rank, and writes the worker's next model into
        ``answer``."""
        worker = self.comm.rank
        self.g[worker].tensor.copy_(g)
        yield from self.push(worker)
        answer.copy_(self.answers[worker].tensor)

    def worker_finished(self, worker: int, rests: bool):
        """Record that ``worker`` has ended its training. If ``rests`` is True, record that ``worker`` has paused for a
        checkpoint."""
        with self.lock:
            self.finished.add(worker)
            if worker not in self.evicted:
                leaves = self.strategy.rests if rests else self.strategy.lost
                self.apply_decision(leaves(worker, self.driver.clock()))

    def watch(self, others: list[int]):
        """Generator, run in the background, that calls `worker_lost` for each worker that pushes nothing for more than
        ``timeout`` seconds."""
        while not self.all_done(others):
            yield Delay(self.timeout / 10)
            for worker in sorted(self.strategy.active.intersection(others) - self.strategy.blocked):
                silence = self.driver.clock() - self.strategy.pulled_at[worker]
                if silence > self.timeout:
                    self.worker_lost(
                        worker, f"no push for {silence:.3g} s, algorithm.worker_timeout = {self.timeout:g}"
                    )

    def worker_lost(self, worker: int, why: str):
        """Exclude the silent or dead ``worker`` from the run if ``on_lost_worker = "evict"``. Raise LostWorker if
        ``on_lost_worker = "stop"``."""
        if self.options.on_lost_worker == "stop":
            raise LostWorker(f"the server on rank {self.comm.rank} has lost worker {worker}: {why}")
        with self.lock:
            if worker not in self.strategy.active:
                return
            self.evicted[worker] = why
            self.apply_decision(self.strategy.lost(worker, self.driver.clock()))

    def tell_lost_ranks(self):
        """Generator, called when all workers have ended their training or are lost, that sends the list of lost workers
        to all workers that are not lost."""
        lost = self.evicted.keys() - self.finished
        self.lost_ranks = np.zeros(self.comm.size, np.int64)
        self.lost_ranks[list(lost)] = 1
        yield [self.send_lost_ranks(worker) for worker in range(self.n) if worker not in {*lost, self.comm.rank}]

    def send_lost_ranks(self, worker: int):
        """Begin to send the array ``lost_ranks`` to ``worker``. Return a pollable that is true when the array has been
        sent."""
        return self.comm.Isend(self.lost_ranks, worker, tags.SERVER_LOST_RANKS, header=self.lost_ranks.nbytes)

    def all_done(self, others=None) -> bool:
        """Return whether all workers, or all workers in ``others``, have ended their training or are lost."""
        with self.lock:  # holding the lock makes sure that the last worker's gradients have been applied
            active = self.strategy.active
            return not (active if others is None else active.intersection(others))

    @property
    def pushes(self) -> int:
        """Number of gradients that the server has received."""
        return sum(self.strategy.clocks)

    def check(self):
        """Raise the error of a background activity of the server, if any activity has failed."""
        for activity in self.activities:
            activity.Test()

    def is_done(self) -> bool:
        """Return whether all workers have ended their training or are lost. Raise the error of a background activity of
        the server, if any activity has failed."""
        self.check()
        return self.all_done()

    def apply_decision(self, decision):
        """Gather gradients (add them to the next update's sum), update w, and answer workers, as the strategy's
        ``decision`` says."""
        for worker, weight in decision.gathered:
            self.gather(worker, weight, worker in decision.compensated)
        if decision.update:
            self.update()
        for worker in decision.answers:
            self.answer(worker)

    def answer(self, worker: int):
        """Copy the model w into the answer to ``worker``, and allow the background task to send the answer."""
        self.answers[worker].tensor.copy_(self.w)
        self.versions[worker] = self.strategy.version
        self.answered[worker].set()

    @property
    def gradient(self) -> torch.Tensor:
        """Sum of weighted gradients that the next update of w applies."""
        return self.replica.grads.tensor[self.part] if self.sum is None else self.sum

    def gather(self, worker: int, weight: float, compensated: bool):
        """Add the last gradient of ``worker`` to the sum that the next update of w applies. The next update of w uses
        the optimizer settings of the worker whose gradient is added last."""
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
        """Update ``w = w - eta/n * sum of weight * g`` with the gradients that were gathered since the last update.

        Each gradient contains its share of the weight decay. So an update with fewer than n gradients (n: number of
        workers) applies proportionally less weight decay.
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
    """Return a copy of the replica ``trained``, and make ``optimizer`` update the parameters of the copy."""
    model = copy.deepcopy(trained.model)
    copies = dict(zip(trained.model.parameters(), model.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [copies[p] for p in group["params"]]
    return Replica(model)


def leave_out(model: torch.nn.Module, begin: int, end: int):
    """Remove the gradients of all parameters outside the elements ``begin`` to ``end`` of the flat vector of
    parameters, so that optimizers skip the parameters of other servers."""
    at = 0
    for p in model.parameters():
        if p.requires_grad:
            if at + p.numel() <= begin or at >= end:
                p.grad = None
            at += p.numel()
