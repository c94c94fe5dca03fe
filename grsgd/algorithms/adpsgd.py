"""Asynchronous decentralized parallel SGD (Lian et al. 2018).

A schedule is a generator that yields each object it waits for.
"""

import threading
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.on_topology import OnTopology
from grsgd.comm import tags
from grsgd.comm.communicator import ANY_RANK, LostRank, until_over
from grsgd.comm.mailbox import UNWEIGHTED_HEADER, ModelMessage
from grsgd.comm.pollables import Until
from grsgd.comm.topologies import topology
from grsgd.comm.topologies.topology import Topology
from grsgd.models.mixing import add_difference

FINISHED = -1
"""Value of ``step`` in a message that contains no model. An active rank sends a message without a model when the active
rank has ended its training."""


class ADPSGDOptions(Options):
    renamed: ClassVar[dict[str, str]] = {"graph": "topology"}

    topology: str = Field("ring", **topology.OPTION)
    period: int = Field(1, ge=1, description="fewest local steps between two exchanges that an active rank begins")
    merge: Literal["average", "delta"] = Field(
        "average",
        description="average: x = (x + y)/2, as in the AD-PSGD paper; delta: x = x + (y - s)/2 with the sent model "
        "s, which keeps the mean of all models",
    )


class ADPSGD(OnTopology, name="adpsgd"):
    """Active ranks average their models with passive neighbours, while all ranks train. On a ring every second rank is
    active. Each rank has two activities, which share the rank's model x: the trainer, and active or passive gossip::

        trainer:          x = x - eta grad(x)                                       # never waits

        active gossip:    pick a passive neighbour j;  send s = x, receive y;  x = (x + y)/2
        passive gossip:   receive y from any active neighbour;  send x;  x = (x + y)/2

    Ranks never wait for each other in a circle, because active ranks begin exchanges only with passive ranks. If an
    active rank takes steps while an exchange is under way, the mean of all models drifts. With ``merge = "delta"``
    steps during an exchange do not make the mean of all models drift. In an exchange each of the two ranks sends M (the
    bytes of the model).
    """

    paper = "Lian, Zhang, Zhang, Liu 2018, Asynchronous decentralized parallel stochastic gradient descent"
    traits = Traits(synchronous=False, family="gossip", in_background=True, survives_deaths=True, trains_bfloat16=True)
    Options = ADPSGDOptions
    remembers = ("k", "k_last", "exchanges")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.k_last = 0
        self.ended = self.is_closed = False
        """`ended`: whether this rank has ended its training. `is_closed`: whether gossip must not change this rank's
        model any more."""
        self.finished: set[int] = set()
        """Active neighbours that have told this passive rank that they have ended their training."""
        self.exchanges = 0
        self.active = active_ranks(self.topology)
        self.is_active = self.comm.rank in self.active
        self.lock = threading.Lock()
        """Lock that the training loop and the gossip in the background hold while they change the model x."""
        self.mine, self.theirs = ModelMessage(self.x), ModelMessage(self.x)

    @classmethod
    def check_topology(cls, graph):
        graph.require_symmetric()
        active = active_ranks(graph)
        is_active = np.isin(np.arange(graph.size), active)
        if not topology.connected(graph.edges() & (is_active[:, None] != is_active)):
            raise graph.refusal(f"graph that is not connected by the edges from active ranks {active} to others")
        for step in range(len(graph.matrices)):
            for rank in active:
                if not set(graph.out_neighbours(rank, step)) - set(active):
                    raise graph.refusal(f"graph of step {step} without a passive neighbour of the active rank {rank}")

    @classmethod
    def arrays_held(cls, options, ranks):
        return 2

    def partners(self, exchange: int | None = None) -> list[int]:
        """Return the passive neighbours of an active rank, or the active neighbours of a passive rank. ``exchange`` is
        the number of this rank's exchange; in a topology that changes from exchange to exchange, the number decides the
        neighbours. Without ``exchange``, the neighbours in all exchanges are returned."""
        neighbours = self.topology.out_neighbours(self.comm.rank, exchange, without=self.comm.lost)
        return [j for j in neighbours if (j in self.active) != self.is_active]

    def begin(self):
        self.ended = self.is_closed = False
        self.finished.clear()
        if self.comm.size > 1:
            self.gossip = self.driver.start(self.active_gossip() if self.is_active else self.passive_gossip())

    def step(self):
        with self.lock:
            self.update()
            self.k += 1

    def active_gossip(self):
        while True:
            yield Until(lambda: self.is_due() or self.ended, "local steps")
            if self.ended:
                break
            partners = self.partners(self.exchanges)
            j = partners[self.rng.integers(len(partners))]
            with self.lock:
                self.write()
            try:
                yield (
                    self.comm.Isend(self.mine.buffer, j, tags.ADPSGD_CALL, header=UNWEIGHTED_HEADER),
                    self.comm.Irecv(self.theirs.buffer, j, tags.ADPSGD_REPLY),
                )
            except LostRank:  # the partner has died, so this exchange is left out
                if not self.comm.survives_deaths:
                    raise
                continue
            with self.lock:
                self.merge()
        yield from until_over([self.finish(j) for j in self.partners()])

    def is_due(self) -> bool:
        """Return whether this active rank must begin an exchange and has a partner for the exchange."""
        return self.k - self.k_last >= self.options.period and bool(self.partners(self.exchanges))

    def finish(self, j: int):
        """Begin to send the passive rank ``j`` the message that this rank has ended its training. Return a pollable (an
        object that a generator can yield to wait) that is true when the message has been sent."""
        self.mine.step, self.mine.sender = FINISHED, self.comm.rank
        finished = self.mine.buffer[:UNWEIGHTED_HEADER]
        return self.comm.Isend(finished, j, tags.ADPSGD_CALL, header=UNWEIGHTED_HEADER)

    def passive_gossip(self):
        """Generator that answers each model of an active neighbour with this passive rank's model, until all active
        neighbours have ended their training. `passive_gossip` goes on after this rank's own training has ended."""
        while self.comm.survives_deaths or not self.all_have_finished():
            yield self.comm.Irecv(self.theirs.buffer, ANY_RANK, tags.ADPSGD_CALL)
            caller = self.theirs.sender
            if self.theirs.step == FINISHED:
                self.finished.add(caller)
                continue
            with self.lock:
                self.write()
                if not self.is_closed:
                    self.merge()
            reply = self.comm.Isend(self.mine.buffer, caller, tags.ADPSGD_REPLY, header=UNWEIGHTED_HEADER)
            yield from until_over([reply])

    def all_have_finished(self) -> bool:
        """Return whether all active partners of this passive rank have ended their training."""
        return set(self.partners()) <= self.finished

    def changed(self, rank):
        self.finished.discard(rank)
        if self.is_active and self.ended and rank not in self.comm.lost and rank in self.partners():
            self.finish(rank)

    def write(self):
        """Copy this rank's model and its number of steps into the message to the partner of the exchange."""
        self.mine.x.tensor.copy_(self.x.tensor)
        self.mine.step, self.mine.sender = self.k, self.comm.rank
        self.k_last = self.k

    def merge(self):
        """Merge the model that the partner has sent into this rank's model."""
        x, y = self.x.tensor, self.theirs.x.tensor
        if self.options.merge == "average" or self.k == self.mine.step:
            x.lerp_(y, 0.5)
        else:
            add_difference(x, y, self.mine.x.tensor, 0.5)
        self.staleness[self.k - self.theirs.step] += 1
        self.exchanges += 1

    def snapshot(self):
        with self.lock:
            return self.x.tensor.clone(), self.replica.buffers.tensor.clone()

    def drain(self):
        self.ended = True
        if self.comm.size > 1:
            # a new process that takes over a dead process's rank may still send to this rank, so this rank's gossip
            # goes on
            goes_on = self.comm.survives_deaths and not self.is_active
            yield Until(self.all_have_finished, "active partners that still train") if goes_on else self.gossip
            with self.lock:
                self.is_closed = True


def active_ranks(graph: Topology) -> list[int]:
    """Return the active ranks, which begin exchanges: one of the two sides of a bipartite graph, or the ranks with odd
    numbers if the graph is not bipartite."""
    sides = graph.sides()
    return [rank for rank in range(graph.size) if (rank % 2 if sides is None else sides[rank])]
