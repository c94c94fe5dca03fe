"""The runs that a table or figure asks for.

A target is a function of ``RunRequests`` and a ``Section``, read from top to bottom like a description of the
experiment. It is called several times: first to learn which trainings need a learning rate, then to learn which runs
are needed, and at last, when all runs are there, for its results. Until then every number it asks for is NaN, every
list of runs empty, and its section is thrown away; so it must not decide by numbers what it asks for.
"""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from torch.nn.modules.batchnorm import _BatchNorm

from experiments.tables import run_spec
from experiments.tables.numbers import (
    best_accuracy,
    best_rate,
    each,
    median_or_nan,
    part_of_a_step,
)
from experiments.tables.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from experiments.tables.scale import Scale
from experiments.tables.sources import Store
from grsgd.config import Config
from grsgd.models.zoo import build
from grsgd.runs.measures import samples_to_target, time_to_target
from grsgd.runs.measures import seconds_per_step as seconds_a_step
from grsgd.runs.run_file import Run

TUNING_SEED = 1000
"""Not one of the seeds that are reported."""
SOURCES = {MEASURED: "measured", SIMULATED: "simulated"}
MIN_DIFFERENCE_PERCENT = {MEASURED: 10.0, SIMULATED: 2.0}
"""Per cent of time from which on one is less than another: most runs that were made twice on the testbed differed by up
to 10 %, steps that were simulated with other seeds by up to 2 %."""


class Scenario(NamedTuple):
    """Slow ranks or links. slow_links: whether every link has the scale's slow rate."""

    name: str
    overrides: tuple[str, ...] = ()
    slow_links: bool = False


EQUAL = Scenario("equal ranks, fast links")
STRAGGLER = Scenario("one rank 4 times slower", ("stragglers.slowdown.1=4.0",))
SLOW_LINKS = Scenario("slow links", slow_links=True)


class MissingRun(RuntimeError):
    """A run that a target needs could not be made."""


