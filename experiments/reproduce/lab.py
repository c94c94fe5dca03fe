"""What a target asks for runs, and what it writes its results on.

A target is a function of a `Lab` and a `Page`, read from top to bottom like a description of the experiment. It is
called several times: first to learn which trainings need a learning rate, then to learn which runs are needed, and at
last, when all runs are there, for its results. Until then every number it asks for is NaN, every list of runs empty,
and its page is thrown away; so it must not decide by numbers what it asks for.
"""

import functools
import json
import math
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from experiments.reproduce import cell as cells
from experiments.reproduce.cell import CLOCK, SIMULATED, STEPS, TIMES, Cell, Link
from experiments.reproduce.draw import Panel, draw
from experiments.reproduce.outcome import FAILS, HOLDS, PARTLY, UNDECIDED, Figure, Finding, Table
from experiments.reproduce.scale import Scale
from experiments.reproduce.sources import Store
from grsgd.algorithms import ALGORITHMS
from grsgd.config import ENDS, Config
from grsgd.models import build
from grsgd.report import median_and_range
from grsgd.report import seconds_per_step as seconds_a_step
from grsgd.results import Run

SAME_GRADIENT = ("ring_allreduce", "ssgd", "cssgd")
"""Algorithms that apply the mean gradient of the global batch: all of them take the steps of a single rank with a batch
n times as large, but for the order of samples and the rounding of fixed-point numbers. With batch normalisation they
share the training of as many ranks: the batch that normalises is a rank's own."""
TUNING_SEED = 1000
"""Not one of the seeds that are reported."""
SOURCES = {CLOCK: "measured", SIMULATED: "simulated"}
A_DIFFERENCE = {CLOCK: 10.0, SIMULATED: 2.0}
"""Per cent of time from which on one is less than another: most runs that were made twice on the testbed differed by up
to 10 %, steps that were simulated with other seeds by up to 2 %."""


class Scenario(NamedTuple):
    """What is wrong with the ranks or links. slow_links: whether every link has the scale's slow rate."""

    name: str
    overrides: tuple[str, ...] = ()
    slow_links: bool = False


EQUAL = Scenario("equal ranks, fast links")
STRAGGLER = Scenario("one rank 4 times slower", ("stragglers.slowdown.1=4.0",))
SLOW_LINKS = Scenario("slow links", slow_links=True)


class MissingRun(RuntimeError):
    """A run that a target needs could not be made."""


