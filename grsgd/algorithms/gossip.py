"""Gossiping SGD (Jin et al. 2016), and its adaptive form (Ho, Wu, Liu 2018)."""

import threading
from typing import Literal

import numpy as np
from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.mailbox import UNWEIGHTED_HEADER, Letter, Outbox
from grsgd.comm.pollables import Until
from grsgd.mixing import add_difference
from grsgd.trigger import TriggerOptions, trigger

REQUEST, ANSWER, OFFER = 0, 1, 2
GOODBYE = -1
"""The step in a request that a rank sends to all others when it has ended its training."""


class GossipOptions(TriggerOptions, Options):
    period: int = Field(1, ge=1, description="local steps between two exchanges that a rank begins; not if adaptive")
    mode: Literal["pair", "push", "pull"] = Field(
        "pair", description="who averages: both, which keeps the mean, the one who is sent a model, or the one who asks"
    )


class Gossip(Algorithm, name="gossip"):
    """Each rank averages its model with a random other one's every ``period`` steps, or when its own has changed::

        x = x - eta grad(x);  k = k + 1
        if due:                         # k % period == 0; adaptive: |x - r|/|r| >= theta, see grsgd/trigger.py
            pick a random rank j
            pair:  send x to j, receive x_j;  x = (x + x_j)/2 on both ranks
            pull:               receive x_j;  x = (x + x_j)/2
            push:  send x to j;             x_j = (x + x_j)/2
            r = x                                               # of all who have averaged

    Every rank answers requests in the background, one after the other, with its model s of that moment. What comes
    back, y, is merged as ``x = x + (y - s)/2``: the average if x is still s, and else no step that was taken meanwhile
    is lost. So pair exchanges leave the sum of all models as it is. Nobody is refused, and nobody waits in a circle:
    who has asked waits for the exchanges that its partner serves before, and those wait for messages under way only.

    Jin et al. use push and pull; pair and all of the adaptive form are inferred (docs/algorithms.md). pair and pull
    wait for the partner; push waits for nobody, and is left out where the last one has not been taken up. Sends 2M an
    exchange, half of it from each side; push and pull send M.
    """

    paper = (
        "Jin, Yuan, Iandola, Keutzer 2016, How to scale distributed deep learning?; adaptive: Ho, Wu, Liu 2018, "
        "Adaptive communication for gossiping SGD"
    )
    synchronous = False
    in_background = True
    Options = GossipOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.k = 0
        self.begun = self.served = 0
        """Exchanges in which this rank was the one who asked, and in which it was the partner."""
        self.serving = False
        self.coin = self.random()
        self.others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        self.eta_0 = self.learning_rate()
        self.lock = threading.Lock()
        """For whoever changes x: the trainer, or the background."""
        self.offering: list = []
        """pair: the message that carries ``mine``."""
        self.pushing = Outbox(self.x)
        """push: the offers."""

    @classmethod
    def needs_content(cls, options):
        return options.adaptive

    def start(self):
        if self.others:
            self.trigger = trigger(self.options, self.replica, self.eta_0)
            self.parts = self.trigger.parts
            self.mine, self.theirs = Letter(self.x), Letter(self.x)
            self.server = self.driver.start(self.serve())

    # ---- the trainer

    def step(self):
        with self.lock:
            self.update()
            self.k += 1
            if not self.others:
                return
            eta = self.learning_rate()
            mask = self.trigger.due(self.x.tensor, self.k, eta)
            if not mask.any():
                return
            j = self.others[self.coin.integers(len(self.others))]
            if self.options.mode == "push" and not self.pushing.ready(j):
                return
            self.trigger.begun(self.x.tensor, self.k, eta, mask)
        if self.options.mode == "push":
            self.push(j, mask)
        else:
            yield from self.ask(j, mask)

    def ask(self, j: int, mask: np.ndarray):
        """Schedule: pair or pull, the parts of the model in ``mask``."""
        served = self.served  # before the test: the exchange may end right after it
        if self.serving:
            # Half of s has been given away already: with two more averages, less than that would be left of it here.
            yield Until(lambda: self.served > served, "the end of an exchange that another rank has begun")
        yield self.offering
        request = self.request(self.k, mask)
        yield (
            self.comm.Isend(request, j, REQUEST, header=request.nbytes),
            self.comm.Irecv(self.theirs.buffer, j, ANSWER),
        )
        with self.lock:
            if self.options.mode == "pair":
                self.write(self.mine, mask)
                self.offering = [self.comm.Isend(self.content(self.mine, mask), j, OFFER, header=UNWEIGHTED_HEADER)]
            for place, part in self.parts.chosen(mask):
                self.x.tensor[part].lerp_(self.theirs.x.tensor[place], 0.5)
            self.merged(self.theirs.step, mask)
            self.begun += 1

    def push(self, j: int, mask: np.ndarray):
        request, letter = self.request(self.k, mask), self.pushing.blank()
        with self.lock:
            self.write(letter, mask)
            self.trigger.exchanged(self.x.tensor, self.k, mask)
        asked = self.comm.Isend(request, j, REQUEST, header=request.nbytes)
        # A synchronous send: otherwise the library would store any number of small letters.
        offered = self.comm.Issend(self.content(letter, mask), j, OFFER, header=UNWEIGHTED_HEADER)
        self.pushing.send(j, letter, Until(lambda: asked.Test() and offered.Test(), str(offered)))
        self.begun += 1

    def drain(self):
        """A rank that has ended its training goes on answering until all have."""
        if self.others:
            yield self.offering
            yield self.pushing.under_way()
            goodbye = self.request(GOODBYE, np.zeros(len(self.parts), bool))
            yield [self.comm.Isend(goodbye, j, REQUEST, header=goodbye.nbytes) for j in self.others]
            yield self.server

    # ---- the background

    def serve(self):
        """Background schedule: answer requests and take in offers until all others have ended their training."""
        training = len(self.others)
        request = self.request(0, np.zeros(len(self.parts), bool))
        s, offer = Letter(self.x), Letter(self.x)
        while training:
            yield self.comm.Irecv(request, ANY_RANK, REQUEST)
            i, step, mask = int(request[0]), int(request[1]), request[2:].astype(bool)
            if step == GOODBYE:
                training -= 1
                continue
            messages = []
            with self.lock:
                if self.options.mode != "push":
                    self.write(s, mask)
                    messages += [self.comm.Isend(self.content(s, mask), i, ANSWER, header=UNWEIGHTED_HEADER)]
                if self.options.mode != "pull":
                    messages += [self.comm.Irecv(offer.buffer, i, OFFER)]
                self.serving = self.options.mode == "pair"
            yield messages
            with self.lock:
                for place, part in self.parts.chosen(mask):
                    self.take(self.x.tensor[part], offer.x.tensor[place], s.x.tensor[place])
                if self.options.mode != "pull":
                    self.merged(step, mask)
                self.serving = False
                self.served += 1

    def take(self, x, y, s):
        """The partner's part of the average: y is what was offered, s what was sent in the answer."""
        if self.options.mode == "pair":
            add_difference(x, y, s, 0.5)
        elif self.options.mode == "push":
            x.lerp_(y, 0.5)

    # ---- both

    def merged(self, step: int, mask: np.ndarray):
        self.staleness[self.k - step] += 1
        self.trigger.exchanged(self.x.tensor, self.k, mask)

    def request(self, step: int, mask: np.ndarray) -> np.ndarray:
        """What is asked for: int64, the asking rank, its step, and which parts of the model."""
        return np.array([self.comm.rank, step, *mask], np.int64)

    def write(self, letter: Letter, mask: np.ndarray):
        """Put the present model into a letter."""
        for place, part in self.parts.chosen(mask):
            letter.x.tensor[place].copy_(self.x.tensor[part])
        letter.step, letter.sender = self.k, self.comm.rank

    def content(self, letter: Letter, mask: np.ndarray):
        """What of the letter to send."""
        if mask.all():
            return letter.buffer
        return letter.buffer[: UNWEIGHTED_HEADER + self.parts.size(mask) * self.x.array.itemsize]

    def learning_rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]
