"""GRSGD: Gossip Ring SGD (Zhou, Tu, Ren 2023)."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from grsgd.algorithms.base import Options
from grsgd.algorithms.diloco import outer_update
from grsgd.algorithms.push_sum import PushSum
from grsgd.comm.compression.compressors import RoundingOptions
from grsgd.comm.topologies import topology

OUTER_MOMENTUM = 0.9


class GRSGDOptions(RoundingOptions, Options):
    """Options of GRSGD. All options of GRSGD are inferred, because only the abstract of the GRSGD paper was available
    (docs/reference/algorithms/gossip.md)."""

    renamed_values: ClassVar[dict[str, dict[str, str]]] = {
        "policy": {"succ": "successor", "alt": "alternate", "rand2": "random"},
        "merge": {"sumweight": "push-sum", "half": "average"},
        "inbox_full": {"hold": "wait"},
    }

    topology: str = Field("ring", **topology.OPTION)
    policy: Literal["successor", "alternate", "random"] = Field(
        "random",
        description="neighbour to which a rank pushes its model: the next neighbour by number, all neighbours in "
        "turn, or a random neighbour",
    )
    H: int | None = Field(None, ge=1, description="number of local steps between two pushes; default: data.replication")
    merge: Literal["push-sum", "average"] = Field(
        "push-sum",
        description="push-sum: weighted merge, which keeps the mean of all models; average: x = (x + y)/2, which "
        "does not keep the mean of all models",
    )
    inbox_capacity: int = Field(
        2, ge=1, description="number of models from one neighbour that may wait for the next step"
    )
    inbox_full: Literal["wait", "merge"] = Field(
        "wait",
        description="if the inbox for a neighbour's models is full: wait: the neighbour makes no push; merge: the "
        "two oldest models are merged",
    )
    outer_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of an outer step (as in diloco) before each push; not given: no outer step",
    )
    outer_momentum: float | None = Field(
        None, ge=0, lt=1, description=f"Nesterov momentum of the outer step; {OUTER_MOMENTUM:g} by default"
    )

    @model_validator(mode="after")
    def momentum_of_an_outer_step(self):
        if self.outer_momentum is not None and self.outer_lr is None:
            raise ValueError(f"outer_momentum = {self.outer_momentum:g}: needs outer_lr, or there is no outer step")
        return self


class GRSGD(PushSum, name="grsgd"):
    """Each rank pushes its model to a neighbour on a ring every H steps, by push-sum::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x);  k = k + 1
        if k % H == 0 and the last message to neighbour j has been delivered:
            a = a/2;  send (x, a) to j                  # a random neighbour, or as ``policy`` says

    A push (a message with a model) has M + 8 bytes (M: bytes of the model).

    With ``outer_lr`` a rank takes an outer step before it pushes (not from the paper)::

        d = x_prev - x;  u = outer_momentum u + d
        x = x_prev - outer_lr (d + outer_momentum u);  x_prev = x

    With the option ``outer_lr``, received models are merged into x_prev (the model after the last outer step) as well
    as into x. So d = x_prev - x is the change of x by this rank's own steps, without the changes by merges with other
    ranks' models. A merge scales d by a/(a + b), like the rank's own part of x.
    """

    paper = (
        "Zhou, Tu, Ren 2023, Asynchronous distributed training algorithm based on Gossip (English: Tu, Zhou, Ren 2022, "
        "Computer Communications 195)"
    )
    Options = GRSGDOptions
    remembers = (*PushSum.remembers, "u", "x_prev")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.H = options.H or context.replication
        self.outer_momentum = OUTER_MOMENTUM if options.outer_momentum is None else options.outer_momentum
        self.has_outer_step = options.outer_lr is not None and (options.outer_lr, self.outer_momentum) != (1, 0)
        if self.has_outer_step:
            self.u, self.x_prev = self.x.wide(), self.x.wide()
        self.weighted = self.options.merge == "push-sum"
        self.mailbox = self.make_mailbox(backpressure=self.options.inbox_full == "wait")

    @classmethod
    def arrays_held(cls, options, ranks):
        return super().arrays_held(options, ranks) + (0 if options.outer_lr is None else 2)

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return (0 if options.outer_lr is None else 2), 0

    def start(self):
        if self.has_outer_step:
            self.x_prev.tensor.copy_(self.x.tensor)

    def begin(self):
        self.receive_from(self.mailbox.sources)

    def update(self):
        super().update()
        if self.has_outer_step and (self.k + 1) % self.H == 0:
            self.outer_step()

    def outer_step(self):
        x, x_prev = self.x.tensor, self.x_prev.tensor
        outer_update(x_prev, self.u.tensor, x, self.options.outer_lr, self.outer_momentum)
        x.copy_(x_prev)

    def take_in(self, message):
        if self.has_outer_step:
            self.merge_into(self.x_prev, self.a, message.x, message.weight)
        super().take_in(message)

    def keep(self, left_out):
        if self.has_outer_step:
            self.x_prev.tensor.add_(left_out)
        super().keep(left_out)

    def due(self):
        return self.k % self.H == 0

    def choose(self, neighbours):
        i, n = self.comm.rank, self.comm.size
        # on a ring, the neighbours are the successor and the predecessor
        upwards = sorted(neighbours, key=lambda j: (j - i) % n)
        if self.options.policy == "random":
            return upwards[self.rng.integers(len(upwards))]
        return upwards[self.pushes % len(upwards) if self.options.policy == "alternate" else 0]
