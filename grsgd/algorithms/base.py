"""Base class of all algorithms: a replica, an optimizer, a communicator, and hooks that the training loop calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from grsgd.algorithms.averaging import average_models
from grsgd.algorithms.before_run import Trial
from grsgd.algorithms.context import RankContext
from grsgd.comm.topologies.topology import Topology, build
from grsgd.lazy import LazyModule
from grsgd.models.replica import Replica
from grsgd.models.values import set_value
from grsgd.outside import PREFIX
from grsgd.seeding import Purpose, generator

torch = LazyModule("torch")

ALGORITHMS: dict[str, type[Algorithm]] = {}
"""Class of every algorithm, by the algorithm's name. A class is registered by its definition ``class X(Algorithm,
name="x")``."""


class Options(BaseModel):
    """Options that every algorithm has. Each algorithm adds its own options in a derived class.

    ``renamed`` maps old option names to new option names. The new name may include a section of the configuration:
    ``{"rho": "data.replication"}``. Using an old option name is an error whose message gives the new option name.
    ``renamed_values`` maps old values of an option to new values: ``{"merge": {"half": "average"}}``. Using an old
    value is an error, too, whose message gives the new value.
    """

    # A run has only one algorithm. With defer_build, pydantic does not build the validators of other algorithms'
    # options.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    renamed: ClassVar[dict[str, str]] = {"rho": "data.replication"}
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {}


FAMILIES = ("all-reduce", "gossip", "local", "server", "coded")
"""Families of algorithms, in the order in which tables of algorithms list these families."""
SURVIVES_DEATHS = (False, True, "together")
"""Allowed values of the algorithm's trait ``survives_deaths``."""


@dataclass(frozen=True)
class Traits:
    """Properties of an algorithm. Other packages read these properties and do not test for an algorithm's name."""

    synchronous: bool
    """Whether the number of steps by which a rank may be ahead of other ranks is bounded. If ``synchronous`` is True,
    all ranks take the same number of steps."""
    family: str = "other"
    """Family of algorithms under which tables list the algorithm: one of `FAMILIES`, or another word."""
    sends_gradients: bool = False
    """Whether ranks send gradients. If ``sends_gradients`` is True, all gradients of a rank must lie in one flat
    array."""
    in_background: bool = False
    """Whether the algorithm sends and receives messages in the background while a gradient is computed."""
    sends_early: bool = False
    """Whether parts of the gradient are sent during the backward pass. If ``sends_early`` is True, the training loop
    calls ``gradient_ready`` when the gradient of a parameter is complete."""
    exact_gradient: bool = False
    """Whether every step applies the mean gradient of all ranks, computed at one common model. The experiments train
    only once for all algorithms with ``exact_gradient``, because all these algorithms take the same steps."""
    equal_models: bool = False
    """Whether all ranks hold the same model after every step, even if gradients are compressed or changed in another
    way."""
    depends_on_values: bool = False
    """Whether the values of the models' parameters decide when messages are sent. If ``depends_on_values`` is True, the
    option ``--timing-only``, which computes no values, is an error."""
    supports_own_loop: bool = True
    """Whether the algorithm works with ``distribute()``, which makes a user's own training loop distributed."""
    decides_who_computes: bool = False
    """Whether some rank computes no gradient, or several gradients, in a step. If ``decides_who_computes`` is True, a
    user's own loop must ask its optimizer which data this rank computes. The value of ``decides_who_computes`` is set
    by the base class of the algorithm."""
    tolerates_lost_ranks: bool = False
    """Whether a run goes on after it has lost a rank."""
    tolerates_silent_ranks: bool = False
    """Whether a step can end without the messages of silent ranks. If ``tolerates_silent_ranks`` is True, the ranks
    make no collective decisions before the run ends."""
    survives_deaths: Literal[False, True, "together"] = False
    """Whether a run goes on when the process of any rank dies, with or without another process in its place. The value
    ``"together"`` is for algorithms whose steps need all ranks: the remaining ranks restart from the average of their
    models, with a new algorithm object for the new number of ranks."""
    one_host: bool = False
    """Whether all ranks must be on one host because the ranks share the host's memory. In simulated time the ranks may
    be on several hosts even if ``one_host`` is True."""
    host_memory: bool = False
    """Whether message buffers must lie in host memory and not in GPU memory, because the ranks of a host share these
    buffers."""
    splits_model: bool = False
    """Whether a rank's optimizer sees only slices of the model. If ``splits_model`` is True, only optimizers that treat
    every element separately are allowed."""
    label: str = ""
    """Name of a run in reports, by default the algorithm's name. If the value of an option changes the algorithm, the
    label ends with this value, as in ``parameter_server adsp``."""
    comparison: str = ""
    """Options, as text, that must be equal in two runs if the numbers of bytes that the two runs send are compared."""
    only_allreduces: bool = False
    """Whether ranks send each other nothing but all-reduces (``grsgd.comm.allreduce``), one at a time. If
    ``only_allreduces`` is True, a simulation without gradients computes its times by a faster method."""
    trains_bfloat16: bool = False
    """Whether models may be of bfloat16: the algorithm computes sums and means in float32, with tensors or by
    all-reduces. NumPy arrays of bfloat16 models have dtype uint16 and contain the bits of the bfloat16 numbers."""
    rests_between_steps: bool = False
    """Whether no message is under way between two steps. If ``rests_between_steps`` is False, `drain` is called before
    each checkpoint, and `begin` after each checkpoint."""


