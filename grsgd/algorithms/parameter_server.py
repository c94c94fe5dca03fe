"""A parameter server, and the strategies by which it treats workers that are slower than others."""

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from coding.placement import bounds
from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.pollables import Until
from grsgd.server import ANSWER, EVICTED, FAREWELL, GOODBYE, GRADIENT, MODEL, PUSH, Server
from grsgd.strategies import STRATEGIES, Strategy

COMPENSATION = 0.04
"""lambda where it is asked for by phi = "compensated" alone."""

PATIENCE = 0.8
"""Of comm.timeout, by default, before the server names a worker that is silent: else the other workers would give up
first, and name the server."""


class ServerOptions(Options):
    """Of a parameter server, whatever its strategy."""

    server: Literal["dedicated", "shared"] = Field(
        "dedicated", description="the last ranks serve and do not train, or the first ones do both"
    )
    servers: int = Field(1, ge=1, description="each has an equal part of the model")
    staleness_aware: bool = Field(False, description="gradients count 1/max(tau, 1), where tau is their staleness")
    compensation: float | None = Field(
        None, ge=0, description="lambda of the delay compensation g + lambda g g (w - w_i), of all gradients if given"
    )
    on_lost_worker: Literal["stop", "evict"] = Field("stop", description="end the job, or go on without the worker")
    worker_timeout: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds without a push until a worker is lost; 0.8 comm.timeout"
    )

    @model_validator(mode="after")
    def one_server_evicts(self):
        if self.on_lost_worker == "evict" and self.servers > 1:
            raise ValueError('on_lost_worker = "evict" needs servers = 1: several might not lose the same workers')
        return self


class ParameterServerOptions(ServerOptions):
    strategy: Literal["bsp", "asp", "ssp", "dssp", "adsp"] = Field("adsp", description="when workers may go on")
    s: float = Field(3, ge=0, description="ssp, dssp, adsp: steps that a worker may lead by; adsp: then it is AHEAD")
    r_max: int = Field(12, ge=0, description="dssp: steps beyond s that may be granted")
    smax: float = Field(15, ge=0, description="adsp: by how many steps a worker may lead at most")
    kappa: float = Field(1.5, gt=0, description="adsp: slow is a worker whose delay is above kappa times the median")
    m: int = Field(3, ge=1, description="adsp: in so many steps in a row")
    lam: float = Field(0.3, gt=0, le=1, description="adsp: weight of the last delay in the moving average")
    phi: Literal["inverse", "one", "compensated"] = Field(
        "inverse", description="adsp: how a straggler's gradient counts: 1/(1 + tau), fully, or compensated"
    )
    ahead_mode: Literal["buffer", "apply"] = Field(
        "buffer", description="adsp: whether the gradient of a worker AHEAD waits, or only the answer to it"
    )


OWN = {
    "bsp": (),
    "asp": (),
    "ssp": ("s",),
    "dssp": ("s", "r_max"),
    "adsp": ("s", "smax", "kappa", "m", "lam", "phi", "ahead_mode"),
}
"""The options of each strategy."""


