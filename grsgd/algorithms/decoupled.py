"""Decoupled DiLoCo: workers take local steps (steps without communication), and a server takes an outer step as soon as
enough workers have pushed their models.

A schedule is a generator that yields each object it waits for.
"""

import math
from typing import ClassVar

import numpy as np
from pydantic import Field

from grsgd.algorithms.base import Traits
from grsgd.algorithms.diloco import OuterOptions, outer_update
from grsgd.algorithms.parameter_server.algorithm import LostWorkerOptions, ParameterServer
from grsgd.algorithms.parameter_server.messages import Push
from grsgd.algorithms.parameter_server.server import Server
from grsgd.algorithms.parameter_server.strategy import Strategy, StrategyOptions
from grsgd.comm import records, tags
from grsgd.comm.allreduce import broadcast
from grsgd.comm.allreduce.pieces import power_of_two
from grsgd.comm.pollables import Delay, Until
from grsgd.lazy import LazyModule
from grsgd.models.values import fill

torch = LazyModule("torch")


class QuorumOptions(StrategyOptions):
    quorum: int | None = Field(
        None, ge=1, description="number of workers for which an outer step waits; by default all workers but one"
    )
    grace: float = Field(
        0.5,
        ge=0,
        description="length of the grace window, in which the server waits for more workers after the quorum, as a "
        "share of the time that the quorum took; inf: until all workers have pushed",
    )


class Quorum(Strategy):
    """Strategy that decides when the server takes an outer step, and when the server answers each worker. V is the
    version of the server's model, and v_i the version at which worker i began its local steps::

        on push(i, v_i):  put the change by i into the buffer
                          v_i < V: i is late: answer, and the change waits for the next outer step
        when all active workers are in time; or when `quorum` are, and grace * (how long that took) later:
                          take an outer step with the buffer;  V += 1;  answer the workers in time

    A worker waits for late workers no longer than the grace window, and a late worker waits for no other worker. The
    change of the model by a late worker is merged exactly once, in the next outer step.
    """

    Options = QuorumOptions

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        quorum = self.options.quorum
        if quorum is not None and quorum > workers:
            raise ValueError(f"quorum = {quorum}: must be at most the number of workers, {workers}")
        self.quorum = max(workers - 1, 1) if quorum is None else quorum
        self.began(self.pulled_at[0])

    def began(self, now: float):
        """Record that a new round has begun at time ``now`` in seconds. A round ends with an outer step of the
        server."""
        self.round_began = now
        self.window: float | None = None
        """Length of the grace window in seconds, or None until the quorum of workers has pushed in the current
        round."""
        self.is_over = False
        """Whether the grace window of the current round, in which the server waits for more workers than the quorum,
        has ended."""

    def go_on(self, workers, now):
        super().go_on(workers, now)
        self.began(now)

    def arrived(self, worker, now):
        if self.window is None and len(self.held()) >= self.quorum:
            grace = self.options.grace
            self.window = math.inf if math.isinf(grace) else grace * (now - self.round_began)
            self.is_over = self.window == 0

    def end_of_window(self, now: float):
        """Return the `Decision` of the server at the end of the grace window, at time ``now`` in seconds."""
        self.is_over = True
        return self.decide(now)

    def decide(self, now):
        decision = super().decide(now)
        if decision.update:
            self.began(now)
        return decision

    def held(self):
        """Return the workers whose pushed models are in the buffer and that are in time. A worker is in time if it
        began its local steps at the newest model."""
        return {worker for worker, version in self.buffer.items() if version == self.version}

    def due(self):
        if not self.active:
            return set()
        return set(self.buffer) if self.is_over or self.active <= self.held() else set()