class Algorithm:
    """Base class of the algorithms by which ranks mix their models.

    A hook is a method that the training loop calls. A hook that waits for messages is a schedule (a generator that
    yields each object it waits for). A hook that never waits is a plain method. Hooks do no logging, evaluation or
    input and output.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Authors, year and title of the paper that describes the algorithm."""
    Options: ClassVar[type[Options]] = Options
    traits: Traits
    """Traits of the algorithm with default options. The ``traits`` of an object depend on the object's options."""
    remembers: ClassVar[tuple[str, ...] | None] = None
    """Names of the attributes on which the next steps depend, in addition to model, optimizer and random streams. The
    attributes named in ``remembers`` are numbers, arrays or tensors, and exist after `start`. Checkpoints store the
    attributes named in ``remembers``. If ``remembers`` is None, the algorithm cannot write checkpoints."""
    k: int = 0
    """Number of steps that led to the model x. The method `step` increments ``k`` only if the algorithm's next steps
    depend on ``k``. The caller of `start` sets ``k`` if the process begins with the model of other ranks (trait
    ``survives_deaths``)."""
    _decides_who_computes: ClassVar[bool] = False
    """Value of the trait ``decides_who_computes``."""

    def __init_subclass__(cls, name: str | None, **kwargs):
        """Register the class under ``name``; with ``name=None`` the class is a base class and is not registered."""
        super().__init_subclass__(**kwargs)
        if name is None:
            return
        outside = cls.__module__.startswith(PREFIX)
        if name in ALGORITHMS and not outside:
            raise TypeError(f"two algorithms are called {name!r}: {ALGORITHMS[name]} and {cls}")
        if not hasattr(cls, "traits"):
            raise TypeError(f"algorithm {name!r} has no traits: say traits = Traits(synchronous=...)")
        if cls.traits.survives_deaths not in SURVIVES_DEATHS:
            found, allowed = cls.traits.survives_deaths, ", ".join(map(repr, SURVIVES_DEATHS))
            raise TypeError(f"algorithm {name!r}: survives_deaths={found!r} in its traits; allowed: {allowed}")
        cls.name = name
        has_own_label = "traits" in cls.__dict__ and cls.traits.label
        label = cls.traits.label if has_own_label else name
        cls.traits = replace(cls.traits, label=label, decides_who_computes=cls._decides_who_computes)
        if not outside:
            ALGORITHMS[name] = cls

    def __init__(self, options: Options, replica: Replica, optimizer: torch.optim.Optimizer, context: RankContext):
        """Create the algorithm object of one rank. ``optimizer`` updates the parameters of ``replica``."""
        self.options = options
        self.replica = replica
        self.optimizer = optimizer
        self.comm = context.comm
        self.uncounted_comm = context.uncounted_comm
        self.driver = context.driver
        self.traits = self.traits_of(options)
        self.x = replica.params
        self.rng = generator(Purpose.PARTNERS, context.seed, context.comm.rank)
        """Random number generator of this rank, seeded by (seed, rank), so that the order in which messages arrive does
        not change the random numbers."""
        self.staleness: Counter[int] = Counter()
        """Number of received models or gradients that this rank has merged, by their staleness in steps."""

    @cached_property
    def topology(self) -> Topology:
        """Graph of the ranks that send to each other; by default every rank sends to every other rank.

        A new process that takes over a dead process's rank first asks the rank's neighbours in ``topology`` for a
        model.

        """
        return build("full", self.comm.size)

    @classmethod
    def traits_of(cls, options: Options) -> Traits:
        """Return the traits of the algorithm with ``options``."""
        return cls.traits

    @classmethod
    def check(cls, options: Options, ranks: int):
        """Raise ValueError if the algorithm with ``options`` cannot run on a number of ``ranks`` ranks. The message of
        the error names the option."""

    @classmethod
    def choose_options(cls, options: Options, trial: Trial) -> Generator:
        """Schedule, called on all ranks at once before a run, that decides the options whose configured value is
        ``"auto"`` or similar.

        Returns two dictionaries. The first dictionary has the new values of the changed options, by option name. The
        second dictionary has the reasons for the changes, as text. Each key of the second dictionary is the name of the
        run file's attribute that stores the reason.
        """
        yield from ()
        return {}, {}

    @classmethod
    def option_behind(cls, options: Options, trait: str) -> tuple[str, str]:
        """Return, for an error message, the option that sets ``trait``, and the allowed values of this option."""
        return f"name = {cls.name!r}", "device = cpu, all ranks on one host, or another algorithm"

    @classmethod
    def arrays_held(cls, options: Options, ranks: int) -> float:
        """Return the largest number of arrays of the model's size that one of ``ranks`` ranks holds for the algorithm
        between two steps, besides the model and its gradient. Algorithms that do not override `arrays_held` are assumed
        to hold 6 arrays."""
        return 6

    @classmethod
    def arrays_in_32_bits(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return two numbers of arrays with 4 bytes per element, for models of bfloat16. The first number counts arrays
        that `arrays_held` includes. The second number counts further arrays, which models of other dtypes do not
        need."""
        return 0, 0

    @classmethod
    def arrays_apart(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return the numbers of arrays in GPU memory and in host memory that replace the arrays of `arrays_held` if the
        option ``outer_state`` is ``"host"``."""
        return 0, cls.arrays_held(options, ranks)

    def start(self):
        """Create the algorithm's attributes that depend on the first model of the run. The replica holds the first
        model of the run when `start` is called. `start` may be a generator that yields each object it waits for."""

    def begin(self):
        """Begin background activities before the first step, and again after each checkpoint that has ended these
        activities. `begin` may be a generator that yields each object it waits for."""

    def before_backward(self):
        """Prepare the model before the next gradient is computed. `before_backward` may change the model."""

    def step(self):
        """Update the model with the gradient that this rank has computed in this step."""
        self.update()

    def drain(self):
        """Schedule, called after the last step or before a checkpoint, that receives every message under way and ends
        all background activities."""

    def average(self) -> Generator:
        """Schedule, called after `drain`, that makes all replicas equal to the final model."""
        return average_models(self.uncounted_comm, self.replica)

    def snapshot(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's parameters and buffers that a snapshot contains, all from the same moment.

        The returned tensors are copies if background activities of the algorithm change the original tensors.
        """
        return self.x.tensor, self.replica.buffers.tensor

    @property
    def weight(self) -> float:
        """Weight of this rank's `snapshot` in the average over all ranks."""
        return 1.0

    def scale_weight(self, factor: float):
        """Multiply this rank's `weight` by ``factor``. `scale_weight` is called after `restore` if the weights of all
        ranks in a checkpoint do not sum to the number of ranks, because weights in messages were lost. By default
        `scale_weight` does nothing."""

    def state(self) -> dict[str, object]:
        """Return, by name, the attributes of this rank's algorithm that a checkpoint stores besides model and
        optimizer."""
        found = {name: getattr(self, name, None) for name in self.remembers or ()}
        return {name: value for name, value in found.items() if value is not None}

    def restore(self, state: dict[str, object]):
        """Set the attributes in ``state``, which the method `state` of another process returned. `restore` is called
        after `start`."""
        for name, value in state.items():
            set_value(self, name, value)

    def changed(self, rank: int):
        """Record that another process now holds ``rank``, or that no process holds ``rank`` any more. If no process
        holds ``rank`` any more, ``comm.lost`` contains ``rank``. `changed` is called in the background.

        `changed` is called only if the algorithm's traits have ``survives_deaths=True``. When `changed` is called, the
        property `topology` has no lost ranks as neighbours.
        """

    @property
    def left_out(self) -> int:
        """Number of steps of living ranks that this rank has left out of the model, or knows to be left out. Left-out
        steps lower the run's participation (`grsgd.training.participation`)."""
        return 0

    def warnings(self) -> list[str]:
        """Return the warnings about this rank's training, one line each. `warnings` is called after training."""
        return []

    def extra(self) -> dict[str, tuple[np.ndarray, tuple[str, str]]]:
        """Return the arrays that only this algorithm adds to the run file, by name, each with its unit and
        description."""
        return {}

    def update(self):
        """Update the parameters of this rank's model by one step of this rank's optimizer."""
        self.replica.settle()
        self.optimizer.step()
        self.replica.settle()


class GradientAlgorithm(Algorithm, name=None):
    """Algorithm that combines the gradients of all ranks into one gradient before the optimizer's step, in any training
    loop."""

    def gradient_ready(self, parameter: int):
        """Record that the gradient of trained parameter number ``parameter`` lies in ``replica.grads``.

        `gradient_ready` is called if the algorithm's traits have ``sends_early=True`` and the run has several ranks.
        `gradient_ready` is called in the backward pass, at most once per step and parameter, in an order that may
        differ between ranks. Gradients for which `gradient_ready` is not called are complete when `reduce` begins.
        """

    def reduce(self) -> Generator:
        """Schedule that replaces the array ``replica.grads`` by the combined gradient of all ranks. The array
        ``replica.grads`` may hold further values after the gradients. `reduce` combines these further values in the
        same way as the gradients."""
        raise NotImplementedError(f"{self.name}: the traits have sends_gradients = True, so reduce() must be defined")

    def step(self):
        yield from self.reduce()
        self.update()
