"""Asynchronous decentralized parallel SGD (Lian et al. 2018)."""

import threading
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options, Traits
from grsgd.comm import tags, topology
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.mailbox import UNWEIGHTED_HEADER, ModelMessage
from grsgd.comm.pollables import Until
from grsgd.comm.topology import Topology
from grsgd.models.mixing import add_difference

FINISHED = -1
"""The step in a message without a model by which an active rank tells its partners that it has ended its training."""


class ADPSGDOptions(Options):
    renamed: ClassVar[dict[str, str]] = {"graph": "topology"}

    topology: str = Field("ring", **topology.OPTION)
    period: int = Field(1, ge=1, description="local steps between an active rank's exchanges, at least")
    merge: Literal["average", "delta"] = Field(
        "average", description="x = (x + y)/2, as in the paper, or x + (y - s)/2 with s what was sent: keeps the mean"
    )


class ADPSGD(Algorithm, name="adpsgd"):
    """Active ranks average their models with passive neighbours' while all train on. On a ring every other rank is
    active; each has two activities that share x::

        trainer:          x = x - eta grad(x)                                       # never waits

        active gossip:    pick a passive neighbour j;  send s = x, receive y;  x = (x + y)/2
        passive gossip:   receive y from any active neighbour;  send x;  x = (x + y)/2

    The roles keep ranks from waiting for each other in a circle. Steps that an active rank takes while an exchange is
    under way make the mean of all models drift; ``merge = "delta"`` does not. Sends M per exchange each way.
    """

    paper = "Lian, Zhang, Zhang, Liu 2018, Asynchronous decentralized parallel stochastic gradient descent"
    traits = Traits(synchronous=False, in_background=True)
    Options = ADPSGDOptions
    remembers = ("h", "h_last", "exchanges")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h = self.h_last = 0
        self.ended = False
        self.exchanges = 0
        self.topology = topology.build(self.options.topology, self.comm.size)
        self.active = active_ranks(self.topology)
        self.is_active = self.comm.rank in self.active
        self.lock = threading.Lock()
        """Held by the activity that changes x: the trainer, or the background."""
        self.mine, self.theirs = ModelMessage(self.x), ModelMessage(self.x)

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        graph = topology.build(options.topology, ranks)
        graph.require_symmetric()
        active = active_ranks(graph)
        is_active = np.isin(np.arange(ranks), active)
        if not topology.connected(graph.edges() & (is_active[:, None] != is_active)):
            raise graph.refusal(f"graph that is not connected by the edges from active ranks {active} to others")
        for step in range(len(graph.matrices)):
            for rank in active:
                if not set(graph.out_neighbours(rank, step)) - set(active):
                    raise graph.refusal(f"graph of step {step} without a passive neighbour of the active rank {rank}")

    def partners(self, exchange: int | None = None) -> list[int]:
        """Return the neighbours in the other role, in this rank's exchange number ``exchange`` or in any."""
        neighbours = self.topology.out_neighbours(self.comm.rank, exchange)
        return [j for j in neighbours if (j in self.active) != self.is_active]

    def begin(self):
        self.ended = False
        if self.comm.size > 1:
            self.gossip = self.driver.start(self.active_gossip() if self.is_active else self.passive_gossip())

    def step(self):
        with self.lock:
            self.update()
            self.h += 1

    def active_gossip(self):
        while True:
            yield Until(lambda: self.h - self.h_last >= self.options.period or self.ended, "local steps")
            if self.ended:
                break
            partners = self.partners(self.exchanges)
            j = partners[self.rng.integers(len(partners))]
            with self.lock:
                self.write()
            yield (
                self.comm.Isend(self.mine.buffer, j, tags.ADPSGD_CALL, header=UNWEIGHTED_HEADER),
                self.comm.Irecv(self.theirs.buffer, j, tags.ADPSGD_REPLY),
            )
            with self.lock:
                self.merge()
        self.mine.step = FINISHED
        finished = self.mine.buffer[:UNWEIGHTED_HEADER]
        yield [self.comm.Isend(finished, j, tags.ADPSGD_CALL, header=UNWEIGHTED_HEADER) for j in self.partners()]

    def passive_gossip(self):
        """Schedule, until all active neighbours have finished; a rank that has ended its training still answers."""
        training = len(self.partners())
        while training:
            yield self.comm.Irecv(self.theirs.buffer, ANY_RANK, tags.ADPSGD_CALL)
            if self.theirs.step == FINISHED:
                training -= 1
                continue
            with self.lock:
                self.write()
                self.merge()
            yield self.comm.Isend(self.mine.buffer, self.theirs.sender, tags.ADPSGD_REPLY, header=UNWEIGHTED_HEADER)

    def write(self):
        """Put the present model into the message to the partner."""
        self.mine.x.tensor.copy_(self.x.tensor)
        self.mine.step, self.mine.sender = self.h, self.comm.rank
        self.h_last = self.h

    def merge(self):
        """Merge the partner's model."""
        x, y = self.x.tensor, self.theirs.x.tensor
        if self.options.merge == "average" or self.h == self.mine.step:
            x.lerp_(y, 0.5)
        else:
            add_difference(x, y, self.mine.x.tensor, 0.5)
        self.staleness[self.h - self.theirs.step] += 1
        self.exchanges += 1

    def snapshot(self):
        with self.lock:
            return self.x.tensor.clone(), self.replica.buffers.tensor.clone()

    def drain(self):
        self.ended = True
        if self.comm.size > 1:
            yield self.gossip


def active_ranks(graph: Topology) -> list[int]:
    """Return the ranks that begin exchanges: one side of the graph if it has two, else those of odd number."""
    sides = graph.sides()
    return [rank for rank in range(graph.size) if (rank % 2 if sides is None else sides[rank])]
