"""Elastic averaging SGD (Zhang, Choromanska, LeCun 2015).

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from grsgd.algorithms.adaptive import AdaptiveOptions
from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.triggered import FINISHED, TriggeredAlgorithm
from grsgd.comm import tags
from grsgd.comm.allreduce import broadcast, ring_allreduce
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


class EASGDOptions(AdaptiveOptions, Options):
    alpha: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the distance between model and centre by which the model moves in an exchange; by "
        "default 0.9/n",
    )
    period: int = Field(10, ge=1, description="number of steps between two exchanges with the centre, unless adaptive")
    centre: Literal["server", "allreduce"] = Field(
        "server",
        description="ranks that hold the centre: server: rank 0, with asynchronous exchanges; allreduce: all ranks, "
        "which wait for each other",
    )
    final: Literal["centre", "average"] = Field(
        "centre",
        description="model that is the result of training and is evaluated in the curve: the centre, or the average of "
        "all models",
    )

    @model_validator(mode="after")
    def all_ranks_at_once(self):
        if self.adaptive and self.centre == "allreduce":
            raise ValueError('adaptive = true needs centre = "server": an all-reduce needs all ranks at the same step')
        return self


class EASGD(TriggeredAlgorithm, name="easgd"):
    """Each rank trains its own model x. Every ``period`` steps, the rank's model x and a common model c (the centre)
    attract each other::

        x = x - eta grad(x);  k = k + 1
        if due:                             # k % period == 0; adaptive: |x - r|/|r| >= threshold, see adaptive.py
            d = alpha (x - c)
            x = x - d;  c = c + d

    With centre = "server", c is on rank 0, which trains as well. The other ranks send x to rank 0 and wait for d. In an
    exchange a rank sends M (the bytes of the model) to rank 0, and rank 0 sends M back. Rank 0 needs no messages to
    exchange its own model with the centre. With centre = "allreduce", all ranks have a copy of c and exchange at the
    same step: c = c + allreduce(d). With centre = "allreduce" each of n ranks sends 2(n-1)/n M per exchange.

    An exchange subtracts d from a model and adds d to the centre, so only gradients change ``c + sum x``. (In the EASGD
    paper a rank makes the exchange between the computation of its gradient and the update.) The final model of the run
    is the centre c. The snapshot of rank 0 contains the centre c. The snapshots of all ranks except rank 0 contain the
    ranks' own models, and have weight 0 in the average of all snapshots.

    With momentum = 0.99 and nesterov = true in the optimizer, `EASGD` is the EAMSGD of the EASGD paper. The optimizers'
    momentum is not exchanged. Ho, Wu, Liu 2018 mention an adaptive form of EASGD as well as of gossip; the details of
    adaptive EASGD are inferred (docs/reference/algorithms/server.md).
    """

    paper = (
        "Zhang, Choromanska, LeCun 2015, Deep learning with elastic averaging SGD; adaptive: Ho, Wu, Liu 2018, "
        "Adaptive communication for distributed deep learning on commodity GPU cluster"
    )
    traits = Traits(synchronous=False, family="server", in_background=True)
    Options = EASGDOptions
    remembers = ("k", "exchanges", "c")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.exchanges = 0
        self.alpha = 0.9 / self.comm.size if self.options.alpha is None else self.options.alpha
        self.c: Flat | None = None
        """The centre c, on ranks that hold the centre; None on other ranks, in a run with one rank, and before
        `start`."""
        self.lock = threading.Lock()
        """Lock that the server holds while training or a background task changes the centre c."""
        self.handlers = []

    @classmethod
    def traits_of(cls, options):
        return replace(
            super().traits_of(options),
            synchronous=options.centre == "allreduce",
            survives_deaths="together" if options.centre == "allreduce" else False,
            rests_between_steps=options.centre == "allreduce",
            comparison=f"centre = {options.centre}",
        )

    @classmethod
    def arrays_held(cls, options, ranks):
        return (2 if options.centre == "allreduce" else ranks + 1) + options.adaptive

    def start(self):
        n, i = self.comm.size, self.comm.rank
        if n == 1:
            return
        self.make_trigger()
        self.d = self.x.like()
        if i == 0 or self.traits.synchronous:
            self.c = self.x.like()
            self.c.tensor.copy_(self.x.tensor)

    def begin(self):
        if self.comm.rank == 0 and not self.traits.synchronous:
            self.handlers = [self.driver.start(self.serve(worker)) for worker in range(1, self.comm.size)]

    def step(self):
        self.update()
        self.k += 1
        if self.comm.size == 1:
            return
        eta = self.learning_rate
        mask = self.trigger.due(self.x.tensor, self.k, eta)
        if mask.any():
            self.trigger.begun(self.x.tensor, self.k, eta, mask)
            if self.traits.synchronous:
                yield from self.exchange_with_all()
            elif self.comm.rank == 0:
                self.exchange_here(mask)
            else:
                yield from self.exchange_with_server(mask)
            self.trigger.exchanged(self.x.tensor, self.k, mask)
            self.exchanges += 1

    def exchange_with_all(self):
        """Generator, called on all ranks at once, that exchanges all models with the centre by an all-reduce."""
        d = self.d
        self.elastic(self.x.tensor, self.c.tensor, d.tensor)
        self.x.tensor.sub_(d.tensor)
        yield from ring_allreduce(self.comm, d.array)
        self.c.tensor.add_(d.tensor)
        self.staleness[0] += self.comm.size - 1

    def exchange_here(self, mask: np.ndarray):
        """Exchange this rank's own model with the centre, which this rank holds, so that no messages are needed."""
        with self.lock:
            for packed, part in self.slices.selected(mask):
                x, c, d = self.x.tensor[part], self.c.tensor[part], self.d.tensor[packed]
                self.elastic(x, c, d)
                x.sub_(d)
                c.add_(d)

    def exchange_with_server(self, mask: np.ndarray):
        """Generator that sends this rank's model to the server, and subtracts the server's answer d from this rank's
        model."""
        request, d = self.request(self.k, mask=mask), self.d
        self.slices.pack(mask, self.x.tensor, d.tensor)
        message = d.array[: self.slices.size(mask)]
        yield self.send_request(request, 0), self.comm.Isend(message, 0, tags.EASGD_MODEL)
        yield self.comm.Irecv(message, 0, tags.EASGD_ELASTIC)
        for packed, part in self.slices.selected(mask):
            self.x.tensor[part].sub_(d.tensor[packed])

    def serve(self, worker: int):
        """Generator, run in the background of the server, that answers the requests of rank ``worker`` until ``worker``
        has ended its training."""
        request = self.request(0)
        d = self.x.like()
        while True:
            yield self.comm.Irecv(request, worker, tags.EXCHANGE_REQUEST)
            step, mask = int(request[0]), self.mask_of(request)
            if step == FINISHED:
                return
            message = d.array[: self.slices.size(mask)]
            yield self.comm.Irecv(message, worker, tags.EASGD_MODEL)
            with self.lock:
                for packed, part in self.slices.selected(mask):
                    c = self.c.tensor[part]
                    self.elastic(d.tensor[packed], c, d.tensor[packed])
                    c.add_(d.tensor[packed])
                self.staleness[self.k - step] += 1
            yield self.comm.Isend(message, worker, tags.EASGD_ELASTIC)

    def elastic(self, x, c, d):
        """Set ``d`` to alpha (x - c), in place, where c is the centre and alpha the option ``alpha``. The arguments
        ``d`` and ``x`` may be the same tensor."""
        torch.sub(x, c, out=d).mul_(self.alpha)

    @property
    def result_is_centre(self) -> bool:
        return self.options.final == "centre" and self.comm.size > 1

    def snapshot(self):
        if self.c is None or self.comm.rank != 0 or not self.result_is_centre:
            return super().snapshot()
        with self.lock:
            return self.c.tensor.clone(), self.replica.buffers.tensor

    @property
    def weight(self):
        return 0.0 if self.result_is_centre and self.comm.rank != 0 else 1.0

    def drain(self):
        if self.comm.size > 1 and not self.traits.synchronous and self.comm.rank != 0:
            yield self.send_request(self.request(FINISHED), 0)
        yield self.handlers

    def average(self):
        if not self.result_is_centre:
            yield from super().average()
            return
        if self.c is not None:
            self.x.tensor.copy_(self.c.tensor)
        if not self.traits.synchronous:
            yield from broadcast(self.uncounted_comm, self.x.array)
        yield from average_buffers(self.uncounted_comm, self.replica)
