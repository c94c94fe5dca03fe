"""The contract of an algorithm: a replica, an optimizer, a communicator, and hooks that the training loop calls."""

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
    """Options of every algorithm; each algorithm adds its own.

    ``renamed`` maps old option names to new ones, which may lie in another section: ``{"rho": "data.replication"}``.
    Using an old name is an error that names the new one. ``renamed_values`` does the same for values of an option:
    ``{"merge": {"half": "average"}}``.
    """

    # A run has one algorithm: those of the others need no validators.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    renamed: ClassVar[dict[str, str]] = {"rho": "data.replication"}
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {}


FAMILIES = ("all-reduce", "gossip", "local", "server", "coded")
"""Kinds of algorithms, as lists of them are ordered."""
SURVIVES_DEATHS = (False, True, "together")
"""Values of the trait ``survives_deaths``."""


@dataclass(frozen=True)
class Traits:
    """Properties of an algorithm that other packages read, so that none of them tests for an algorithm's name."""

    synchronous: bool
    """Whether no rank can run ahead of another without bound; then all take the same number of steps."""
    family: str = "other"
    """One of `FAMILIES`, or another word: under what lists of algorithms show it."""
    sends_gradients: bool = False
    """Whether gradients must lie in one flat array."""
    in_background: bool = False
    """Whether schedules run in the background while a gradient is computed."""
    sends_early: bool = False
    """Whether parts of the gradient are sent while the backward pass goes on; then ``gradient_ready`` is called."""
    exact_gradient: bool = False
    """Whether every step applies the mean gradient of all ranks, computed at one common model; then tables use one
    training for all such algorithms."""
    equal_models: bool = False
    """Whether all models are equal after every step, whatever is made of the gradients."""
    depends_on_values: bool = False
    """Whether the models' values decide when messages are sent; then ``--timing-only`` is refused."""
    supports_own_loop: bool = True
    """Whether the algorithm works with ``distribute()``: one gradient per rank and step, on any data."""
    tolerates_lost_ranks: bool = False
    """Whether a run goes on without ranks that are lost."""
    tolerates_silent_ranks: bool = False
    """Whether steps end without ranks that are silent, so that not all ranks can agree on anything before the end."""
    survives_deaths: Literal[False, True, "together"] = False
    """Whether a run goes on when the process of any rank dies, with another process in its place or with none.
    ``"together"``, where a step needs all ranks: those that are left begin again from the average of their models, with
    the algorithm made anew for as many ranks."""
    one_host: bool = False
    """Whether all ranks must be on one host, whose memory they share; not in simulated time."""
    host_memory: bool = False
    """Whether what is sent must lie in the memory of hosts, not of GPUs, for ranks of a host share it."""
    splits_model: bool = False
    """Whether the optimizer of a rank sees slices of the model, so that it must treat every element by itself."""
    label: str = ""
    """Name of a run in reports; by default the algorithm's. With an option that makes it another algorithm:
    ``parameter_server adsp``."""
    comparison: str = ""
    """The options that two runs must share for their bytes to be compared."""
    only_allreduces: bool = False
    """Whether ranks send each other nothing but all-reduces (``grsgd.comm.allreduce``), one by one; simulated
    time without gradients is faster then."""
    rests_between_steps: bool = False
    """Whether no message is under way between two steps. Where it is, checkpoints `drain` and `begin` again."""


