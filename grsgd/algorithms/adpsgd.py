"""Asynchronous decentralized parallel SGD (Lian et al. 2018)."""

import threading
from typing import Literal

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.mailbox import UNWEIGHTED_HEADER, Letter
from grsgd.comm.pollables import Until
from grsgd.mixing import add_difference

CALL, REPLY = 0, 1
GOODBYE = -1
"""The step in a letter without a model that an active rank sends to every passive one when it has ended."""


class ADPSGDOptions(Options):
    graph: Literal["ring", "full"] = Field("ring", description="partners: a ring neighbour, or any passive rank")
    period: int = Field(1, ge=1, description="local steps between an active rank's exchanges, at least")
    merge: Literal["average", "delta"] = Field(
        "average", description="x = (x + y)/2, as in the paper, or x + (y - s)/2 with s what was sent: keeps the mean"
    )


class ADPSGD(Algorithm, name="adpsgd"):
    """Ranks of odd number are active, those of even number passive; each has two activities that share x::

        trainer:          x = x - eta grad(x)                                   # never waits

        active gossip:    pick a passive rank j;  send s = x, receive y;  x = (x + y)/2
        passive gossip:   receive y from any active rank;  send x;  x = (x + y)/2

    The roles keep ranks from waiting for each other in a circle. Steps that an active rank takes while an exchange is
    under way make the mean of all models drift; ``merge = "delta"`` does not. Sends M an exchange each way.
    """

    paper = "Lian, Zhang, Zhang, Liu 2018, Asynchronous decentralized parallel stochastic gradient descent"
    synchronous = False
    in_background = True
    Options = ADPSGDOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        i, n = self.comm.rank, self.comm.size
        self.h = self.h_last = 0
        self.ended = False
        self.exchanges = 0
        self.coin = self.random()
        self.active = range(1, n, 2)
        self.passive = range(0, n, 2)
        neighbours = {(i + 1) % n, (i - 1) % n} if self.options.graph == "ring" else range(n)
        self.partners = [j for j in neighbours if j in self.passive]
        self.lock = threading.Lock()
        self.mine, self.theirs = Letter(self.x), Letter(self.x)

    def start(self):
        if self.comm.size > 1:
            is_active = self.comm.rank in self.active
            self.gossip = self.driver.start(self.active_gossip() if is_active else self.passive_gossip())

    def step(self):
        with self.lock:
            self.update()
            self.h += 1

    def active_gossip(self):
        while True:
            yield Until(lambda: self.h - self.h_last >= self.options.period or self.ended, "local steps")
            if self.ended:
                break
            j = self.partners[self.coin.integers(len(self.partners))]
            with self.lock:
                self.write()
            yield (
                self.comm.Isend(self.mine.buffer, j, CALL, header=UNWEIGHTED_HEADER),
                self.comm.Irecv(self.theirs.buffer, j, REPLY),
            )
            with self.lock:
                self.merge()
        self.mine.step = GOODBYE
        goodbye = self.mine.buffer[:UNWEIGHTED_HEADER]
        yield [self.comm.Isend(goodbye, j, CALL, header=UNWEIGHTED_HEADER) for j in self.passive]

    def passive_gossip(self):
        """Until all active ranks have said goodbye; a rank that has ended its training still answers."""
        partners = len(self.active)
        while partners:
            yield self.comm.Irecv(self.theirs.buffer, ANY_RANK, CALL)
            if self.theirs.step == GOODBYE:
                partners -= 1
                continue
            with self.lock:
                self.write()
                self.merge()
            yield self.comm.Isend(self.mine.buffer, self.theirs.sender, REPLY, header=UNWEIGHTED_HEADER)

    def write(self):
        """Put the present model into the letter to the partner."""
        self.mine.x.tensor.copy_(self.x.tensor)
        self.mine.step, self.mine.sender = self.h, self.comm.rank
        self.h_last = self.h

    def merge(self):
        x, y = self.x.tensor, self.theirs.x.tensor
        if self.options.merge == "average" or self.h == self.mine.step:
            x.lerp_(y, 0.5)
        else:
            add_difference(x, y, self.mine.x.tensor, 0.5)
        self.staleness[self.h - self.theirs.step] += 1
        self.exchanges += 1

    def drain(self):
        self.ended = True
        if self.comm.size > 1:
            yield self.gossip
