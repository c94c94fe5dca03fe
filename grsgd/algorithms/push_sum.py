"""Push-sum in which no rank waits for another rank, as the base class of the algorithms GRSGD and GoSGD."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from grsgd.algorithms.averaging import average_weighted_models
from grsgd.algorithms.base import Traits
from grsgd.algorithms.on_topology import OnTopology
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.compression.compressors import make_compressor
from grsgd.comm.mailbox import Mailbox, ModelMessage, message_arrays
from grsgd.comm.pollables import Until
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")

MIN_WEIGHT = 1e-200
"""Smallest push-sum weight with which a rank pushes its model. Each push halves the push-sum weight of the rank that
pushes. Without `MIN_WEIGHT`, the push-sum weight of a rank that pushes often and receives nothing would become zero."""


class PushSum(OnTopology, name=None):
    """Each rank trains without ever waiting, and after some of its steps pushes its weighted model to a neighbour::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x);  k = k + 1
        if due() and the last message to j = choose(neighbours) has been delivered:
            a = a/2;  send (x, a) to j

    At any moment the weights a of all n ranks and all messages sum to n. Messages may be late, and some ranks may send
    more than others, but only gradients change ``sum a x``. After all messages have arrived, the final model is ``sum a
    x / n``, the weighted mean of the models x of n ranks.

    When a process dies, its push-sum weight is lost, and so is the weight in its messages that have not arrived. A rank
    whose message to the dead process has not arrived adds the weight in the message to its own weight. A new process
    that takes over the dead process's rank begins with a neighbour's model and weight 1. At the end of the run the
    weights are scaled to sum to the number of remaining ranks, so the result is the mean of the remaining ranks'
    models.

    With ``compression`` a message contains y, the rounded x, and the sender adds the rounding error to its own model::

        a = a/2;  send (y, a) to j;  x = x + (x - y)

    The addition of x - y, the rounding error, keeps ``sum a x`` unchanged.

    A subclass of `PushSum` defines when a push is `due`, which neighbour to `choose`, and how the mailbox is made.
    """

    traits = Traits(
        synchronous=False, family="gossip", in_background=True, survives_deaths=True, trains_bfloat16=True
    )
    remembers = ("a", "k", "pushes")
    weighted = True
    """Whether received models are merged by push-sum weight. If ``weighted`` is False, merges are plain averages, which
    change the mean of all models."""

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.seed = context.seed
        self.a = 1.0
        self.pushes = 0
        """Number of pushes that this rank should have made, including pushes that were left out."""

    @classmethod
    def traits_of(cls, options):
        traits = super().traits_of(options)
        return replace(traits, label=f"{cls.name} {options.compression}") if options.compresses else traits

    @classmethod
    def arrays_held(cls, options, ranks):
        most, streams = cls.most_neighbours(options, ranks), cls.streams(options, ranks)
        return (most + streams * (options.inbox_capacity + 1)) * message_arrays(options)

    @classmethod
    def streams(cls, options, ranks: int) -> int:
        """Return the largest number of background tasks by which one of ``ranks`` ranks receives messages."""
        return cls.most_neighbours(options, ranks)

    def make_mailbox(self, backpressure: bool) -> Mailbox:
        """Return the mailbox for models to and from all neighbours of this rank; see `Mailbox` for ``backpressure``."""
        receivers, sources = self.topology.out_neighbours(self.comm.rank), self.topology.in_neighbours(self.comm.rank)
        return Mailbox(
            self.comm,
            self.x,
            receivers,
            sources,
            self.options.inbox_capacity,
            self.merge_oldest,
            self.take_back,
            backpressure=backpressure,
            compressor=make_compressor(self.options, self.x.tensor) if self.options.compresses else None,
            seed=self.seed,
        )

    def due(self) -> bool:
        """Return whether this rank must push its model after the current step."""
        raise NotImplementedError(f"{self.name}: algorithms with push-sum must define due()")

    def choose(self, neighbours: list[int]) -> int:
        """Return the rank among ``neighbours`` to which this rank pushes its model."""
        raise NotImplementedError(f"{self.name}: algorithms with push-sum must define choose()")

    def receive_from(self, sources: Collection[int]):
        """Start background tasks that receive models, one task per rank in ``sources``. ``sources`` may be `ANY_RANK`
        alone, for one task that receives models from all ranks."""
        self.mailbox.open()
        self.receives_from_any = ANY_RANK in sources
        self.receiving = [self.driver.start(self.mailbox.receive_loop(source)) for source in sources]

    def before_backward(self):
        for message in self.mailbox.pop_received():
            self.merge(message)

    def step(self):
        self.update()
        self.k += 1
        if self.due():
            neighbours = self.topology.out_neighbours(self.comm.rank, self.pushes, without=self.comm.lost)
            if neighbours:
                self.push(self.choose(neighbours))
            self.pushes += 1

    def push(self, j: int):
        """Send this rank's model and half of its push-sum weight to rank ``j``, unless the last message to rank ``j``
        is still under way."""
        if self.mailbox.ready(j) and self.a > MIN_WEIGHT:
            if self.weighted:
                self.a /= 2
            message = self.mailbox.send(j, self.x, self.a, self.k)
            if self.options.compresses and self.weighted:
                self.keep(self.x.tensor - message.x.tensor)

    def keep(self, left_out: torch.Tensor):
        """Add ``left_out``, the rounding error of a sent model, to this rank's model."""
        self.x.tensor.add_(left_out)

    def merge(self, message: ModelMessage):
        self.take_in(message)
        self.staleness[self.k - message.step] += 1

    def take_in(self, message: ModelMessage):
        self.a = self.merge_into(self.x, self.a, message.x, message.weight)

    def take_back(self, message: ModelMessage):
        """Add the push-sum weight in ``message``, which was sent to a rank that has died, to this rank's weight. With
        compression, the rounded model in ``message`` is merged into this rank's model as well."""
        if self.weighted and self.options.compresses:
            self.take_in(message)
        elif self.weighted:
            self.a += message.weight

    def changed(self, rank):
        i, lost = self.comm.rank, self.comm.lost
        receivers, sources = (of(i, without=lost) for of in (self.topology.out_neighbours, self.topology.in_neighbours))
        # Other ranks may have noticed earlier that no process held `rank`. Such ranks have sent messages to this rank
        # in place of `rank`.
        meanwhile = self.topology.in_neighbours(i, without=[*lost, rank])
        new = self.mailbox.changed(rank, receivers, sources, meanwhile)
        if not self.receives_from_any:
            for source in new:
                self.driver.start(self.mailbox.receive_loop(source))

    def merge_oldest(self, older: ModelMessage, newer: ModelMessage):
        """Merge ``older``, the oldest message of a full inbox, into the message after it, ``newer``."""
        newer.weight = self.merge_into(newer.x, newer.weight, older.x, older.weight)

    def merge_into(self, x: Flat, a: float, y: Flat, b: float) -> float:
        """Set ``x`` to the mean of ``x`` and ``y``, weighted by the push-sum weights ``a`` and ``b``. Return the
        push-sum weight of the mean."""
        if not self.weighted:
            x.tensor.lerp_(y.tensor.to(x.tensor.dtype), 0.5)
            return a
        x.tensor.lerp_(y.tensor.to(x.tensor.dtype), b / (a + b))
        return a + b

    def drain(self):
        yield from self.mailbox.close()
        can_die = self.comm.survives_deaths  # if processes can die, a rank may get new neighbours
        yield Until(self.mailbox.has_ended, "the last messages of all neighbours") if can_die else self.receiving
        for message in self.mailbox.pop_received():
            self.merge(message)

    @property
    def weight(self):
        return self.a

    def scale_weight(self, factor):
        self.a *= factor if self.weighted else 1.0

    def average(self):
        yield from average_weighted_models(self.uncounted_comm, self.replica, self.a)
        self.a = 1.0
