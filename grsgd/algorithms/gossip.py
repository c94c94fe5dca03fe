"""Gossiping SGD (Jin et al. 2016), and adaptive gossiping SGD (Ho, Wu, Liu 2018).

A schedule is a generator that yields each object it waits for.
"""

import threading
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from grsgd.algorithms.adaptive import AdaptiveOptions
from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.on_topology import OnTopology
from grsgd.algorithms.triggered import FINISHED, TriggeredAlgorithm
from grsgd.comm import tags
from grsgd.comm.communicator import ANY_RANK, LostRank, until_over
from grsgd.comm.compression.compressors import RoundingOptions, make_compressor
from grsgd.comm.mailbox import UNWEIGHTED_HEADER, ModelMessage, SendBuffers, message_arrays
from grsgd.comm.pollables import Until
from grsgd.comm.topologies import topology
from grsgd.models.mixing import add_difference


class GossipOptions(AdaptiveOptions, RoundingOptions, Options):
    topology: str = Field("full", **topology.OPTION)
    period: int = Field(
        1, ge=1, description="number of steps between two exchanges that a rank begins, unless adaptive"
    )
    mode: Literal["pair", "push", "pull"] = Field(
        "pair",
        description="which rank of an exchange averages the two models: pair: both ranks, which keeps the mean of "
        "all models; push: the rank that is sent a model; pull: the rank that asks for a model",
    )

    @model_validator(mode="after")
    def rounds_whole_models(self):
        if self.compresses and self.adaptive:
            raise ValueError(f'compression = "{self.compression}": whole models are rounded, so adaptive must be false')
        return self