class Lab:
    """The runs of a scale, for one target at a time. ``more``: overrides of the user, for every training; ``imagenet``:
    their folder with it, for those that train on it.

    A configuration is named ``paper/name``; ``extra`` are overrides that one target makes.
    """

    def __init__(self, scale: Scale, store: Store, more: tuple[str, ...] = (), imagenet: Path | None = None):
        self.scale, self.store, self.more, self.imagenet = scale, store, more, imagenet
        self.emulated = store.on.emulated
        """Whether links and processors are what the scale says when the clock is used."""
        self.stage = "tuning"
        self.asked: dict[Cell, None] = {}
        """Cells of this stage, in order."""
        self.read: dict[Cell, Run] = {}
        self.begin()

    def begin(self):
        """A target."""
        self.used: dict[Cell, None] = {}
        self.compared: dict[tuple, dict[str, float]] = {}
        """What was asked for on the clock and in simulated time, by source."""
        self.tuned: dict[tuple, dict[float, tuple[float, float]]] = {}
        """By configuration and overrides: samples to the target and best accuracy with each learning rate."""

    # ---- asking for runs

    def runs(self, config, n, source, scenario=EQUAL, extra=(), seeds=None, link=None, tuned_with=()) -> list[Run]:
        """A run a seed; empty before the last stage. tuned_with: the overrides with which the learning rate is tuned.
        Raises MissingRun."""
        if seeds is None:
            seeds = range(self.scale.clock_seeds if source == CLOCK else self.scale.seeds)
        rate = self.learning_rate(config, tuned_with)
        wanted = (
            self.cell(config, n, source, (*extra, *scenario.overrides), seed, rate, scenario, link) for seed in seeds
        )
        return [run for cell in wanted for run in self.ask(cell)]

    def measure(self, value: Callable[[Run], float], *words, **more) -> list[float]:
        """A number of each of `runs`."""
        return each(value, self.runs(*words, **more))

    def cell(self, config, n, source, extra, seed, rate, scenario=EQUAL, link=None) -> Cell:
        settings = (*self.settings(config), *extra, f"optimizer.lr={rate}", f"seed={seed}")
        link = link or Link(self.scale.slow_rate if scenario.slow_links else self.scale.rate)
        options = self.load(config, extra).algorithm_options
        servers = options.servers if getattr(options, "server", None) == "dedicated" else 0
        return Cell(config, settings, n + servers, source, link)

    def settings(self, config: str) -> tuple[str, ...]:
        """What the scale and the user replace of every training of the folder."""
        replaced = cells.overrides_beside(config, self.scale.file) if self.scale.file else ()
        if replaced and self.imagenet:
            replaced += (f"data.dir={json.dumps(str(self.imagenet))}",)
        return (*replaced, *self.scale.overrides, *self.more)

    def load(self, config: str, extra=()) -> Config:
        return Cell(config, (*self.settings(config), *extra), 1, SIMULATED, Link("")).load()

    def ask(self, cell: Cell) -> list[Run]:
        self.used[cell] = None
        if self.stage != "tuning":
            self.asked[cell] = None
        return [self.found(cell)] if self.stage == "showing" else []

    def found(self, cell: Cell) -> Run:
        if not self.is_there(cell):
            raise MissingRun(self.store.path(cell).name)
        return self.read[cell]

    def is_there(self, cell: Cell) -> bool:
        if cell not in self.read and (run := self.store.find(cell)) is not None:
            self.read[cell] = run
        return cell in self.read

    # ---- one trajectory for all algorithms that apply the same gradient

    def trajectory(self, config: str) -> str:
        """The configuration whose steps a training takes: its own, or the ring all-reduce beside it."""
        shared = self.load(config).algorithm.name in SAME_GRADIENT
        return f"{config.rpartition('/')[0]}/ring_allreduce" if shared else config

    def trajectory_cell(self, config, n, extra, seed, rate) -> Cell:
        """The run of a trajectory: where all apply the same gradient, that of a single rank with all samples of a step,
        unless there is batch normalisation; in simulated time where that matters."""
        algorithm = ALGORITHMS[self.load(config, extra).algorithm.name]
        if algorithm.name not in SAME_GRADIENT:
            return self.cell(config, n, STEPS if algorithm.synchronous else SIMULATED, extra, seed, rate)
        kept = [override for override in extra if not override.startswith("algorithm.")]
        leader = self.trajectory(config)
        loaded = self.load(leader, kept)
        if normalises_batches(loaded.model.name):
            return self.cell(leader, n, STEPS, kept, seed, rate)
        whole = n * loaded.data.batch_size
        return self.cell(leader, 1, STEPS, (*kept, f"data.batch_size={whole}"), seed, rate)

    def curves(self, config, n, extra=(), seeds=None) -> list[Run]:
        """A synchronous algorithm's trainings, a run a seed; their times mean nothing."""
        rate = self.learning_rate(config)
        seeds = range(self.scale.seeds) if seeds is None else seeds
        return [run for seed in seeds for run in self.ask(self.trajectory_cell(config, n, extra, seed, rate))]

    def samples(self, config, n, extra=(), seeds=None) -> list[float]:
        """Samples, of all ranks together, to the target accuracy, by seed; of synchronous algorithms."""
        return each(samples_to, self.curves(config, n, extra, seeds))

    # ---- learning rates

    def learning_rate(self, config: str, extra: tuple[str, ...] = ()) -> float:
        """The rate of the grid with which the fewest samples lead to the target accuracy, on `tuning_ranks` ranks and
        in simulated time; if none leads there, the one with the highest accuracy.

        The lowest and the highest rate of the grid are tried only where the best of the others is next to it.
        """
        lowest, *inner, highest = self.scale.learning_rates
        tried = self.trials(config, extra, inner)
        beside = {inner[0]: lowest, inner[-1]: highest}.get(best_rate(tried))
        if tried and beside is not None:
            tried = tried | self.trials(config, extra, [beside])
        return best_rate(tried) if tried else inner[0]

    def trials(self, config: str, extra: tuple[str, ...], rates: list[float]) -> dict[float, tuple[float, float]]:
        """Samples to the target and best accuracy with each rate; nothing while runs are asked for that are missing."""
        leader = self.trajectory(config)
        cells = {
            rate: self.trajectory_cell(leader, self.scale.tuning_ranks, extra, TUNING_SEED, rate) for rate in rates
        }
        if self.stage == "tuning":
            self.asked |= dict.fromkeys(cells.values())
            if not all(map(self.is_there, cells.values())):
                return {}
        self.used |= dict.fromkeys(cells.values())
        runs = {rate: self.found(cell) for rate, cell in cells.items()}
        known = self.tuned.setdefault((leader, extra), {})
        known |= {rate: (samples_to(run), best_accuracy(run)) for rate, run in runs.items() if rate not in known}
        return {rate: known[rate] for rate in rates}

    # ---- times

    def seconds_per_step(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> float:
        """n / (steps per second of all ranks), of short runs that only this is measured of; the median."""
        values = each(seconds_a_step, self.short(config, n, source, scenario, extra, steps, link))
        self.compare((config, n, scenario, extra, link, "step"), source, values)
        return middle(values)

    def step_split(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> dict[str, float]:
        """Seconds of a step that a rank spends on each of compute, communicate and wait, mean over those that train."""
        runs = self.short(config, n, source, scenario, extra, steps, link)
        self.compare((config, n, scenario, extra, link, "step"), source, each(seconds_a_step, runs))
        return {
            part: middle(each(lambda run, part=part: float(part_of_a_step(run, part).mean()), runs))
            for part in ("compute", "communicate", "wait")
        }

    def short(self, config, n, source, scenario=EQUAL, extra=(), steps=None, link=None) -> list[Run]:
        """Runs of a few steps, for their times and bytes: several by the clock, one in simulated time."""
        loaded = self.load(config, extra)
        timed = ALGORITHMS[loaded.algorithm.name].needs_content(loaded.algorithm_options)
        kind = TIMES if source == SIMULATED and not timed else source
        brief = (f"train.steps={steps or self.scale.steps}", "train.snapshots=1", "train.evaluate_replicas=false")
        seeds = None if source == CLOCK else [0]
        return self.runs(config, n, kind, scenario, (*extra, *brief), seeds, link)

    def seconds(self, config, n, source, scenario=EQUAL, extra=(), seeds=None, link=None, steps=None) -> list[float]:
        """Seconds to the target accuracy, by seed; NaN where it was not reached.

        Synchronous algorithms: samples to the target / (n b) times seconds per step, because what a step does is the
        same whatever time it takes. Others: the first snapshot at or above the target. Both have the same seeds.
        """
        loaded = self.load(config, extra)
        if seeds is None and source == CLOCK:
            seeds = range(self.scale.clock_seeds)
        if ALGORITHMS[loaded.algorithm.name].synchronous:
            step = self.seconds_per_step(config, n, source, scenario, extra, steps, link)
            batch = n * loaded.data.batch_size
            return [samples / batch * step for samples in self.samples(config, n, extra, seeds)]
        values = self.measure(seconds_to, config, n, source, scenario, extra, seeds, link=link)
        self.compare((config, n, scenario, extra, link, "seconds"), source, values)
        return values

    def compare(self, what: tuple, source: str, values: list[float]):
        known = [value for value in values if not math.isnan(value)]
        if known:
            self.compared.setdefault(what, {})[source] = median(known)

    def simulator_errors(self) -> list[float]:
        """How far simulated times of this target are from measured ones of the same trainings, as shares of those."""
        return [both[SIMULATED] / both[CLOCK] - 1 for both in self.compared.values() if len(both) == 2]


# ---- numbers of a run


def each(value: Callable[[Run], float], runs: list[Run]) -> list[float]:
    """A number of each run; NaN before the last stage."""
    return [float(value(run)) for run in runs] or [math.nan]


def reached(run: Run) -> int | None:
    """The first snapshot at or above the target accuracy; none of a run that diverged after it."""
    if run.attributes["stopped"] not in ENDS:
        return None
    there = run.curve["test_accuracy"] >= run.attributes["target_accuracy"]
    return int(there.argmax()) if there.any() else None


def seconds_to(run: Run) -> float:
    """To the target accuracy; NaN if it was not reached."""
    return math.nan if (at := reached(run)) is None else float(run.curve["time"][at])


def samples_to(run: Run) -> float:
    """To the target accuracy, all ranks together; NaN if it was not reached."""
    return math.nan if (at := reached(run)) is None else float(run.curve["samples"][at])


def best_accuracy(run: Run) -> float:
    """The highest within the samples that the configuration says, and a step: ranks that wait for nobody go beyond."""
    epochs = tomllib.loads(run.attributes["config"])["train"].get("epochs", math.inf)
    most = epochs * run.attributes["train_samples"] + run.attributes["ranks"] * run.attributes["batch_size"]
    known = run.curve["test_accuracy"][~np.isnan(run.curve["test_accuracy"]) & (run.curve["samples"] <= most)]
    return float(known.max()) if known.size else math.nan


def part_of_a_step(run: Run, part: str) -> np.ndarray:
    """Seconds that each rank that trains spends on compute, communicate or wait, a step."""
    trains = run.ranks["steps"] > 0
    return run.ranks[f"{part}_seconds"][trains] / run.ranks["steps"][trains]


def best_rate(tried: dict[float, tuple[float, float]]) -> float | None:
    return min(tried, key=lambda rate: (nan_last(tried[rate][0]), -tried[rate][1])) if tried else None


def nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


@functools.cache
def normalises_batches(model: str) -> bool:
    return any(isinstance(module, _BatchNorm) for module in build(model, (3, 64, 64), 10).modules())


# ---- numbers as text


def spread(values: Iterable[float], form: str = ".3g") -> str:
    """Median and range of the seeds: ``12 (11–13)``; those that are not known are counted."""
    return median_and_range(list(values), lambda value: format(value, form))


def middle(values: Iterable[float]) -> float:
    """The median of the seeds, of which one that is not known, a target that was not reached, is the most of all; NaN
    if the median is such a one, or there is none."""
    ordered = [nan_last(value) for value in values]
    median = float(np.median(ordered)) if ordered else math.inf
    return math.nan if math.isinf(median) else median


def saving(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """How much less ours is, by medians, in per cent; -inf if only theirs is known, because it reached the target, and
    NaN if theirs is not."""
    a, b = middle(ours), middle(theirs)
    if math.isnan(b):
        return math.nan
    return -math.inf if math.isnan(a) else 100 * (1 - a / b)


def points(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """How much higher our accuracy is, by medians, in points of per cent, but for rounding errors."""
    return round(100 * (middle(ours) - middle(theirs)), 6)


NOT_REACHED = "no less (the target was not reached)"


def percent(value: float) -> str:
    """A saving in words."""
    if math.isnan(value):
        return "not known"
    return NOT_REACHED if math.isinf(value) else f"{abs(value):.1f} % {'less' if value >= 0 else 'more'}"


# ---- pages


class Page:
    """What a target writes: tables, figures, findings and notes."""

    def __init__(self, name: str, folder: Path | None):
        self.name, self.folder = name, folder
        self.tables: list[Table] = []
        self.figures: list[Figure] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def table(self, caption: str, headers: list[str], rows: list[list]):
        self.tables.append(Table(caption, headers, [[str(cell) for cell in row] for row in rows]))

    def figure(self, caption: str, panels: list[Panel], times: bool = True):
        """times: whether it shows some, so that the simulator's error belongs under it."""
        if self.folder is not None:
            svg = f"{self.name}-{len(self.figures) + 1}.svg"
            draw(self.folder / svg, panels)
            self.figures.append(Figure(caption, svg, times))

    def note(self, text: str):
        self.notes.append(text)

    def finding(self, claim: str, measured: str, accounting: str, cases: dict[str, bool | None], reason: str = ""):
        """cases: by condition, whether the claim holds there; None where it cannot be said. reason: why it does not."""
        found = verdict(cases)
        self.findings.append(Finding(claim, measured, accounting, found, "" if found == HOLDS else reason))


def verdict(cases: dict[str, bool | None]) -> str:
    """It holds only if it was decided in all cases."""
    holding = [condition for condition, holds in cases.items() if holds]
    undecided = [condition for condition, holds in cases.items() if holds is None]
    if len(holding) == len(cases):
        return HOLDS
    if len(undecided) == len(cases):
        return f"{UNDECIDED}: the target accuracy was not reached"
    if not holding:
        return FAILS
    return f"{PARTLY} {'; '.join(holding)}" + (f" (not decided: {'; '.join(undecided)})" if undecided else "")


def rises(values: list[float], tolerance: float = 0.0) -> bool | None:
    """Whether no value is less than the one before, but for a share of it; None if one is not known."""
    if any(map(math.isnan, values)):
        return None
    return all(b >= (1 - tolerance) * a for a, b in zip(values, values[1:], strict=False))


def less(ours: Iterable[float], theirs: Iterable[float], by: float = 0.0) -> bool | None:
    """Whether ours is less than theirs, by so many per cent at least; None if theirs is not known."""
    saved = saving(ours, theirs)
    return None if math.isnan(saved) else saved > by


def all_at_least(savings: Iterable[float], least: float) -> bool | None:
    """Whether all that are known are so many per cent; None if none is."""
    known = [value for value in savings if not math.isnan(value)]
    return min(known) >= least if known else None
