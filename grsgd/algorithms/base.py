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
"""Every algorithm by name. A class registers itself by ``class X(Algorithm, name="x")``."""


class Options(BaseModel):
    """Options that every algorithm has; each algorithm adds its own options.

    ``renamed`` maps old option names to new option names. A new option may be in another section: ``{"rho":
    "data.replication"}``. Using an old name is an error whose message gives the new name. ``renamed_values`` does the
    same for values of an option: ``{"merge": {"half": "average"}}``.
    """

    # A run has one algorithm, so the validators of the other algorithms' options need not be built.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    renamed: ClassVar[dict[str, str]] = {"rho": "data.replication"}
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {}


FAMILIES = ("all-reduce", "gossip", "local", "server", "coded")
"""Families of algorithms, in the order in which tables list them."""
SURVIVES_DEATHS = (False, True, "together")
"""Values of the trait ``survives_deaths``."""


@dataclass(frozen=True)
class Traits:
    """Properties of an algorithm, which other packages read instead of testing for an algorithm's name."""

    synchronous: bool
    """Whether the number of steps by which a rank may lead other ranks is bounded. If so, all ranks take the same
    number of steps."""
    family: str = "other"
    """Family under which tables list the algorithm: one of `FAMILIES`, or another word."""
    sends_gradients: bool = False
    """Whether ranks send gradients, which must then lie in one flat array."""
    in_background: bool = False
    """Whether schedules run in the background while a gradient is computed."""
    sends_early: bool = False
    """Whether parts of the gradient are sent during the backward pass. If so, the training loop calls
    ``gradient_ready``."""
    exact_gradient: bool = False
    """Whether every step applies the mean gradient of all ranks, computed at one common model. The experiments train
    only once for all algorithms with this trait, because all of them take the same steps."""
    equal_models: bool = False
    """Whether all ranks hold the same model after every step, even if gradients are compressed or changed otherwise."""
    depends_on_values: bool = False
    """Whether the models' values decide when messages are sent. If so, the option ``--timing-only``, which computes no
    values, is refused."""
    supports_own_loop: bool = True
    """Whether the algorithm works with ``distribute()``."""
    decides_who_computes: bool = False
    """Whether some rank computes something other than one gradient per step. A user's own loop must then ask its
    optimizer which data this rank computes. The value follows from the base class of the algorithm."""
    tolerates_lost_ranks: bool = False
    """Whether a run goes on after it has lost a rank."""
    tolerates_silent_ranks: bool = False
    """Whether a step can end without the messages of silent ranks. If so, no collective decision of all ranks is made
    before the run ends."""
    survives_deaths: Literal[False, True, "together"] = False
    """Whether a run goes on when the process of any rank dies, with or without another process in its place. The value
    ``"together"`` is for algorithms whose steps need all ranks: the remaining ranks restart from the average of their
    models, with a new algorithm object for the new number of ranks."""
    one_host: bool = False
    """Whether all ranks must be on one host because they share the host's memory. In simulated time the ranks may be on
    several hosts all the same."""
    host_memory: bool = False
    """Whether message buffers must lie in host memory and not in GPU memory, because the ranks of a host share them."""
    splits_model: bool = False
    """Whether a rank's optimizer sees only slices of the model. If so, only optimizers that treat every element
    separately are allowed."""
    label: str = ""
    """Name of a run in reports, by default the algorithm's name. The value of an option that changes the algorithm is
    appended, as in ``parameter_server adsp``."""
    comparison: str = ""
    """The options, as text, that must be equal in two runs before the numbers of bytes that these runs send can be
    compared."""
    only_allreduces: bool = False
    """Whether ranks send each other nothing but all-reduces (``grsgd.comm.allreduce``), one at a time. If so, a
    simulation without gradients computes its times by a faster method."""
    trains_bfloat16: bool = False
    """Whether models may be of bfloat16: the algorithm computes sums and means in float32, with tensors or by
    all-reduces. The arrays of these models have the bits of the numbers, uint16."""
    rests_between_steps: bool = False
    """Whether no message is under way between two steps. If False, `drain` is called before each checkpoint, and
    `begin` after it."""


