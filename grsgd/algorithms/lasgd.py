"""LASGD (locally asynchronous SGD): all-reduces average the models in the background of local training (Avidor,
Tal-Israel 2022).

A schedule is a generator that yields each object it waits for.
"""

import threading
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.by_allreduce import ByAllreduce
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.comm import tags
from grsgd.comm.allreduce import VARIANT_MEANING, Variant, halving_doubling_allreduce
from grsgd.comm.pollables import Until
from grsgd.models.mixing import add_difference, add_difference_of_buffers, blocks

IDLE_SECONDS = 1.0
"""Number of seconds without a step after which a rank joins a round (an all-reduce of all models) without waiting for
new local steps."""


class LASGDOptions(Options):
    """Options of LASGD. All options of LASGD are inferred, because the method section of the LASGD paper was not
    available (docs/reference/algorithms/local.md)."""

    merge: Literal["delta", "overwrite", "cocod", "anchor"] = Field(
        "delta",
        description="way in which the average of a round (an all-reduce of the models) is merged into a rank's "
        "model, which has taken further steps during the round",
    )
    Hmin: int = Field(
        1, ge=1, description="fewest local steps between the starts of two rounds; with merge cocod: the exact number"
    )
    Hmax: int | None = Field(
        None, ge=1, description="number of local steps since the start of a round after which training waits"
    )
    warmup: int = Field(0, ge=0, description="number of first steps after each of which training waits for the average")
    resync: int = Field(
        1000,
        ge=0,
        description="training waits for every resync-th round, which makes all models equal; 0: training waits for "
        "no round",
    )
    alpha: float = Field(
        0.6,
        ge=0,
        le=1,
        description="with merge anchor: share of the distance to the anchor by which a model is pulled to the anchor "
        "at each snapshot",
    )
    beta: float = Field(0.7, ge=0, lt=1, description="with merge anchor: slow momentum of the anchor")
    variant: Variant = Field("ring", description=VARIANT_MEANING)
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)

    @model_validator(mode="after")
    def fits(self):
        if self.Hmax is not None and self.Hmax < self.Hmin:
            raise ValueError(f"Hmax = {self.Hmax}: must not be less than Hmin = {self.Hmin}")
        return self


