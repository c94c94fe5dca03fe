"""What every algorithm is: a replica, an optimizer, a communicator, and a few hooks that the training loop calls."""

from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.replica import Flat, Replica

ALGORITHMS: dict[str, type["Algorithm"]] = {}
"""Every algorithm by name. A class registers itself by ``class X(Algorithm, name="x")``."""


class Options(BaseModel):
    """Options of every algorithm; each algorithm adds its own."""

    # A run has one algorithm: those of the others need no validators.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    rho: int = Field(1, ge=1, description="data redundancy: shard k lies on ranks k .. k + rho - 1")


class Algorithm:
    """How the ranks mix their models.

    A hook that waits is a generator (a schedule); one that never waits is a plain method. Hooks do no logging,
    evaluation or input and output.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Authors, year and title of the source."""
    synchronous: ClassVar[bool]
    """Whether no rank can run ahead of another without bound; then all take the same number of steps."""
    sends_gradients: ClassVar[bool] = False
    """Whether gradients must lie in one flat array."""
    shared_batch: ClassVar[bool] = False
    """Whether the ranks compute `blocks` of one common batch, instead of each a batch of its own."""
    counts_steps: ClassVar[bool] = False
    """Whether the algorithm knows how far the run is: `steps`."""
    for_any_loop: ClassVar[bool] = True
    """Whether each rank may compute one gradient a step of whatever it likes; else only `grsgd train` will do."""
    in_background: ClassVar[bool] = False
    """Whether schedules run in the background while a gradient is computed."""
    Options: ClassVar[type[Options]] = Options

    def __init_subclass__(cls, name: str | None, **kwargs):
        """Register the class; ``name`` is None for one that is only there to be derived from."""
        super().__init_subclass__(**kwargs)
        if name is None:
            return
        if name in ALGORITHMS:
            raise TypeError(f"two algorithms are called {name!r}: {ALGORITHMS[name]} and {cls}")
        cls.name = name
        ALGORITHMS[name] = cls

    def __init__(
        self,
        options: Options,
        replica: Replica,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        aside: Communicator,
        driver: Driver,
        seed: int = 0,
    ):
        """``comm`` carries the training; ``aside`` what is no part of it: the first broadcast and the last average."""
        self.options = options
        self.replica = replica
        self.optimizer = optimizer
        self.comm = comm
        self.aside = aside
        self.driver = driver
        self.seed = seed
        self.x = replica.params
        self.staleness: Counter[int] = Counter()
        """How many models or gradients were merged that were this many steps old."""
        self.update_seconds = 0.0
        self.trains = True
        """Whether this rank trains; else it helps those that do (`accompany`)."""
        self.lock = nullcontext()
        """Held by whoever changes the model, where the background does."""
        self.lost: frozenset[int] = frozenset()
        """After training, ranks that do not answer any more and were left behind."""
        self.before_update = lambda: None
        """Called by those that count steps before every update of the model: sets the learning rate."""

    @classmethod
    def workers(cls, options: Options, ranks: int) -> int:
        """How many of the ranks train: the first ones."""
        return ranks

    @classmethod
    def check(cls, options: Options, ranks: int):
        """Raise ValueError, naming the option, if these options cannot work with this many ranks."""
        if options.rho > ranks:
            raise ValueError(f"rho = {options.rho} with {ranks} ranks; allowed are 1 to {ranks}")

    @classmethod
    def needs_content(cls, options: Options) -> bool:
        """Whether the models' values decide when messages are sent, so that no run can do without them."""
        return False

    @classmethod
    def copies(cls, options: Options, ranks: int) -> int:
        """About how many arrays of the model's size a rank holds: parameters, gradients, momenta, messages."""
        return 10

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """What this rank computes of a common batch of so many samples: (number, begin, end) of each block."""
        raise NotImplementedError(f"{self.name} has shared_batch and no blocks()")

    def computed(self, block: int):
        """Called when the gradient of a block of the common batch lies in the replica: the sum over the block's
        samples, divided by the number of samples in the batch. The next block's overwrites it."""

    def start(self):
        """Begin activities in the background, once, before the first step."""

    def before_backward(self):
        """Called before each gradient is computed; may change the model."""

    def step(self):
        """Called when the gradient of this step is there: update the model."""
        self.update()

    def reduce(self):
        """Schedule, of an algorithm that sends gradients and runs in any loop: turn the gradients in ``replica.grads``,
        and what lies behind them, into those of all ranks. Its `step` is this and `update`."""
        raise NotImplementedError(f"{self.name} sends gradients and has no reduce()")

    @property
    def steps(self) -> int:
        """Gradients of all ranks that are in the model, as far as this rank knows."""
        raise NotImplementedError(f"{self.name} has counts_steps and no steps")

    def catch_up(self):
        """Schedule, before it is decided whether there is another step: brings `steps` up to date."""
        yield from ()

    @property
    def evicted(self) -> bool:
        """Whether the others go on without this rank."""
        return False

    def accompany(self):
        """Schedule, over and over on a rank that does not train: returns whether all others have ended."""
        raise NotImplementedError(f"{self.name} has ranks that do not train and no accompany()")

    def model(self) -> Flat:
        """The parameters that a snapshot keeps."""
        return self.x

    @property
    def weight(self) -> float:
        """How much `model` counts in the average of all ranks' at this moment."""
        return 1.0

    def publish(self, comm: Communicator):
        """Schedule, on all ranks at once: turn what snapshots have kept into what is to be evaluated."""
        yield from ()

    def drain(self):
        """Schedule, after the last step: take in every message under way and end all activities."""

    def average(self):
        """Schedule, after `drain`: make all replicas equal to the final model."""
        yield from self.mean(self.x)
        yield from self.mean_of_buffers()

    def weighted_average(self, a: float):
        """Schedule, after `drain`: make all replicas equal to ``sum a x / n``.

        Raises RuntimeError if the weights of all ranks do not sum to n.
        """
        n = self.comm.size
        if n > 1:
            total = np.array([a])
            yield from halving_doubling_allreduce(self.aside, total)
            if abs(total[0] - n) > 1e-6 * n:
                raise RuntimeError(f"the weights sum to {total[0]} instead of {n}: a message was lost")
        yield from self.mean(self.x, a)
        yield from self.mean_of_buffers()

    def warnings(self) -> list[str]:
        """What users must know of this rank's training when it is over, a line each."""
        return []

    def update(self):
        """The local optimizer's step."""
        begin = self.driver.clock()
        self.optimizer.step()
        self.update_seconds += self.driver.clock() - begin

    def mean(self, flat: Flat, weight: float = 1.0):
        """Schedule: the mean of ``weight`` times the array over all ranks, in place, outside the counted traffic.

        The array stays what it is if the run is stopped meanwhile.
        """
        if self.comm.size > 1:
            average = flat.like()
            torch.mul(flat.tensor, weight, out=average.tensor)
            yield from halving_doubling_allreduce(self.aside, average.array, scale=1 / self.comm.size)
            flat.tensor.copy_(average.tensor)

    def mean_of_buffers(self):
        """Schedule: the same of the replica's buffers."""
        if self.comm.size > 1:
            average = partial(halving_doubling_allreduce, self.aside, scale=1 / self.comm.size)
            yield from self.replica.average_buffers(average)

    def random(self) -> np.random.Generator:
        """A random stream of this rank's own, keyed by (seed, rank), never by the order of arrivals."""
        return np.random.default_rng((self.seed, self.comm.rank))
