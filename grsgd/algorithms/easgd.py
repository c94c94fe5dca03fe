"""Elastic averaging SGD (Zhang, Choromanska, LeCun 2015)."""

import threading
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.allreduce import broadcast, ring_allreduce
from grsgd.trigger import TriggerOptions, trigger

REQUEST, MODEL, ELASTIC = 0, 1, 2
GOODBYE = -1
"""The step in a request that a rank sends to the server when it has ended its training."""


class EASGDOptions(TriggerOptions, Options):
    alpha: float | None = Field(None, ge=0, le=1, description="pull between a model and the centre; by default 0.9/n")
    period: int = Field(10, ge=1, description="local steps between two exchanges with the centre; not if adaptive")
    centre: Literal["server", "allreduce"] = Field(
        "server", description="where the centre is: on rank 0, asynchronous, or on all ranks, which then wait for all"
    )
    final: Literal["centre", "average"] = Field("centre", description="which model is the result")

    @model_validator(mode="after")
    def all_ranks_at_once(self):
        if self.adaptive and self.centre == "allreduce":
            raise ValueError('adaptive = true needs centre = "server": an all-reduce needs all ranks at the same step')
        return self


class EASGD(Algorithm, name="easgd"):
    """Each rank trains alone, and every ``period`` steps its model x and a centre c attract each other::

        x = x - eta grad(x);  k = k + 1
        if due:                             # k % period == 0; adaptive: |x - r|/|r| >= theta, see grsgd/trigger.py
            d = alpha (x - c)
            x = x - d;  c = c + d

    centre = "server": c lies on rank 0, which trains as well; the others send it x and wait for d. Sends 2M an
    exchange, half of it from rank 0, but for rank 0's own, which send nothing. centre = "allreduce": all ranks have a
    copy of c and exchange at the same step, c = c + allreduce(d), which sends 2(n-1)/n M.

    What a model loses goes to the centre, so ``c + sum x`` changes by gradients only. (The paper exchanges between
    gradient and update.) With momentum = 0.99 and nesterov = true in the optimizer this is the paper's EAMSGD; momentum
    stays local. The adaptive form, which Ho, Wu, Liu 2018 name beside gossip, is inferred (docs/algorithms.md).
    """

    paper = (
        "Zhang, Choromanska, LeCun 2015, Deep learning with elastic averaging SGD; adaptive: Ho, Wu, Liu 2018, "
        "Adaptive communication for gossiping SGD"
    )
    synchronous = False
    in_background = True
    Options = EASGDOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.synchronous = self.options.centre == "allreduce"
        self.k = 0
        self.exchanges = 0
        self.alpha = 0.9 / self.comm.size if self.options.alpha is None else self.options.alpha
        self.eta_0 = self.learning_rate()
        self.lock = threading.Lock()
        """For whoever changes the server's c: its trainer, or its background."""
        self.handlers = []

    @classmethod
    def needs_content(cls, options):
        return options.adaptive

    def start(self):
        n, i = self.comm.size, self.comm.rank
        if n == 1:
            return
        self.trigger = trigger(self.options, self.replica, self.eta_0)
        self.parts = self.trigger.parts
        self.d = self.x.like()
        if i == 0 or self.synchronous:
            self.c = self.x.like()
            self.c.tensor.copy_(self.x.tensor)
        if i == 0 and not self.synchronous:
            self.handlers = [self.driver.start(self.serve(worker)) for worker in range(1, n)]

    def step(self):
        self.update()
        self.k += 1
        if self.comm.size == 1:
            return
        eta = self.learning_rate()
        mask = self.trigger.due(self.x.tensor, self.k, eta)
        if mask.any():
            self.trigger.begun(self.x.tensor, self.k, eta, mask)
            if self.synchronous:
                yield from self.exchange_with_all()
            elif self.comm.rank == 0:
                self.exchange_here(mask)
            else:
                yield from self.exchange_with_server(mask)
            self.trigger.exchanged(self.x.tensor, self.k, mask)
            self.exchanges += 1

    def exchange_with_all(self):
        d = self.d
        self.elastic(self.x.tensor, self.c.tensor, d.tensor)
        self.x.tensor.sub_(d.tensor)
        yield from ring_allreduce(self.comm, d.array)
        self.c.tensor.add_(d.tensor)
        self.staleness[0] += self.comm.size - 1

    def exchange_here(self, mask: np.ndarray):
        with self.lock:
            for place, part in self.parts.chosen(mask):
                x, c, d = self.x.tensor[part], self.c.tensor[part], self.d.tensor[place]
                self.elastic(x, c, d)
                x.sub_(d)
                c.add_(d)

    def exchange_with_server(self, mask: np.ndarray):
        request = self.request(self.k, mask)
        d = self.d
        for place, part in self.parts.chosen(mask):
            d.tensor[place].copy_(self.x.tensor[part])
        message = d.array[: self.parts.size(mask)]
        yield self.comm.Isend(request, 0, REQUEST, header=request.nbytes), self.comm.Isend(message, 0, MODEL)
        yield self.comm.Irecv(message, 0, ELASTIC)
        for place, part in self.parts.chosen(mask):
            self.x.tensor[part].sub_(d.tensor[place])

    def serve(self, worker: int):
        """Background schedule of the server for one worker, until it has ended its training."""
        request = self.request(0, np.zeros(len(self.parts), bool))
        d = self.x.like()
        while True:
            yield self.comm.Irecv(request, worker, REQUEST)
            step, mask = int(request[0]), request[1:].astype(bool)
            if step == GOODBYE:
                return
            message = d.array[: self.parts.size(mask)]
            yield self.comm.Irecv(message, worker, MODEL)
            with self.lock:
                for place, part in self.parts.chosen(mask):
                    c = self.c.tensor[part]
                    self.elastic(d.tensor[place], c, d.tensor[place])
                    c.add_(d.tensor[place])
                self.staleness[self.k - step] += 1
            yield self.comm.Isend(message, worker, ELASTIC)

    def elastic(self, x, c, d):
        """d = alpha (x - c); d may be x."""
        torch.sub(x, c, out=d).mul_(self.alpha)

    def request(self, step: int, mask: np.ndarray) -> np.ndarray:
        """What a worker asks for: int64, its step, and which parts of the model."""
        return np.array([step, *mask], np.int64)

    def learning_rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def drain(self):
        if self.comm.size > 1 and not self.synchronous and self.comm.rank != 0:
            goodbye = self.request(GOODBYE, np.zeros(len(self.parts), bool))
            yield self.comm.Isend(goodbye, 0, REQUEST, header=goodbye.nbytes)
        yield self.handlers

    def average(self):
        if self.comm.size == 1 or self.options.final == "average":
            yield from super().average()
            return
        if self.comm.rank == 0 or self.synchronous:
            self.x.tensor.copy_(self.c.tensor)
        if not self.synchronous:
            yield from broadcast(self.aside, self.x.array)
        yield from self.mean_of_buffers()