class ParameterServer(Algorithm, name="parameter_server"):
    """Workers compute gradients; a server has the model w. Worker i, and the server of n workers::

        push grad(x) to the server              on push of g by i:
        wait for the answer: x                      the strategy decides: apply which gradients, answer whom
                                                    w = w - eta/n * sum of weight * g;  V = V + 1
                                                    send w to whoever is answered

    The strategies (grsgd/strategies.py): bsp waits for all; asp never waits; ssp and dssp wait for who is too far
    behind; adsp, the adaptive synchronous parallel strategy, treats workers by their state. Of its paper the abstract
    is known: the rules are inferred (docs/algorithms.md).

    Sends 2M a step, half of it from the server, which applies any torch optimizer. The model of the run is w; a
    worker's x is what it pulled last.
    """

    paper = (
        "Wang, Zhu 2024, adaptive synchronous parallel strategy (adsp); Ho et al. 2013 (ssp); Zhao et al. 2019 (dssp); "
        "Dean et al. 2012, Large scale distributed deep networks (asp)"
    )
    synchronous = False
    sends_gradients = True
    in_background = True
    counts_steps = True
    for_any_loop = False
    Options = ParameterServerOptions

    def __init__(self, *arguments):
        super().__init__(*arguments)
        options, rank = self.options, self.comm.rank
        self.n = self.workers(options, self.comm.size)
        self.trains = rank < self.n
        first = self.n if options.server == "dedicated" else 0
        edges = bounds(self.x.array.size, options.servers).tolist()
        self.parts = {first + j: (edges[j], edges[j + 1]) for j in range(options.servers)}
        """By server's rank, where its part of the model begins and ends."""
        self.server = None
        if rank in self.parts:
            self.server = Server(
                self.comm,
                self.driver,
                self.n,
                lambda now: self.make_strategy(options, self.n, now),
                self.replica,
                self.optimizer,
                self.parts[rank],
                COMPENSATION if options.compensation is None else options.compensation,
                PATIENCE * self.driver.timeout if options.worker_timeout is None else options.worker_timeout,
                options.on_lost_worker == "evict",
                lambda: self.before_update(),
                # What the progress thread does takes none of the trainer's time.
                self.optimizer.step if self.driver.progress == "thread" else self.update,
            )
            self.lock, self.staleness = self.server.lock, self.server.staleness
        self.answer = self.x.like() if self.trains else None
        self.words = {server: np.zeros(2, np.int64) for server in self.parts}
        """What each server said with its last answer: V, and how many gradients it has applied."""
        self.pulling: list = []
        self.k = 0

    @classmethod
    def workers(cls, options, ranks):
        return ranks - options.servers if options.server == "dedicated" else ranks

    @classmethod
    def check(cls, options, ranks):
        most = ranks - 1 if options.server == "dedicated" else ranks
        if options.servers > most:
            raise ValueError(f"servers = {options.servers} ({options.server}) with {ranks} ranks; there can be {most}")
        workers = cls.workers(options, ranks)
        if options.rho > workers:
            raise ValueError(f"rho = {options.rho} with {workers} workers; allowed are 1 to {workers}")
        cls.make_strategy(options, workers)

    @classmethod
    def make_strategy(cls, options, workers: int, now: float = 0.0) -> Strategy:
        """The strategy of these options, begun ``now``; raises ValueError."""
        name = getattr(options, "strategy", "asp")
        own = {key: getattr(options, key) for key in OWN[name]}
        compensated = options.compensation is not None
        own |= {"staleness_aware": options.staleness_aware, "delay_compensation": compensated}
        return STRATEGIES[name](workers, start=now, **own)

    @property
    def steps(self):
        if self.server is not None:
            return self.server.applied
        return int(self.words[min(self.parts)][1])

    @property
    def evicted(self) -> bool:
        """Whether the server goes on without this worker."""
        return any(word[0] == EVICTED for word in self.words.values())

    def start(self):
        if self.server is not None:
            self.server.start()

    def step(self):
        """Push, and look forward to the answers."""
        g, word = self.replica.grads, np.array([self.k], np.int64)
        self.k += 1
        for server, (begin, end) in self.parts.items():
            if server == self.comm.rank:
                own = self.server.push_own(g.tensor[begin:end], self.answer.tensor[begin:end])
                self.pulling.append(self.driver.start(own))
            else:
                self.pulling += [
                    self.comm.Isend(word, server, PUSH, header=word.nbytes),
                    self.comm.Isend(g.array[begin:end], server, GRADIENT),
                    self.comm.Irecv(self.words[server], server, ANSWER),
                    self.comm.Irecv(self.answer.array[begin:end], server, MODEL),
                ]

    def catch_up(self):
        """Pull: wait for the answers."""
        if self.pulling:
            yield self.pulling
            self.pulling = []
            self.x.tensor.copy_(self.answer.tensor)
        if self.server is not None:
            self.server.check()

    def accompany(self):
        applied = self.server.applied

        yield Until(lambda: self.server.over() or self.server.applied > applied, "a push, or the last worker's goodbye")
        return self.server.deserted()

    def drain(self):
        if self.trains:
            yield from self.catch_up()
            word = np.array([GOODBYE], np.int64)
            for server in self.parts:
                if server == self.comm.rank:
                    self.server.leave(server)
                else:
                    yield self.comm.Isend(word, server, PUSH, header=word.nbytes)
        if self.server is not None:
            yield Until(self.server.over, "the last worker's goodbye")
        if self.options.on_lost_worker == "evict":
            yield from self.part()

    def part(self):
        """Schedule, after training: learn from the server who has been lost, and leave them behind."""
        ((rank, _),) = self.parts.items()
        if self.server is not None:
            yield from self.server.part()
            lost = self.server.farewell
        else:
            lost = np.zeros(self.comm.size, np.int64)
            yield self.comm.Irecv(lost, rank, FAREWELL)
        self.lost = frozenset(np.flatnonzero(lost).tolist())
        if self.lost and self.comm.rank not in self.lost:
            self.aside = self.aside.subset([rank for rank in range(self.comm.size) if rank not in self.lost])

    def warnings(self):
        evicted = self.server.evicted if self.server is not None else {}
        return [f"went on without rank {worker}: {why}" for worker, why in sorted(evicted.items())]

    def model(self):
        return self.server.replica.params if self.server is not None else self.x

    def average(self):
        if self.server is not None:
            self.x.tensor.copy_(self.model().tensor)
        yield from self.publish(self.aside)

    def publish(self, comm):
        for server, (begin, end) in self.parts.items():
            yield from broadcast(comm, self.x.array[begin:end], root=comm.members.index(server))
        if not self.trains:
            self.replica.buffers.tensor.copy_(self.replica.buffers_at_start)
        workers = sum(rank < self.n for rank in comm.members)
        if comm.size > 1:
            yield from self.replica.average_buffers(partial(halving_doubling_allreduce, comm, scale=1 / workers))