class Algorithm:
    """Base class of the algorithms by which ranks mix their models.

    A hook that waits is a schedule (a generator that yields each object it waits for); a hook that never waits is a
    plain method. Hooks do no logging, evaluation or input and output.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Authors, year and title of the paper that describes the algorithm."""
    Options: ClassVar[type[Options]] = Options
    traits: Traits
    """Traits of the algorithm with default options. The ``traits`` of an object depend on the object's options."""
    remembers: ClassVar[tuple[str, ...] | None] = None
    """Names of the attributes on which the next steps depend, in addition to model, optimizer and random streams. These
    attributes are numbers, arrays or tensors, and exist after `start`. Checkpoints keep these attributes. None means
    that no checkpoint is possible."""
    k: int = 0
    """Number of steps that led to the model x. The method `step` counts these steps if the next steps depend on their
    number. The caller of `start` sets ``k`` if the process begins with the model of other ranks: see
    ``survives_deaths``."""
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
        """Create the algorithm of one rank; ``optimizer`` updates the parameters of ``replica``."""
        self.options = options
        self.replica = replica
        self.optimizer = optimizer
        self.comm = context.comm
        self.uncounted_comm = context.uncounted_comm
        self.driver = context.driver
        self.traits = self.traits_of(options)
        self.x = replica.params
        self.rng = generator(Purpose.PARTNERS, context.seed, context.comm.rank)
        """Random stream of this rank, keyed by (seed, rank), so that no order of arrivals changes it."""
        self.staleness: Counter[int] = Counter()
        """Number of merged models or gradients by their staleness, in steps."""

    @cached_property
    def topology(self) -> Topology:
        """Graph of the ranks that send to each other; by default every rank sends to every other rank.

        If a new process takes over a dead process's rank, it first asks the neighbours of that rank for a model.

        """
        return build("full", self.comm.size)

    @classmethod
    def traits_of(cls, options: Options) -> Traits:
        """Return the traits of the algorithm with ``options``."""
        return cls.traits

    @classmethod
    def check(cls, options: Options, ranks: int):
        """Raise ValueError if ``options`` cannot work with this number of ``ranks``. The message names the option."""

    @classmethod
    def choose_options(cls, options: Options, trial: Trial) -> Generator:
        """Schedule, called on all ranks at once before a run, that decides the options that are still open because they
        have a value such as ``"auto"``.

        Returns two dictionaries. The first has the changed options by name. The second has the reasons for the changes;
        each key is the name of the attribute of the run file that keeps the reason.
        """
        yield from ()
        return {}, {}

    @classmethod
    def option_behind(cls, options: Options, trait: str) -> tuple[str, str]:
        """Return, for an error message, the option that sets ``trait``, and the values that are allowed instead."""
        return f"name = {cls.name!r}", "device = cpu, all ranks on one host, or another algorithm"

    @classmethod
    def arrays_held(cls, options: Options, ranks: int) -> float:
        """Return the largest number of arrays of the model's size that one of ``ranks`` ranks holds for the algorithm
        between two steps, besides the model and its gradient. Algorithms without this method are assumed to hold 6."""
        return 6

    @classmethod
    def arrays_in_32_bits(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return two numbers of arrays with 4 bytes per element, for models of bfloat16: the number among the arrays of
        `arrays_held`, and the number of further arrays, which models of other dtypes do not need."""
        return 0, 0

    @classmethod
    def arrays_apart(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return the numbers of arrays in GPU memory and in host memory that replace the arrays of `arrays_held` if the
        option ``outer_state`` is ``"host"``."""
        return 0, cls.arrays_held(options, ranks)

    def start(self):
        """Create the state that depends on the first model. The replica holds the first model when `start` is called.
        This hook may be a generator that yields each object it waits for."""

    def begin(self):
        """Begin background activities before the first step, and again after each rest for a checkpoint. This hook may
        be a generator that yields each object it waits for."""

    def before_backward(self):
        """Prepare the model before the next gradient is computed. This hook may change the model."""

    def step(self):
        """Update the model with the gradient of this step, which has been computed."""
        self.update()

    def drain(self):
        """Schedule, called after the last step or before a checkpoint, that receives every message under way and ends
        all background activities."""

    def average(self) -> Generator:
        """Schedule, called after `drain`, that makes all replicas equal to the final model."""
        return average_models(self.uncounted_comm, self.replica)

    def snapshot(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters and buffers that a snapshot keeps, all from the same moment.

        The tensors are copies if background activities change the originals.
        """
        return self.x.tensor, self.replica.buffers.tensor

    @property
    def weight(self) -> float:
        """Weight of this rank's `snapshot` in the average over all ranks."""
        return 1.0

    def scale_weight(self, factor: float):
        """Multiply this rank's `weight` by ``factor``. This hook is called after `restore` if the weights of all ranks
        in a checkpoint do not sum to the number of ranks, because weights in messages were lost. Does nothing by
        default."""

    def state(self) -> dict[str, object]:
        """Return, by name, the state of this rank that a checkpoint keeps between two steps, besides model and
        optimizer."""
        found = {name: getattr(self, name, None) for name in self.remembers or ()}
        return {name: value for name, value in found.items() if value is not None}

    def restore(self, state: dict[str, object]):
        """Set the attributes in ``state``, which the method `state` of another process returned. This hook is called
        after `start`."""
        for name, value in state.items():
            set_value(self, name, value)

    def changed(self, rank: int):
        """Record that another process now holds ``rank``, or that no process holds ``rank`` any more. In the second
        case ``comm.lost`` contains ``rank``. This hook is called in the background.

        This hook is called only if the traits have ``survives_deaths=True``. The property `topology` then has no lost
        ranks as neighbours.
        """

    @property
    def left_out(self) -> int:
        """Number of steps of living ranks that this rank has left out of the model, or knows to be left out; they lower
        the run's participation (`grsgd.training.participation`)."""
        return 0

    def warnings(self) -> list[str]:
        """Return the warnings about this rank's training, one line each. This hook is called after training."""
        return []

    def extra(self) -> dict[str, tuple[np.ndarray, tuple[str, str]]]:
        """Return the arrays that only this algorithm adds to the run file, by name, each with its unit and
        description."""
        return {}

    def update(self):
        """Take a step of the local optimizer."""
        self.replica.settle()
        self.optimizer.step()
        self.replica.settle()


class GradientAlgorithm(Algorithm, name=None):
    """Algorithm that combines the gradients of all ranks into one gradient before the update, in any loop."""

    def gradient_ready(self, parameter: int):
        """Record that the gradient of trained parameter number ``parameter`` lies in ``replica.grads``.

        This hook is called if the traits have ``sends_early`` and the run has several ranks. Calls come within the
        backward pass, at most once per step and parameter, in an order that may differ between ranks. All other
        gradients are complete when `reduce` begins.
        """

    def reduce(self) -> Generator:
        """Schedule that replaces the array ``replica.grads`` by its combination over all ranks. The array may hold
        further values after the gradients. These values are combined in the same way as the gradients."""
        raise NotImplementedError(f"{self.name}: the traits have sends_gradients = True, so reduce() must be defined")

    def step(self):
        yield from self.reduce()
        self.update()
