"""Base class of all algorithms: an algorithm object has the model of one rank, an optimizer, a communicator, and hooks
that the training loop calls."""

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
"""Class of every registered algorithm, by the algorithm's name. A subclass of `Algorithm` is registered by its
definition ``class X(Algorithm, name="x")``."""


class Options(BaseModel):
    """Options that every algorithm has. Each algorithm adds its own options in a class derived from `Options`.

    ``renamed`` maps old option names to new option names. A new option name may include a section of the configuration:
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
"""Families of algorithms, in the order in which tables list the algorithms."""
SURVIVES_DEATHS = (False, True, "together")
"""Allowed values of the algorithm's trait ``survives_deaths``."""


@dataclass(frozen=True)
class Traits:
    """Properties of an algorithm. Other packages read an algorithm's traits in place of testing for its name."""

    synchronous: bool
    """If ``synchronous`` is True, the number of steps by which a rank may be ahead of other ranks is bounded, and all
    ranks take the same number of steps."""
    family: str = "other"
    """Family of algorithms under which tables list the algorithm: one of `FAMILIES`, or another word."""
    sends_gradients: bool = False
    """Whether ranks send gradients. If ``sends_gradients`` is True, all gradients of a rank must lie in one flat array
    that messages can contain."""
    in_background: bool = False
    """Whether the algorithm sends and receives messages in the background while a gradient is computed."""
    sends_early: bool = False
    """Whether the algorithm sends the gradients of some parameters while the backward pass still computes other
    gradients. If ``sends_early`` is True, the training loop calls ``gradient_ready`` as soon as the gradient of a
    parameter is complete."""
    exact_gradient: bool = False
    """Whether every step applies the exact mean of the gradients that all ranks compute at the same model. An
    experiment trains only one of the algorithms with ``exact_gradient``, because all these algorithms take the same
    steps."""
    equal_models: bool = False
    """Whether all ranks hold the same model after every step, even if the gradients are compressed."""
    depends_on_values: bool = False
    """Whether the algorithm needs the values of the models' parameters to decide when to send messages. If
    ``depends_on_values`` is True, the option ``--timing-only`` is an error, because a timing-only run computes no
    values."""
    supports_own_loop: bool = True
    """Whether the algorithm works with ``distribute()``, which makes a user's own training loop distributed."""
    decides_who_computes: bool = False
    """Whether a rank may compute no gradient, or several gradients, in a step. If ``decides_who_computes`` is True, a
    user's own training loop must ask its optimizer for the data on which this rank computes gradients. The base class
    of the algorithm sets the value of ``decides_who_computes``."""
    tolerates_lost_ranks: bool = False
    """Whether a run goes on with the remaining ranks after a rank has stopped answering."""
    tolerates_silent_ranks: bool = False
    """Whether a step can end without the messages of silent ranks. If ``tolerates_silent_ranks`` is True, the training
    loop makes no decision that needs all ranks before the end of the run."""
    survives_deaths: Literal[False, True, "together"] = False
    """Whether a run goes on when the process of a rank dies, even if no new process takes over the rank. The value
    ``"together"`` is for algorithms whose steps need all ranks: the remaining ranks restart from the average of their
    models, with a new algorithm object for the new number of ranks."""
    one_host: bool = False
    """Whether the algorithm needs all ranks on one host, because the ranks share the host's memory. In simulated time
    the ranks may be on several hosts even if ``one_host`` is True."""
    host_memory: bool = False
    """Whether message buffers must lie in host memory and not in GPU memory, because the ranks of a host share these
    buffers."""
    splits_model: bool = False
    """Whether a rank's optimizer sees only slices of the model. If ``splits_model`` is True, only optimizers that treat
    every element separately are allowed."""
    label: str = ""
    """Name of the run in reports; an empty label becomes the algorithm's name. If an option selects a variant of the
    algorithm, the label ends with the option's value, as in ``parameter_server adsp``."""
    comparison: str = ""
    """Options, as text, that must be equal in two runs before the numbers of bytes that the two runs send are
    compared."""
    only_allreduces: bool = False
    """Whether the algorithm sends messages only in all-reduces (``grsgd.comm.allreduce``), one all-reduce at a time. If
    ``only_allreduces`` is True, a simulation without gradients computes the times of messages by a faster method."""
    trains_bfloat16: bool = False
    """If ``trains_bfloat16`` is True, models may be of bfloat16, because the algorithm computes sums and means in
    float32, with tensors or by all-reduces. NumPy arrays of bfloat16 models have dtype uint16 and contain the bits of
    the bfloat16 numbers."""
    rests_between_steps: bool = False
    """If ``rests_between_steps`` is True, no message is under way between two steps. If ``rests_between_steps`` is
    False, the training loop calls `drain` before each checkpoint, and `begin` after each checkpoint."""