class Algorithm:
    """How the ranks mix their models.

    A hook that waits is a generator (a schedule); one that never waits is a plain method. Hooks do no logging,
    evaluation or input and output.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Authors, year and title of the source."""
    Options: ClassVar[type[Options]] = Options
    traits: Traits
    """The traits with default options; an object has those of its own options."""
    remembers: ClassVar[tuple[str, ...] | None] = None
    """The attributes on which, beside model, optimizer and random streams, the next steps depend: numbers, arrays and
    tensors that are there when the algorithm has started. Checkpoints keep them; None where they cannot be taken."""
    k: int = 0
    """How many steps have led to the model x, as far as the next steps depend on it: `step` counts them. Set from
    outside, after `start`, where a process begins with the model of other ranks: see ``survives_deaths``."""
    _decides_who_computes: ClassVar[bool] = False
    """Whether ranks compute something else than a gradient each, which no loop of a user does."""

    def __init_subclass__(cls, name: str | None, **kwargs):
        """Register the class; ``name`` is None for one that is only there to be derived from."""
        super().__init_subclass__(**kwargs)
        if name is None:
            return
        outside = cls.__module__.startswith(PREFIX)
        if name in ALGORITHMS and not outside:
            raise TypeError(f"two algorithms are called {name!r}: {ALGORITHMS[name]} and {cls}")
        if not hasattr(cls, "traits"):
            raise TypeError(f"algorithm {name!r} has no traits: say traits = Traits(synchronous=...)")
        if cls._decides_who_computes and cls.traits.supports_own_loop:
            raise TypeError(f"algorithm {name!r} decides who computes what: say supports_own_loop=False in its traits")
        if cls.traits.survives_deaths not in SURVIVES_DEATHS:
            found, allowed = cls.traits.survives_deaths, ", ".join(map(repr, SURVIVES_DEATHS))
            raise TypeError(f"algorithm {name!r}: survives_deaths={found!r} in its traits; allowed: {allowed}")
        cls.name = name
        has_own_label = "traits" in cls.__dict__ and cls.traits.label
        cls.traits = cls.traits if has_own_label else replace(cls.traits, label=name)
        if not outside:
            ALGORITHMS[name] = cls

    def __init__(self, options: Options, replica: Replica, optimizer: torch.optim.Optimizer, context: RankContext):
        """Make one rank's part; ``optimizer`` updates the parameters of ``replica``."""
        self.options = options
        self.replica = replica
        self.optimizer = optimizer
        self.comm = context.comm
        self.uncounted_comm = context.uncounted_comm
        self.driver = context.driver
        self.traits = self.traits_of(options)
        self.x = replica.params
        self.rng = generator(Purpose.PARTNERS, context.seed, context.comm.rank)
        """A random stream of this rank's own, keyed by (seed, rank), never by the order of arrivals."""
        self.staleness: Counter[int] = Counter()
        """How many models or gradients were merged that were this many steps old."""

    @cached_property
    def topology(self) -> Topology:
        """The graph of the ranks that send to each other; all to all, unless an algorithm says less.

        A process that takes the rank of one that has died asks that rank's neighbours for a model first.
        """
        return build("full", self.comm.size)

    @classmethod
    def traits_of(cls, options: Options) -> Traits:
        """Return the traits of the algorithm with these options."""
        return cls.traits

    @classmethod
    def check(cls, options: Options, ranks: int):
        """Raise ValueError, naming the option, if these options cannot work with this many ranks."""

    @classmethod
    def choose_options(cls, options: Options, trial: Trial) -> Generator:
        """Schedule, on all ranks at once, before a run: decide the options that are left open, such as ``"auto"``.

        Returns the options that change, by name, and why, by attribute of the run file.
        """
        yield from ()
        return {}, {}

    @classmethod
    def option_behind(cls, options: Options, trait: str) -> tuple[str, str]:
        """Return, for an error, the option that sets a trait of the algorithm, and what else is allowed."""
        return f"name = {cls.name!r}", "device = cpu, all ranks on one host, or another algorithm"

    def start(self):
        """Make what depends on the first model, which is there now; may be a schedule."""

    def begin(self):
        """Begin activities in the background: before the first step, and again after each rest before a
        checkpoint; may be a schedule."""

    def before_backward(self):
        """Prepare the model for the next gradient, which is about to be computed; may change the model."""

    def step(self):
        """Update the model; the gradient of this step is there."""
        self.update()

    def drain(self):
        """Schedule, after the last step, or before a checkpoint: take in every message under way and end all
        activities."""

    def average(self) -> Generator:
        """Schedule, after `drain`: make all replicas equal to the final model."""
        return average_models(self.uncounted_comm, self.replica)

    def snapshot(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters and buffers that a snapshot keeps, as they are at one moment.

        Copies, where activities in the background change them.
        """
        return self.x.tensor, self.replica.buffers.tensor

    @property
    def weight(self) -> float:
        """Weight of this rank's `snapshot` in the average over all ranks."""
        return 1.0

    def state(self) -> dict[str, object]:
        """Return, by name, what a checkpoint keeps of this rank between two steps, beside model and optimizer."""
        found = {name: getattr(self, name, None) for name in self.remembers or ()}
        return {name: value for name, value in found.items() if value is not None}

    def restore(self, state: dict[str, object]):
        """Go on where another process has ended, after `start`; ``state``: arrays and numbers of `state`."""
        for name, value in state.items():
            set_value(self, name, value)

    def changed(self, rank: int):
        """Note that another process holds ``rank`` than before, or none (``comm.lost``); called in the background.

        For an algorithm with ``survives_deaths=True`` in its traits. ``topology`` has the neighbours without a rank.
        """

    def warnings(self) -> list[str]:
        """Return what users must know of this rank's training when it is over, a line each."""
        return []

    def extra(self) -> dict[str, tuple[np.ndarray, tuple[str, str]]]:
        """Return what the run file keeps of this algorithm alone: by name an array, and its unit and description."""
        return {}

    def update(self):
        """Take the local optimizer's step."""
        self.optimizer.step()


class GradientAlgorithm(Algorithm, name=None):
    """An algorithm that turns the gradients of all ranks into one before the update, in any loop."""

    def gradient_ready(self, parameter: int):
        """Note that the gradient of trained parameter number ``parameter`` lies in ``replica.grads``.

        With ``sends_early`` in the traits, on several ranks: called within the backward pass, at most once a step for
        each parameter, in any order, which may differ between ranks. What was not told of is there in `reduce`.
        """

    def reduce(self) -> Generator:
        """Schedule: turn the gradients in ``replica.grads``, and what lies behind them, into those of all ranks."""
        raise NotImplementedError(f"{self.name} sends gradients and has no reduce()")

    def step(self):
        yield from self.reduce()
        self.update()