class OuterServer(Server):
    """Server that holds the model w and changes w by outer steps. Workers push models, and ``g[i]`` is the last model
    that worker i has pushed."""

    def __init__(self, options, trained, optimizer, context):
        super().__init__(options, trained, optimizer, context)
        if options.worker_timeout is None:
            self.timeout *= options.H  # workers push only every H steps, so the server waits H times as long for a push
        is_narrow = self.w.dtype is torch.bfloat16
        self.outer = self.w.float() if is_narrow else self.w
        """The model w in the dtype in which outer steps are computed: float32 if w is of bfloat16, so that small
        changes are not lost by rounding."""
        self.u = torch.zeros_like(self.outer)
        self.late: dict[int, tuple] = {}
        """Change of the model by the local steps of each late worker, and the number of these steps, until an outer
        step merges the change."""
        self.rest: list[tuple] = []
        """Pairs (change of the model, number of steps), one for each worker that has ended its training, or that pauses
        for a checkpoint."""
        self.merging: list[tuple] = []
        """Pairs (model of a worker, number of the worker's steps) that the next outer step merges, in the order of
        workers."""
        self.round_of_window, self.closing = -1, None
        """``round_of_window``: version of the model at which the last grace window began. ``closing``: handle of the
        background task that waits for the end of the last grace window."""

    def start(self):
        super().start()
        self.outer.copy_(self.w)

    def state(self):
        wide = {"outer": self.outer} if self.outer is not self.w else {}
        return super().state() | {"u": self.u} | wide

    def restore(self, state):
        for name in ("u", "outer"):
            if name in state:
                fill(getattr(self, name), state.pop(name))
        super().restore(state)

    def receive_rest(self, worker, steps):
        if steps:
            yield self.comm.Irecv(self.g[worker].array, worker, tags.SERVER_GRADIENT)
            with self.lock:
                if worker not in self.evicted:
                    self.rest.append((self.change_of(worker), steps))

    def apply_decision(self, decision):
        for worker in decision.answers:
            if worker in self.strategy.buffer:
                self.keep(worker)
        super().apply_decision(decision)
        if not self.strategy.active:
            self.add_rest()

    def begin_waiting(self):
        window, version = self.strategy.window, self.strategy.version
        if window is not None and window < math.inf and self.round_of_window != version:
            self.round_of_window = version
            self.closing = self.driver.start(self.end_window(window, version))

    def check(self):
        super().check()
        if self.closing is not None:
            self.closing.Test()

    def end_window(self, seconds: float, version: int):
        """Generator, run in the background, that ends the grace window of model version ``version`` after ``seconds``
        seconds."""
        yield Delay(seconds)
        with self.lock:
            if self.strategy.version == version:
                self.apply_decision(self.strategy.end_of_window(self.driver.clock()))

    def change_of(self, worker: int):
        """Return the change that ``worker`` has made: the last model that ``worker`` pushed, minus the model in the
        last answer to ``worker``."""
        return self.g[worker].tensor.to(self.outer.dtype) - self.answers[worker].tensor

    def keep(self, worker: int):
        """Keep the change by the late worker ``worker`` in the attribute ``late``, because the next model of ``worker``
        will overwrite the last model in ``g``."""
        change, steps = self.change_of(worker), self.steps[worker]
        if worker in self.late:
            more, more_steps = self.late[worker]
            change, steps = change.add_(more), steps + more_steps
        self.late[worker], self.steps[worker] = (change, steps), 0

    def add_rest(self):
        """Add to w the mean of the changes that workers have made since the last outer step. When `add_rest` is called,
        all workers must have ended their training or must pause for a checkpoint."""
        workers = max(self.n - len(self.evicted.keys() - self.finished), 1)
        for change, steps in (*self.late.values(), *self.rest):
            self.outer.add_(change, alpha=1 / workers)
            self.applied += steps
        self.round_model()
        self.late.clear()
        self.rest.clear()
        self.progress.note_steps(self.applied)

    def round_model(self):
        """Copy ``outer``, the model in the dtype of outer steps, into w, rounded to the dtype of w."""
        if self.outer is not self.w:
            self.w.copy_(self.outer)

    def gather(self, worker, weight, compensated):
        steps = self.steps[worker]
        x = self.g[worker].tensor.to(self.outer.dtype) if steps else self.outer.clone()
        if worker in self.late:
            change, more_steps = self.late.pop(worker)
            x, steps = x.add_(change), steps + more_steps
        self.merging.append((x, steps))

    def update(self):
        """Take an outer step along the weighted mean of the workers' changes of the model. The weight of a worker is
        its number of tokens times its number of tokens per step, as in the Decoupled DiLoCo paper. If all batches have
        the same size, the weights of workers are proportional to their numbers of steps."""
        steps = [count for _, count in self.merging]
        # Float16 models are multiplied by ``part``, because the sum of the models may be out of range. With other
        # dtypes most elements of ``shares`` are 1, which saves a multiplication.
        part = power_of_two(1 / len(steps)) if self.w.dtype is torch.float16 else 1.0
        shares = [part * count / max(steps) for count in steps]
        models = [x if share == 1 else x.mul_(share) for (x, _), share in zip(self.merging, shares, strict=True)]
        mean = sum_in_pairs(models).mul_(1 / sum(shares))
        outer_update(self.outer, self.u, mean, self.options.outer_lr, self.options.outer_momentum)
        self.round_model()
        self.applied += sum(steps)
        self.merging.clear()
        self.progress.note_steps(self.applied)


def sum_in_pairs(tensors: list):
    """Return the sum of ``tensors``; the first of the tensors is overwritten. The tensors are added in the order of an
    all-reduce along a binomial tree, so that the sum is rounded in the same way."""
    while len(tensors) > 1:
        for one, other in zip(tensors[::2], tensors[1::2]):  # noqa: B905 an odd tensor at the end has no partner
            one.add_(other)
        tensors = tensors[::2]
    return tensors[0]