class Algorithm:
    """Base class of all algorithms; an algorithm decides how the ranks combine their models or gradients.

    A hook is a method of the algorithm that the training loop calls. A hook that waits for messages is a schedule (a
    generator that yields each object it waits for). A hook that never waits is a plain method. Hooks write no logs,
    evaluate no models, and read and write no files.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Authors, year and title of the paper that describes the algorithm."""
    Options: ClassVar[type[Options]] = Options
    traits: Traits
    """Traits of the algorithm with default options. The attribute ``traits`` of an algorithm object depends on the
    object's options."""
    remembers: ClassVar[tuple[str, ...] | None] = None
    """Names of the attributes that the algorithm's next steps depend on, in addition to model, optimizer and random
    streams. The attributes named in ``remembers`` are numbers, arrays or tensors, and exist after `start`. Checkpoints
    store the attributes named in ``remembers``. If ``remembers`` is None, the algorithm cannot write checkpoints."""
    k: int = 0
    """Number of steps by which the model x has been trained. The method `step` increments ``k`` only if the algorithm's
    next steps depend on ``k``. If a new process begins with the model of other ranks (trait ``survives_deaths``), the
    caller of `start` sets ``k``."""
    _decides_who_computes: ClassVar[bool] = False
    """Value of the trait ``decides_who_computes`` of all algorithms derived from this base class."""

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
        """Graph whose edges connect the ranks that send messages to each other; by default every rank sends to every
        other rank.

        A new process that takes over the rank of a dead process first asks the rank's neighbours in ``topology`` for a
        model.

        """
        return build("full", self.comm.size)

    @classmethod
    def traits_of(cls, options: Options) -> Traits:
        """Return the traits that the algorithm has with ``options``."""
        return cls.traits

    @classmethod
    def check(cls, options: Options, ranks: int):
        """Raise ValueError if the algorithm with ``options`` cannot run on ``ranks`` ranks. The message of the
        ValueError names the option that does not fit."""

    @classmethod
    def choose_options(cls, options: Options, trial: Trial) -> Generator:
        """Generator, called on all ranks at once before a run, that decides the options whose configured value is
        ``"auto"`` or similar.

        Returns two dictionaries. The first of the two dictionaries has the new values of the changed options, by option
        name. The second of the two dictionaries has the reasons for the changes, as text. A key of the dictionary of
        reasons is the name of the run file's attribute that stores the reason.
        """
        yield from ()
        return {}, {}

    @classmethod
    def option_behind(cls, options: Options, trait: str) -> tuple[str, str]:
        """Return, for an error message, the option that gives the algorithm the trait named ``trait``, and the values
        of the option that would be allowed."""
        return f"name = {cls.name!r}", "device = cpu, all ranks on one host, or another algorithm"

    @classmethod
    def arrays_held(cls, options: Options, ranks: int) -> float:
        """Return the number of arrays of the model's size that one of ``ranks`` ranks holds at most between two steps,
        besides the model and its gradient. Algorithms that do not override `arrays_held` are assumed to hold 6
        arrays."""
        return 6

    @classmethod
    def arrays_in_32_bits(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return two numbers of arrays whose elements have 4 bytes even if the model is of bfloat16. The first returned
        number counts arrays of 4 bytes per element that `arrays_held` includes. The second returned number counts
        arrays of 4 bytes per element that the algorithm holds only for models of bfloat16."""
        return 0, 0

    @classmethod
    def arrays_apart(cls, options: Options, ranks: int) -> tuple[float, float]:
        """Return the numbers of arrays that the algorithm holds in GPU memory and in host memory if the option
        ``outer_state`` is ``"host"``."""
        return 0, cls.arrays_held(options, ranks)

    def start(self):
        """Create the algorithm's attributes that depend on the model at the beginning of the run. The replica holds the
        model at the beginning of the run when `start` is called. `start` may be a generator that yields each object it
        waits for."""

    def begin(self):
        """Begin background activities before the first step, and again after each checkpoint that has ended these
        activities. `begin` may be a generator that yields each object it waits for."""

    def before_backward(self):
        """Prepare the model for the computation of the next gradient. `before_backward` may change the model."""

    def step(self):
        """Update the model with the gradient that this rank has just computed."""
        self.update()

    def drain(self):
        """Generator, called after the last step or before a checkpoint, that receives every message under way and ends
        all background activities."""

    def average(self) -> Generator:
        """Generator, called after `drain`, that makes the models of all ranks equal to the final model."""
        return average_models(self.uncounted_comm, self.replica)

    def snapshot(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's parameters and buffers for a snapshot (a copy that is evaluated or stored), both from the
        same moment.

        The returned tensors are copies if the algorithm changes the model in the background.
        """
        return self.x.tensor, self.replica.buffers.tensor

    @property
    def weight(self) -> float:
        """Weight of this rank's `snapshot` in the average of all ranks' snapshots."""
        return 1.0

    def scale_weight(self, factor: float):
        """Multiply this rank's `weight` by ``factor``. `scale_weight` is called after `restore` if the weights of all
        ranks in a checkpoint do not sum to the number of ranks, because messages with weights were lost. By default
        `scale_weight` does nothing."""

    def state(self) -> dict[str, object]:
        """Return, by name, the attributes of this rank's algorithm that a checkpoint stores in addition to model and
        optimizer."""
        found = {name: getattr(self, name, None) for name in self.remembers or ()}
        return {name: value for name, value in found.items() if value is not None}

    def restore(self, state: dict[str, object]):
        """Set the attributes in ``state``, which the method `state` of an earlier process has returned. `restore` is
        called after `start`."""
        for name, value in state.items():
            set_value(self, name, value)

    def changed(self, rank: int):
        """Record that a new process has taken over ``rank``, or that no process holds ``rank`` any more. ``comm.lost``
        contains ``rank`` if no process holds ``rank`` any more. `changed` may be called by a background activity.

        `changed` is called only if the algorithm's traits have ``survives_deaths=True``. When `changed` is called, the
        neighbours in `topology` no longer include lost ranks.
        """

    @property
    def left_out(self) -> int:
        """Number of steps taken by living ranks that this rank has left out of the model, or that this rank knows to be
        left out. Steps that are left out lower the run's participation (`grsgd.training.participation`)."""
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
    """Base class of algorithms that combine the gradients of all ranks into one gradient before the optimizer's step,
    in any training loop."""

    def gradient_ready(self, parameter: int):
        """Record that the gradient of the trained parameter with the index ``parameter`` is complete in
        ``replica.grads``.

        `gradient_ready` is called if the algorithm's traits have ``sends_early=True`` and the run has several ranks.
        The backward pass calls `gradient_ready` at most once per step and parameter, in an order that may differ
        between ranks. Gradients for which `gradient_ready` is not called are complete when `reduce` begins.
        """

    def reduce(self) -> Generator:
        """Generator that replaces the array ``replica.grads`` by the combined gradient of all ranks. The array
        ``replica.grads`` may hold further values after the gradients. `reduce` combines the further values after the
        gradients in the same way as the gradients."""
        raise NotImplementedError(f"{self.name}: the traits have sends_gradients = True, so reduce() must be defined")

    def step(self):
        yield from self.reduce()
        self.update()
