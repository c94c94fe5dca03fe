"""Learning rates: tuned for every algorithm on the same grid, in simulated time, with a seed that is not used again."""

import math
from collections.abc import Callable, Iterable

from experiments.tables.conditions import Conditions
from experiments.tables.needs import STOPS_AT_TARGET
from experiments.tables.run_spec import SIMULATED, RunSpec
from experiments.tables.setting import Setting
from grsgd.runs import measures
from grsgd.runs.run_file import Run

TUNING_SEED = 1000
"""Not one of the seeds that are reported."""

Trials = dict[float, RunSpec]
Tuned = tuple[str, int, tuple[str, ...]]
"""The key of a learning rate: a configuration, the ranks it is tuned on, and the overrides that it is tuned with."""


class MissingRun(RuntimeError):
    """A run that a target needs could not be made."""


class LearningRates:
    """The learning rate of each setting: the one of the grid with which the fewest samples lead to the target accuracy,
    on ``tuning_ranks`` ranks, or on one if one trains alone; if none leads there, the one with the highest accuracy.

    The lowest and the highest rate are tried only where the best of the others is next to it, so runs are named in two
    rounds. find: returns the run of a specification, or None.
    """

    def __init__(self, conditions: Conditions, find: Callable[[RunSpec], Run | None]):
        self.conditions, self.find = conditions, find

    def missing(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials of these settings that can be named so far, and have not been made."""
        return [spec for spec in self.named(settings) if self.find(spec) is None]

    def named(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials of these settings that can be named so far."""
        return list({spec: None for tuned in self.of(settings) for spec in self.trials(tuned).values()})

    def supposed(self, setting: Setting) -> float:
        """Return the learning rate, or, where it is not known, one of the grid."""
        try:
            return self.rate(setting)
        except MissingRun:
            return self.conditions.scale.learning_rates[1]

    def of(self, settings: Iterable[Setting]) -> list[Tuned]:
        """Return what these settings' rates are shared by."""
        return list(dict.fromkeys(map(self.tuned, settings)))

    def tuned(self, setting: Setting) -> Tuned:
        ranks = 1 if setting.ranks == 1 else self.conditions.scale.tuning_ranks
        return self.conditions.leader(setting), ranks, setting.tuned_with

    def rate(self, setting: Setting) -> float:
        """Return the learning rate; raises MissingRun if a trial is missing."""
        return best(self.results(self.tuned(setting)))

    def results(self, tuned: Tuned) -> dict[float, tuple[float, float]]:
        """Return samples to the target (infinite where it was not reached) and best accuracy, by rate."""
        return {rate: self.result(spec) for rate, spec in self.trials(tuned).items()}

    def result(self, spec: RunSpec) -> tuple[float, float]:
        if (run := self.find(spec)) is None:
            raise MissingRun(f"the trial of learning rates {' '.join(spec.cli_args())}")
        samples = measures.crossing(run, "samples")
        return math.inf if samples is None else samples, measures.best(run)

    def trials(self, tuned: Tuned) -> Trials:
        """Return the trials by rate: those within the grid, and, where these are there, the end beside the best."""
        lowest, *inner, highest = self.conditions.scale.learning_rates
        trials = {rate: self.trial(tuned, rate) for rate in inner}
        if all(self.find(spec) is not None for spec in trials.values()):
            beside = {inner[0]: lowest, inner[-1]: highest}
            end = beside.get(best({rate: self.result(spec) for rate, spec in trials.items()}))
            trials |= {end: self.trial(tuned, end)} if end is not None else {}
        return trials

    def trial(self, tuned: Tuned, rate: float) -> RunSpec:
        config, ranks, overrides = tuned
        setting = Setting(config, ranks, SIMULATED, overrides=overrides + STOPS_AT_TARGET)
        return self.conditions.spec(self.conditions.trajectory(setting), TUNING_SEED, rate)

    def table(self, settings: Iterable[Setting]) -> tuple[str, list[str], list[list[str]]]:
        """Return the table of trials: caption, headers and rows."""
        grid, rows = self.conditions.scale.learning_rates, []
        for tuned in self.of(settings):
            config, ranks, overrides = tuned
            results = self.results(tuned)
            cells = dict.fromkeys(grid, "") | {rate: trial_text(*result) for rate, result in results.items()}
            cells[best(results)] += " †" if best(results) in (grid[0], grid[-1]) else " *"
            rows.append([" ".join([config, *overrides]), str(ranks), *cells.values()])
        caption = (
            "Learning rates: samples to the target accuracy, or the best accuracy where it was not reached, in "
            "simulated time; * is what is used, † too, but at the end of the grid. One seed, which is not used again. "
            "The first and the last rate are tried only where the one beside it is the best."
        )
        return caption, ["configuration", "ranks", *(f"{rate:g}" for rate in grid)], rows


def best(results: dict[float, tuple[float, float]]) -> float:
    """Return the rate with the fewest samples; among those that did not reach the target, with the best accuracy."""
    return min(results, key=lambda rate: (results[rate][0], -results[rate][1]))


def trial_text(samples: float, accuracy: float) -> str:
    return f"{samples / 1000:.0f}k" if math.isfinite(samples) else f"{100 * accuracy:.1f} %"