class LASGD(ByAllreduce, name="lasgd"):
    """All-reduces average the models in the background of local training. Two activities of each rank share the model
    x, and h counts the rank's local steps::

        trainer:       x = x - eta grad(x);  h = h + 1                          # never waits

        communicator:  wait until h - h_last >= Hmin
                       s = x;  h_last = h
                       a = allreduce(s) / n                                     # while the trainer goes on
                       x = x + (a - s)

    The model x becomes the average of all models plus the changes by the steps that this rank has taken during the
    all-reduce. Only gradients change the mean of all models. An average that arrives late only delays the moment at
    which the ranks' models come closer together. With merge = ``overwrite``, the average replaces x, and the steps
    taken during the all-reduce are lost. With merge = ``cocod`` (CoCoD-SGD), a rank merges the average exactly Hmin
    steps after its snapshot s, and waits if the average has not arrived. With merge = ``anchor`` (Overlap-Local-SGD), x
    is pulled towards an anchor z at each snapshot, and z is moved to the average with slow momentum.

    An all-reduce ends when the last rank has taken part. A slow rank takes part in an all-reduce in the background of
    its own training. The training of other ranks never waits for a slow rank; only the all-reduces wait for the slow
    rank. Each of n ranks sends 2(n-1)/(n Hmin) M per step (M: bytes of the model), and fewer bytes if all-reduces take
    longer than Hmin steps.
    """

    paper = (
        "Avidor, Tal-Israel 2022, Locally asynchronous SGD; cocod: Shen et al. 2019, Faster distributed deep net "
        "training; anchor: Wang, Liang, Joshi 2020, Overlap Local-SGD"
    )
    traits = Traits(
        synchronous=False, family="local", in_background=True, survives_deaths="together", trains_bfloat16=True
    )
    Options = LASGDOptions
    remembers = ("h", "h_last", "rounds", "z", "v")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.h = self.h_last = 0
        self.rounds = 0
        self.ended = self.at_rest = self.in_flight = False
        self.between_steps = True
        self.since = 0.0
        """Time at which this rank last ended a step or an all-reduce, in seconds of the driver's clock."""
        self.lock = threading.Lock()
        self.is_claimed = False
        """Whether the background task is copying or changing the model, so that a step must wait before it updates the
        model."""
        self.memory = outer_memory(self.x, options.outer_state)
        self.room = self.memory.room(self.x)
        self.buffers = [self.replica.buffers] if self.replica.buffers.array.size else []
        self.s, self.a = ([self.memory.like(self.x), *(flat.like() for flat in self.buffers)] for _ in range(2))
        """Snapshots of this rank's parameters and buffers in the current round, and the averages of these snapshots
        over all ranks."""
        if self.options.merge == "anchor":
            self.z, self.v = (self.memory.wide(self.x).tensor for _ in range(2))

    @classmethod
    def arrays_held(cls, options, ranks):
        return 4 if options.merge == "anchor" else 2

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return (2 if options.merge == "anchor" else 0), 0

    @classmethod
    def arrays_apart(cls, options, ranks):
        return 0, 1 + cls.arrays_held(options, ranks)

    @property
    def left_out(self):
        """Number of this rank's steps whose changes were overwritten by averages."""
        is_overwritten = self.options.merge == "overwrite"
        return sum(flight * count for flight, count in self.staleness.items()) if is_overwritten else 0

    # ---- methods that the training loop runs

    def start(self):
        if self.options.merge == "anchor":
            self.z.copy_(self.x.tensor)
        self.a[0] = yield from self.in_place(self.a[0])

    def begin(self):
        self.ended = self.at_rest = False
        self.since = self.driver.clock()
        if self.comm.size > 1:
            self.averaging = self.driver.start(self.communicate())

    def before_backward(self):
        with self.lock:
            self.between_steps = False
            has_joined = self.in_flight and self.is_blocking()
        if has_joined:  # an all-reduce began while this rank took no steps
            yield Until(lambda: not self.in_flight, "the average of all models", in_background=True)

    def step(self):
        while not self.updates():
            yield Until(lambda: not self.is_claimed, "the end of a copy of the model", in_background=True)
        if self.comm.size > 1 and self.must_wait():
            self.at_rest = True
            yield Until(lambda: not self.must_wait(), "the average of all models", in_background=True)
            self.at_rest = False
        self.since = self.driver.clock()
        self.between_steps = True

    def updates(self) -> bool:
        """Take the optimizer's step unless the background task is copying or changing the model. Return whether the
        step was taken."""
        with self.lock:
            if not self.is_claimed:
                self.update()
                self.h += 1
            return not self.is_claimed

    def must_wait(self) -> bool:
        """Return whether training must wait for the background task `communicate`."""
        options = self.options
        with self.lock:
            ahead = self.h - self.h_last
            if self.is_blocking():
                return self.in_flight or ahead >= self.due()
            limit = options.Hmin if options.merge == "cocod" else options.Hmax
            return limit is not None and ahead >= limit

    def is_blocking(self) -> bool:
        """Return whether training stops in the current round until the average has replaced the model. `is_blocking`
        returns the same value on all ranks."""
        warmup, resync = self.options.warmup, self.options.resync
        return self.rounds < warmup or (resync > 0 and (self.rounds + 1) % resync == 0)

    def is_idle(self) -> bool:
        """Return whether this rank has taken no step for `IDLE_SECONDS`, for example because it waits in a barrier.

        If a rank waits in a barrier, an all-reduce must not wait for the rank's next step, because other ranks may
        reach the barrier only after the all-reduce.
        """
        return self.between_steps and self.driver.clock() - self.since > IDLE_SECONDS

    def snapshot(self):
        with self.lock:
            return self.x.tensor.clone(), self.replica.buffers.tensor.clone()

    def drain(self):
        self.ended = self.at_rest = True
        if self.comm.size > 1:
            yield self.averaging

    # ---- methods of the communicator, the background task

    def communicate(self):
        """Generator, run in the background, that averages all models in rounds until all ranks have ended their
        training. A rank that has ended its training still joins the rounds of the other ranks."""
        while True:
            yield Until(self.is_due, "local steps to average")
            if (yield from self.all_ended()):
                return
            if self.is_blocking():
                yield Until(lambda: self.at_rest or self.is_idle(), "the end of this rank's step")
            yield from self.begin_round()
            a, *of_buffers = self.a
            yield from self.allreduce(a.array)
            for flat in of_buffers:
                yield from self.replica.average_buffers(self.allreduce, flat)
            if self.options.merge == "cocod" and not self.is_blocking():
                yield Until(self.is_due, "the step at which to merge")
            yield from self.merge()

    def is_due(self) -> bool:
        return self.h - self.h_last >= self.due() or self.ended or self.is_idle()

    def due(self) -> int:
        return 1 if self.rounds < self.options.warmup else self.options.Hmin

    def all_ended(self):
        """Generator that returns whether every rank has ended its training. `all_ended` returns the same value on all
        ranks."""
        ended = np.array([float(self.ended)])
        yield from halving_doubling_allreduce(self.uncounted_comm, ended, tags.LASGD_ROUND)
        return ended[0] == self.comm.size

    def begin_round(self):
        """Generator that begins a round: it copies this rank's model for the average over all ranks."""
        with self.lock:
            self.is_claimed = self.in_flight = True
        held = yield from self.memory.take(self.x, self.room)
        with self.lock:
            if self.options.merge == "anchor" and not self.is_blocking():
                held.tensor.lerp_(self.z.to(held.tensor.dtype), self.options.alpha)
                self.memory.put(held, self.x)
            for flats in zip([held, *self.buffers], self.s, self.a, strict=True):
                for x, s, a in blocks(*(flat.tensor for flat in flats)):
                    s.copy_(x)
                    a.copy_(s)  # not x: a forward pass may change buffers between the two copies
            self.h_last = self.h
            self.is_claimed = False

    def merge(self):
        """Generator that merges the average of the current round into this rank's model."""
        with self.lock:
            self.is_claimed = True
        flight, merge = self.h - self.h_last, self.options.merge
        anchored = merge == "anchor"
        replaces = merge == "overwrite" or (flight == 0 and (not anchored or self.is_blocking()))
        adds = not (replaces or anchored)
        held = (yield from self.memory.take(self.x, self.room)) if adds else self.a[0]
        with self.lock:
            if anchored:
                self.v.mul_(self.options.beta).add_(self.a[0].tensor - self.z)
                self.z.add_(self.v)
            if adds:
                add_difference(held.tensor, self.a[0].tensor, self.s[0].tensor)
            if adds or replaces:
                self.memory.put(held, self.x)
            for flat, s, a in zip(self.buffers, self.s[1:], self.a[1:], strict=True):
                if merge == "overwrite" and flight > 0:
                    flat.tensor.copy_(a.tensor)
                else:  # also if flight is 0: the forward pass of a step under way may have changed the buffers
                    add_difference_of_buffers(flat.tensor, a.tensor, s.tensor)
            self.staleness[flight] += 1
            self.rounds += 1
            self.since = self.driver.clock()
            self.in_flight = self.is_claimed = False