class Gossip(TriggeredAlgorithm, OnTopology, name="gossip"):
    """Each rank averages its model with the model of a random neighbour, every ``period`` steps or after the model has
    changed enough::

        x = x - eta grad(x);  k = k + 1
        if due:                         # k % period == 0; adaptive: |x - r|/|r| >= threshold, see adaptive.py
            pick a random neighbour j
            pair:  send x to j, receive x_j;  x = (x + x_j)/2 on both ranks
            pull:               receive x_j;  x = (x + x_j)/2
            push:  send x to j;             x_j = (x + x_j)/2
            r = x                                               # on the ranks that have averaged

    Every rank answers requests in the background, one after the other, with its model s at the time of the answer. In
    mode pair, the asking rank sends its model y back, and the answering rank, which has sent its model s, sets ``x = x
    + (y - s)/2``. If the answering rank's model x is still the sent model s, the new x is the average of s and y. If
    the answering rank has taken steps after it sent its model s, its model x keeps the changes by these steps. So
    exchanges in mode pair keep the sum of all models. No rank refuses a request, and ranks never wait for each other in
    a circle. A rank that has sent a request waits until its partner has answered the requests that arrived earlier. To
    answer a request, a rank waits only for messages under way, and never for the end of a step.

    With ``compression`` the models in messages are rounded. Exchanges in mode pair still keep the sum of all models,
    because both ranks set ``x = x + (x_j - s)/2`` with the rounded models x_j (received) and s (sent).

    Jin et al. use the modes push and pull. The mode pair and all details of adaptive gossip are inferred
    (docs/reference/algorithms/gossip.md). In the modes pair and pull a rank waits until its partner has answered. In
    mode push a rank does not wait, and leaves out a push while its last push to the same neighbour has not been
    delivered. In mode pair each of the two ranks sends M (the bytes of the model) per exchange. In the modes push and
    pull only one of the two ranks sends M (the bytes of the model) per exchange.
    """

    paper = (
        "Jin, Yuan, Iandola, Keutzer 2016, How to scale distributed deep learning?; adaptive: Ho, Wu, Liu 2018, "
        "Adaptive communication for distributed deep learning on commodity GPU cluster"
    )
    traits = Traits(synchronous=False, family="gossip", in_background=True, survives_deaths=True, trains_bfloat16=True)
    Options = GossipOptions
    remembers = ("k", "begun", "served", "times_due", "messages")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.compressor = make_compressor(options, self.x.tensor) if options.compresses else None
        self.seed = context.seed
        self.messages = 0
        """Number of models that this rank has written into messages. ``messages`` is part of the seed for the random
        rounding of each model."""
        self.begun = self.served = 0
        """`begun`: number of exchanges that this rank began. `served`: number of exchanges that another rank began with
        this rank."""
        self.times_due = 0
        """Number of exchanges that this rank should have begun, including exchanges that were left out."""
        self.serving = False
        self.lock = threading.Lock()
        """Lock that the training loop and the background task hold while they change the model x."""
        self.offering: list = []
        """Pollables that are true when the message ``mine`` has been sent; used in mode pair."""
        self.finished: set[int] = set()
        """Ranks that have told this rank that they have ended their training."""
        self.has_ended = self.is_closed = False
        """`has_ended`: whether this rank has told its neighbours that it has ended its training. `is_closed`: whether
        this rank's model may no longer change."""
        self.pushing = SendBuffers(self.x, compressor=self.compressor)
        """Buffers for the models that this rank is sending; used in mode push."""

    @classmethod
    def traits_of(cls, options):
        label = f"{cls.name} {options.compression}" if options.compresses else cls.traits.label
        return replace(super().traits_of(options), comparison=f"mode = {options.mode}", label=label)

    @classmethod
    def arrays_held(cls, options, ranks):
        messages = 4 + (cls.most_neighbours(options, ranks) if options.mode == "push" else 0)
        return messages * message_arrays(options) + options.adaptive

    def start(self):
        if self.comm.size > 1:
            self.make_trigger()
            self.mine, self.theirs = self.new_message(), self.new_message()

    def begin(self):
        self.finished.clear()
        self.has_ended = self.is_closed = False
        if self.comm.size > 1:
            self.server = self.driver.start(self.serve())

    # ---- methods that the training loop runs

    def step(self):
        with self.lock:
            self.update()
            self.k += 1
            if self.comm.size == 1:
                return
            eta = self.learning_rate
            mask = self.trigger.due(self.x.tensor, self.k, eta)
            if not mask.any():
                return
            neighbours = self.topology.out_neighbours(self.comm.rank, self.times_due, without=self.comm.lost)
            self.times_due += 1
            if not neighbours:
                return
            j = neighbours[self.rng.integers(len(neighbours))]
            if self.options.mode == "push" and not self.pushing.ready(j):
                return
            self.trigger.begun(self.x.tensor, self.k, eta, mask)
        if self.options.mode == "push":
            self.push(j, mask)
        else:
            yield from self.ask(j, mask)

    def ask(self, j: int, mask: np.ndarray):
        """Generator that asks rank ``j`` to exchange the model's slices in ``mask``, in mode pair or pull."""
        served = self.served  # `served` is read before `serving`, because the exchange may end between the two reads
        if self.serving:
            # The exchange under way replaces half of this rank's model. A second exchange at the same moment would
            # replace more than half.
            what = "the end of an exchange that another rank has begun"
            yield Until(lambda: self.served > served, what, in_background=True)
        yield from until_over(self.offering)
        request = self.request(self.comm.rank, self.k, mask=mask)
        try:
            yield self.send_request(request, j), self.comm.Irecv(self.theirs.buffer, j, tags.GOSSIP_ANSWER)
        except LostRank:  # rank `j` has died, so this step has no exchange
            if not self.comm.survives_deaths:
                raise
            return
        with self.lock:
            if self.options.mode == "pair":
                self.write(self.mine, mask)
                self.offering = [
                    self.comm.Isend(self.content(self.mine, mask), j, tags.GOSSIP_OFFER, header=UNWEIGHTED_HEADER)
                ]
            self.theirs.open()
            for packed, part in self.slices.selected(mask):
                x, y = self.x.tensor[part], self.theirs.x.tensor[packed]
                if self.compressor is not None and self.options.mode == "pair":
                    add_difference(x, y, self.mine.x.tensor[packed], 0.5)
                else:
                    x.lerp_(y, 0.5)
            self.merged(self.theirs.step, mask)
            self.begun += 1

    def push(self, j: int, mask: np.ndarray):
        request, message = self.request(self.comm.rank, self.k, mask=mask), self.pushing.take_buffer()
        with self.lock:
            self.write(message, mask)
            self.trigger.exchanged(self.x.tensor, self.k, mask)
        asked = self.send_request(request, j)
        # The send is synchronous, because MPI would buffer any number of small messages that are sent by Isend.
        offered = self.comm.Issend(self.content(message, mask), j, tags.GOSSIP_OFFER, header=UNWEIGHTED_HEADER)
        self.pushing.keep_until(Until(lambda: asked.Test() and offered.Test(), str(offered)), j, message)
        self.begun += 1

    def snapshot(self):
        with self.lock:
            return self.x.tensor.clone(), self.replica.buffers.tensor.clone()

    def drain(self):
        """Generator that answers requests after this rank's own training, until all neighbours of this rank have ended
        their training."""
        if self.comm.size > 1:
            yield from until_over(self.offering)
            yield from self.pushing.until_delivered()
            self.last_request = self.request(self.comm.rank, FINISHED)
            self.has_ended = True
            neighbours = self.topology.out_neighbours(self.comm.rank, without=self.comm.lost)
            yield from until_over([self.send_request(self.last_request, j) for j in neighbours])
            # If processes may die, `serve` goes on, for a new process that takes over a dead process's rank.
            can_die = self.comm.survives_deaths
            yield Until(self.all_have_finished, "neighbours that still train") if can_die else self.server
            with self.lock:
                self.is_closed = True

    def all_have_finished(self) -> bool:
        """Return whether all ranks that may send requests to this rank have ended their training."""
        lost = self.comm.lost
        return set(self.topology.in_neighbours(self.comm.rank, without=lost)) <= self.finished

    def changed(self, rank):
        self.finished.discard(rank)
        if self.has_ended and rank not in self.comm.lost:
            self.send_request(self.last_request, rank)

    # ---- methods of the background task

    def serve(self):
        """Generator, run in the background, that answers other ranks' requests and receives their models until all
        ranks that may send requests have ended their training."""
        request = self.request(0, 0)
        s, offer = self.new_message(), self.new_message()
        while self.comm.survives_deaths or not self.all_have_finished():
            yield self.comm.Irecv(request, ANY_RANK, tags.EXCHANGE_REQUEST)
            i, step, mask = int(request[0]), int(request[1]), self.mask_of(request)
            if step == FINISHED:
                self.finished.add(i)
                continue
            messages = []
            with self.lock:
                if self.options.mode != "push":
                    self.write(s, mask)
                    messages += [
                        self.comm.Isend(self.content(s, mask), i, tags.GOSSIP_ANSWER, header=UNWEIGHTED_HEADER)
                    ]
                if self.options.mode != "pull":
                    messages += [self.comm.Irecv(offer.buffer, i, tags.GOSSIP_OFFER)]
                self.serving = self.options.mode == "pair"
            try:
                yield messages
                is_whole = True
            except LostRank:  # the asking rank has died, so this rank's model stays unchanged
                if not self.comm.survives_deaths:
                    raise
                is_whole = False
            with self.lock:
                if is_whole and not self.is_closed:
                    if self.options.mode != "pull":
                        offer.open()
                    for packed, part in self.slices.selected(mask):
                        self.take(self.x.tensor[part], offer.x.tensor[packed], s.x.tensor[packed])
                    if self.options.mode != "pull":
                        self.merged(step, mask)
                self.serving = False
                self.served += 1

    def take(self, x, y, s):
        """Merge the received model ``y`` into this rank's model ``x``, on the rank that has answered a request. ``s``
        is the model that this rank has sent in its answer."""
        if self.options.mode == "pair":
            add_difference(x, y, s, 0.5)
        elif self.options.mode == "push":
            x.lerp_(y, 0.5)

    # ---- methods of the trainer and of the background task

    def merged(self, step: int, mask: np.ndarray):
        self.staleness[self.k - step] += 1
        self.trigger.exchanged(self.x.tensor, self.k, mask)

    def write(self, message: ModelMessage, mask: np.ndarray):
        """Copy the slices of this rank's model that ``mask`` selects, and this rank's number of steps, into
        ``message``."""
        self.slices.pack(mask, self.x.tensor, message.x.tensor)
        message.step, message.sender = self.k, self.comm.rank
        message.seal((self.seed, self.comm.rank, self.messages))
        self.messages += 1

    def new_message(self) -> ModelMessage:
        return ModelMessage(self.x, self.compressor)

    def content(self, message: ModelMessage, mask: np.ndarray):
        """Return the part of ``message`` that is sent: the header, and the slices of the model that ``mask``
        selects."""
        if mask.all():
            return message.buffer
        return message.buffer[: UNWEIGHTED_HEADER + self.slices.size(mask) * self.x.array.itemsize]
