"""SGP (stochastic gradient push) and overlapped SGP (Assran et al. 2019).

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field

from grsgd.algorithms.averaging import average_weighted_models
from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.on_topology import OnTopology
from grsgd.comm.mailbox import HEADER, ModelMessage
from grsgd.comm.topologies import topology
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class SGPOptions(Options):
    topology: str = Field("one-peer-exponential", **topology.OPTION)
    tau: int = Field(
        0, ge=0, description="number of steps by which a message may be late; a number above 0: overlapped SGP"
    )


class ModelTransfer(NamedTuple):
    """Message with a model whose sending or receiving began in step number ``step``. ``done`` is a pollable that is
    true when the message has been sent or received."""

    step: int
    done: object
    message: ModelMessage


class SGP(OnTopology, name="sgp"):
    """Each rank pushes shares of its model along a directed graph; by default rank i sends to i + 2^(k mod log2 n) in
    step k::

        x = x - eta grad(z)                                     # weight decay is computed at z, too
        send (p_j x, p_j w) to each out-neighbour j of step k   # by default to one j, with p_j = 1/2
        x = p_i x + the x received;  w = p_i w + the w received # received by now, at least from step k - tau
        z = x / w

    The shares p_j that rank i sends to its neighbours and the share p_i that rank i keeps are a column of the
    topology's mixing matrix, and sum to 1. So the push-sum weights w of all n ranks and all messages sum to n. Only
    gradients change the sum of the numerators x over all ranks and messages. Between steps the parameters of a rank's
    model are z = x / w, where w is the rank's push-sum weight. A rank sends M + 8 bytes per out-neighbour and step (M:
    bytes of the model). With tau = 0 a rank waits for messages from its in-neighbours in every step. With tau > 0 a
    rank waits only for in-neighbours that are at least tau steps behind.
    """

    paper = "Assran, Loizou, Ballas, Rabbat 2019, Stochastic gradient push for distributed deep learning"
    traits = Traits(
        synchronous=True, family="gossip", in_background=True, rests_between_steps=True, survives_deaths="together"
    )
    Options = SGPOptions
    remembers = ("k", "w")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.w = 1.0
        self.receiving: deque[ModelTransfer] = deque()
        self.sending: deque[ModelTransfer] = deque()
        self.spare: list[ModelMessage] = []

    @classmethod
    def traits_of(cls, options):
        return replace(super().traits_of(options), rests_between_steps=options.tau == 0)

    @classmethod
    def check_topology(cls, graph):
        graph.require_stochastic("column")
        graph.require_own_weights()

    @classmethod
    def arrays_held(cls, options, ranks):
        graph, tau = topology.build(options.topology, ranks), options.tau
        return max(
            (2 + tau) * len(graph.out_neighbours(rank, step)) + (1 + tau) * len(graph.in_neighbours(rank, step))
            for rank in range(ranks)
            for step in range(len(graph.matrices))
        )

    def step(self):
        if self.comm.size == 1:
            self.update()
            return
        self.update_numerator()
        i, k, tau = self.comm.rank, self.k, self.options.tau
        shares = self.topology.matrix(k)[:, i].tolist()
        self.k += 1
        for j in self.topology.out_neighbours(i, k):
            self.push(j, shares[j])
        for j in self.topology.in_neighbours(i, k):
            self.expect(j)
        self.x.tensor.mul_(shares[i])
        self.w *= shares[i]
        try:
            while self.receiving and (self.receiving[0].step <= self.k - tau or self.receiving[0].done.Test()):
                yield from self.merge()
        finally:  # after the division the model is z, even if the run is stopped during a wait
            self.x.tensor.div_(self.w)
        while self.sending and self.sending[0].step < self.k - tau:
            yield from self.sent()

    def update_numerator(self):
        """Take the optimizer's step with the gradient at the model's parameters z. After `update_numerator` the model's
        parameters are x = w z plus the change by the optimizer."""
        if self.w == 1:
            self.update()
            return
        rest = self.take_buffer()
        torch.mul(self.x.tensor, self.w - 1, out=rest.x.tensor)
        self.update()
        self.x.tensor.add_(rest.x.tensor)
        self.spare.append(rest)

    def push(self, neighbour: int, share: float):
        message = self.take_buffer()
        torch.mul(self.x.tensor, share, out=message.x.tensor)
        message.weight, message.step = self.w * share, self.k
        sending = self.comm.Isend(message.buffer, neighbour, header=HEADER)
        self.sending.append(ModelTransfer(self.k, self.in_background(sending), message))

    def expect(self, neighbour: int):
        message = self.take_buffer()
        receiving = self.comm.Irecv(message.buffer, neighbour)
        self.receiving.append(ModelTransfer(self.k, self.in_background(receiving), message))

    def in_background(self, transfer):
        """Return a pollable that is true when the message ``transfer`` has been sent or received. With tau > 0 a
        background task sends or receives the message while gradients are computed."""

        def schedule():
            yield transfer

        return self.driver.start(schedule()) if self.options.tau else transfer

    def merge(self):
        """Generator that waits for the oldest message that this rank is receiving, and adds the message's model and
        weight to x and w."""
        _, received, message = self.receiving.popleft()
        yield received
        self.x.tensor.add_(message.x.tensor)
        self.w += message.weight
        self.staleness[self.k - message.step] += 1
        self.spare.append(message)

    def sent(self):
        """Generator that waits until the oldest message that this rank is sending has been sent."""
        _, left, message = self.sending.popleft()
        yield left
        self.spare.append(message)

    def take_buffer(self) -> ModelMessage:
        return self.spare.pop() if self.spare else ModelMessage(self.x)

    def drain(self):
        if self.comm.size > 1:
            self.x.tensor.mul_(self.w)
            try:
                while self.receiving:
                    yield from self.merge()
            finally:
                self.x.tensor.div_(self.w)
            while self.sending:
                yield from self.sent()

    @property
    def weight(self):
        return self.w

    def average(self):
        yield from average_weighted_models(self.uncounted_comm, self.replica, self.w)