class DecoupledOptions(QuorumOptions, LostWorkerOptions, OuterOptions):
    server: ClassVar[str] = "dedicated"
    servers: ClassVar[int] = 1
    staleness_aware: ClassVar[bool] = False
    compensation: ClassVar[None] = None
    compresses: ClassVar[bool] = False

    @property
    def strategy_class(self):
        return Quorum


class Decoupled(ParameterServer, name="decoupled"):
    """Workers take H local steps, with an optimizer such as AdamW. A server takes the outer steps of `diloco` with the
    workers that have pushed in time. Worker i (left) and the server (right) compute::

        x = inner optimizer's step;  k = k + 1      on push of x by i:
        if k % H == 0:                                  in the buffer: x, or if i is late w + the change by i
            push x to the server                        when there is a quorum, and its grace window is over:
            wait for the answer: x                          d = w - mean of the buffer, weighted by tokens
                                                            u = outer_momentum u + d
                                                            w = w - outer_lr (d + outer_momentum u)
                                                            answer the workers in time

    The quorum, an adaptive grace window, the weights (tokens times tokens per step), and the rule that no worker waits
    for late workers are from the Decoupled DiLoCo paper. Two rules of `Decoupled` are inferred: the length of the grace
    window, and the treatment of a late worker. A late worker goes on from the model w at once, and its change of the
    model is merged in the next outer step. `Decoupled` has neither the fragments of the model nor the exchange in the
    background that the Decoupled DiLoCo paper describes.

    With a quorum of all workers, or an endless grace window, the parameters after training equal the result of `diloco`
    with variant = "tree" bit for bit. The model's buffers are averaged only at the end of the run. A worker sends M/H
    per step to the server on average (M: bytes of the model), and the server sends M/H back. At the end of the run, and
    before a checkpoint, the server adds to w the mean of the changes that workers have made since the last outer step.
    The algorithm `diloco` averages the models of all ranks at the end of the run, and a checkpoint does not change its
    models. Each answer of the server to a worker contains the number of steps that the server has merged. Until the
    next answer of the server, a worker assumes that every other worker takes as many steps as itself.
    """

    paper = (
        "Douillard, Rush, Donchev, Charles, Fallen, Dubey, Gog, Dean, Woodworth, Garrett, Keating, Bishop, Prior, "
        "Yvinec, Szlam, Ranzato, Dean 2026, Decoupled DiLoCo for resilient distributed pre-training"
    )
    traits = Traits(synchronous=False, family="server", in_background=True, trains_bfloat16=True)
    Options = DecoupledOptions
    remembers = ("pushes", "k")
    server_class = OuterServer

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.local_steps = 0
        """Number of steps whose change of the model this worker has not pushed to the server yet."""
        self.known = 0
        """Total number of steps of all workers, as far as this worker knows or assumes."""

    @classmethod
    def arrays_held(cls, options, ranks):
        # one array for the momentum; for each worker one for its model, one for its answer, and one for a late change
        return 1 + 3 * (ranks - 1)

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return ranks, 1  # of arrays_held, the momentum and the late changes; in addition, the model in float32

    @property
    def bound_gradients(self):
        return None  # the least possible time is known for gradients, not for local steps

    def step(self):
        self.update()
        self.k += 1
        self.local_steps += 1
        if self.k % self.options.H == 0:
            steps, self.local_steps = self.local_steps, 0
            yield from self.push(self.x, steps)
        self.note_steps()

    def note_steps(self):
        """Report the number of steps of all workers as the run's progress. Until the next answer of the server, each
        other worker is assumed to have taken as many steps as this worker."""
        self.known = max(self.known, self.applied + self.n * self.local_steps)
        self.progress.note_steps(self.known, ahead=self.known - self.applied)

    def pull(self):
        yield from super().pull()
        applied = np.array([self.server.applied if self.server is not None else 0], np.int64)
        (server,) = self.shards
        yield from broadcast(self.uncounted_comm, applied, root=server)
        self.applied = int(applied[0])
        self.note_steps()

    def stuck(self, absent):
        # The server answers waiting workers at the end of an open grace window.
        if self.server is None or self.server.strategy.window is not None:
            return set()
        return super().stuck(absent)

    def serve(self):
        """Serve the workers as `ParameterServer.serve` does, but with shorter waits. Because H steps of a worker may
        take longer than the driver's timeout, each wait ends after half of the driver's timeout."""
        pushes, end = self.server.pushes, self.driver.clock() + self.driver.timeout / 2
        yield Until(
            lambda: self.server.is_done() or self.server.pushes > pushes or self.driver.clock() > end,
            "a push, or the end of the last worker's training",
            in_background=True,
        )
        return self.server.all_done()

    def finish(self, server):
        message = records.pack(Push(self.last_word, self.local_steps))
        told = self.comm.Isend(message, server, tags.SERVER_PUSH, header=message.nbytes)
        if not self.local_steps:
            return told
        self.local_steps = 0
        return told, self.comm.Isend(self.x.array, server, tags.SERVER_GRADIENT)