class RunRequests:
    """The runs of a scale, for one target at a time. ``more``: overrides of the user, for every training; ``imagenet``:
    their folder with it, for those that train on it.

    A configuration is named ``paper/name``; ``extra`` are overrides that one target makes.
    """

    def __init__(self, scale: Scale, store: Store, more: tuple[str, ...] = (), imagenet: Path | None = None):
        self.scale, self.store, self.more, self.imagenet = scale, store, more, imagenet
        self.emulated = store.hosts.emulated
        """Whether links and processors are what the scale says when the clock is used."""
        self.stage = "tuning"
        self.asked: dict[RunSpec, None] = {}
        """The runs of this stage, in order."""
        self.read: dict[RunSpec, Run] = {}
        self.begin()

    def begin(self):
        """Begin with another target."""
        self.used: dict[RunSpec, None] = {}
        self.compared: dict[tuple, dict[str, float]] = {}
        """What was asked for on the clock and in simulated time, by source."""
        self.tuned: dict[tuple, dict[float, tuple[float, float]]] = {}
        """By configuration and overrides: samples to the target and best accuracy with each learning rate."""

    # ---- asking for runs

    def runs(self, config, n, source, scenario=EQUAL, extra=(), seeds=None, link=None, tuned_with=()) -> list[Run]:
        """Return a run per seed; empty before the last stage. tuned_with: the overrides with which the learning rate is
        tuned. Raises MissingRun."""
        if seeds is None:
            seeds = range(self.scale.clock_seeds if source == MEASURED else self.scale.seeds)
        rate = self.learning_rate(config, tuned_with)
        wanted = (
            self.spec(config, n, source, (*extra, *scenario.overrides), seed, rate, scenario, link) for seed in seeds
        )
        return [run for spec in wanted for run in self.ask(spec)]

    def measure(self, value: Callable[[Run], float], *words, **more) -> list[float]:
        """Return a number of each of ``runs``."""
        return each(value, self.runs(*words, **more))

    def spec(self, config, n, source, extra, seed, rate, scenario=EQUAL, link=None) -> RunSpec:
        settings = (*self.settings(config), *extra, f"optimizer.lr={rate}", f"seed={seed}")
        link = link or Link(self.scale.slow_rate if scenario.slow_links else self.scale.rate)
        options = self.load(config, extra).algorithm_options
        servers = options.servers if getattr(options, "server", None) == "dedicated" else 0
        return RunSpec(config, settings, n + servers, source, link)

    def settings(self, config: str) -> tuple[str, ...]:
        """Return what the scale and the user replace of every training of the folder."""
        replaced = run_spec.overrides_beside(config, self.scale.file) if self.scale.file else ()
        if replaced and self.imagenet:
            replaced += (f"data.dir={json.dumps(str(self.imagenet))}",)
        return (*replaced, *self.scale.overrides, *self.more)

    def load(self, config: str, extra=()) -> Config:
        return RunSpec(config, (*self.settings(config), *extra), 1, SIMULATED, Link("")).load()

    def ask(self, spec: RunSpec) -> list[Run]:
        self.used[spec] = None
        if self.stage != "tuning":
            self.asked[spec] = None
        return [self.found(spec)] if self.stage == "showing" else []

    def found(self, spec: RunSpec) -> Run:
        if not self.is_there(spec):
            raise MissingRun(self.store.path(spec).name)
        return self.read[spec]

    def is_there(self, spec: RunSpec) -> bool:
        if spec not in self.read and (run := self.store.find(spec)) is not None:
            self.read[spec] = run
        return spec in self.read

    # ---- one trajectory for all algorithms that apply the same gradient

    def trajectory(self, config: str) -> str:
        """Return the configuration whose steps a training takes: its own, or the ring all-reduce beside it."""
        shared = self.load(config).traits.exact_gradient
        return f"{config.rpartition('/')[0]}/ring_allreduce" if shared else config

    def trajectory_spec(self, config, n, extra, seed, rate) -> RunSpec:
        """Return the run of a trajectory, in simulated time where that matters.

        Algorithms that apply the mean gradient of the global batch all take the steps of a single rank with a batch n
        times as large, but for the order of samples and the rounding of fixed-point numbers. With batch normalisation
        they share the training of as many ranks: the batch that normalises is a rank's own.
        """
        traits = self.load(config, extra).traits
        if not traits.exact_gradient:
            return self.spec(config, n, UNIT_STEPS if traits.synchronous else SIMULATED, extra, seed, rate)
        kept = [override for override in extra if not override.startswith("algorithm.")]
        leader = self.trajectory(config)
        loaded = self.load(leader, kept)
        if normalises_batches(loaded.model.name):
            return self.spec(leader, n, UNIT_STEPS, kept, seed, rate)
        whole = n * loaded.data.batch_size
        return self.spec(leader, 1, UNIT_STEPS, (*kept, f"data.batch_size={whole}"), seed, rate)

    def curves(self, config, n, extra=(), seeds=None) -> list[Run]:
        """Return a synchronous algorithm's trainings, a run per seed; their times mean nothing."""
        rate = self.learning_rate(config)
        seeds = range(self.scale.seeds) if seeds is None else seeds
        return [run for seed in seeds for run in self.ask(self.trajectory_spec(config, n, extra, seed, rate))]

    def samples(self, config, n, extra=(), seeds=None) -> list[float]:
        """Return samples, of all ranks together, to the target accuracy, by seed; of synchronous algorithms."""
        return each(samples_to_target, self.curves(config, n, extra, seeds))

    # ---- learning rates

    def learning_rate(self, config: str, extra: tuple[str, ...] = ()) -> float:
        """Return the rate of the grid with which the fewest samples lead to the target accuracy, on ``tuning_ranks``
        ranks and in simulated time; if none leads there, the one with the highest accuracy.

        The lowest and the highest rate of the grid are tried only where the best of the others is next to it.
        """
        lowest, *inner, highest = self.scale.learning_rates
        tried = self.trials(config, extra, inner)
        beside = {inner[0]: lowest, inner[-1]: highest}.get(best_rate(tried))
        if tried and beside is not None:
            tried = tried | self.trials(config, extra, [beside])
        return best_rate(tried) if tried else inner[0]

    def trials(self, config: str, extra: tuple[str, ...], rates: list[float]) -> dict[float, tuple[float, float]]:
        """Return samples to the target and best accuracy with each rate; nothing while runs are asked for that are
        missing."""
        leader = self.trajectory(config)
        specs = {
            rate: self.trajectory_spec(leader, self.scale.tuning_ranks, extra, TUNING_SEED, rate) for rate in rates
        }
        if self.stage == "tuning":
            self.asked |= dict.fromkeys(specs.values())
            if not all(map(self.is_there, specs.values())):
                return {}
        self.used |= dict.fromkeys(specs.values())
        runs = {rate: self.found(spec) for rate, spec in specs.items()}
        known = self.tuned.setdefault((leader, extra), {})
        known |= {rate: (samples_to_target(run), best_accuracy(run)) for rate, run in runs.items() if rate not in known}
        return {rate: known[rate] for rate in rates}

    # ---- times

    def seconds_per_step(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> float:
        """n / (steps per second of all ranks), of short runs that only this is measured of; the median."""
        values = each(seconds_a_step, self.short(config, n, source, scenario, extra, steps, link))
        self.compare((config, n, scenario, extra, link, "step"), source, values)
        return median_or_nan(values)

    def step_split(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> dict[str, float]:
        """Return seconds of a step that a rank spends on each of compute, communicate and wait, mean over those that
        train."""
        runs = self.short(config, n, source, scenario, extra, steps, link)
        self.compare((config, n, scenario, extra, link, "step"), source, each(seconds_a_step, runs))
        return {
            part: median_or_nan(each(lambda run, part=part: float(part_of_a_step(run, part).mean()), runs))
            for part in ("compute", "communicate", "wait")
        }

    def short(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> list[Run]:
        """Return runs of a few steps, for their times and bytes: several by the clock, one in simulated time."""
        loaded = self.load(config, extra)
        timed = loaded.traits.depends_on_values
        kind = TIMING_ONLY if source == SIMULATED and not timed else source
        brief = (f"train.steps={steps or self.scale.steps}", "train.snapshots=1", "train.evaluate_replicas=false")
        seeds = None if source == MEASURED else [0]
        return self.runs(config, n, kind, scenario, (*extra, *brief), seeds, link)

    def seconds(self, config, n, source, scenario=EQUAL, extra=(), seeds=None, link=None, steps=None) -> list[float]:
        """Return the seconds to the target accuracy, by seed; NaN where it was not reached.

        Synchronous algorithms: samples to the target / (n b) times seconds per step, because what a step does is the
        same whatever time it takes. Others: the first snapshot at or above the target. Both have the same seeds.
        """
        loaded = self.load(config, extra)
        if seeds is None and source == MEASURED:
            seeds = range(self.scale.clock_seeds)
        if loaded.traits.synchronous:
            step = self.seconds_per_step(config, n, source, scenario, extra, steps, link)
            batch = n * loaded.data.batch_size
            return [samples / batch * step for samples in self.samples(config, n, extra, seeds)]
        values = self.measure(time_to_target, config, n, source, scenario, extra, seeds, link=link)
        self.compare((config, n, scenario, extra, link, "seconds"), source, values)
        return values

    def compare(self, what: tuple, source: str, values: list[float]):
        known = [value for value in values if not math.isnan(value)]
        if known:
            self.compared.setdefault(what, {})[source] = median(known)

    def simulator_errors(self) -> list[float]:
        """Return how far simulated times of this target are from measured ones of the same trainings, as shares of
        those."""
        return [both[SIMULATED] / both[MEASURED] - 1 for both in self.compared.values() if len(both) == 2]


@functools.cache
def normalises_batches(model: str) -> bool:
    return any(isinstance(module, _BatchNorm) for module in build(model, (3, 64, 64), 10).modules())
