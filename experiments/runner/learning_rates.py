"""Learning rates: tuned for every algorithm on the same grid, in simulated time, with seeds that are not used again.

The best of a coarse grid is found with one seed: among those within the grid first, then, for as long as the best is an
end, beyond it. About the best there follow finer steps with all tuning seeds, if the scale has several.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments.runner.conditions import Conditions
from experiments.runner.needs import STOPS_AT_TARGET
from experiments.runner.rate_ladder import RateLadder, is_an_end
from experiments.runner.run_spec import SIMULATED, RunSpec
from experiments.runner.setting import Setting
from grsgd.runs import measures
from grsgd.runs.run_file import Run

TUNING_SEED = 999
"""The first one, of the first occasion; none of them is a seed that is reported."""
FINER = 1.5
"""Factor between the rates about the best one of the grid."""
BEYOND, MOST_BEYOND = 2.5, 3
"""Factor between the rates beyond the grid, and how many of them are tried on either side."""
HIGHEST = {"cssgd/dnn": 0.15}
"""Of configurations' folders, the highest rate: with 0.4, which one seed may find the fastest, one in ten diverges."""

Trials = dict[float, list[RunSpec]]
"""By rate, one of each seed."""
Tuned = tuple[str, int, tuple[str, ...]]
"""The key of a learning rate: a configuration, the ranks it is tuned on, and the overrides that it is tuned with."""
TrialResult = tuple[float, float]
"""Samples to the target, infinite where it was missed, and the best accuracy; of several seeds the geometric mean and
the mean."""


class MissingRun(RuntimeError):
    """A run that a target needs could not be made."""


class LearningRates:
    """The learning rate of each setting: the one with which the fewest samples lead to the target accuracy, on
    ``tuning_ranks`` ranks, or on one if one trains alone; if none leads there, the one with the highest accuracy.

    Which rates are tried depends on those before, so runs are named in rounds. find: returns the run of a
    specification, or None.
    """

    def __init__(self, conditions: Conditions, find: Callable[[RunSpec], Run | None]):
        self.conditions, self.find = conditions, find

    def missing(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials of these settings that can be named so far, and have not been made."""
        return [spec for spec in self.list_trials(settings) if self.find(spec) is None]

    def list_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials of these settings that can be named so far."""
        trials = (self.trials(tuned) for tuned in self.list_tuned(settings))
        return list({spec: None for by_rate in trials for specs in by_rate.values() for spec in specs})

    def planned_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials that these settings are expected to take: where the best rate of the grid is not known yet,
        one within it is supposed to be."""
        found = dict.fromkeys(self.list_trials(settings))
        for tuned in self.list_tuned(settings):
            coarse = self.coarse(tuned)
            if not self.is_there(coarse):
                middle = sorted(coarse)[len(coarse) // 2]
                found |= {spec: None for specs in self.fine(tuned, middle).values() for spec in specs}
        return list(found)

    def guess_rate(self, setting: Setting) -> float:
        """Return the learning rate, or, where it is not known, one of the grid."""
        try:
            return self.rate(setting)
        except MissingRun:
            return self.conditions.scale.learning_rates[1]

    def list_tuned(self, settings: Iterable[Setting]) -> list[Tuned]:
        """Return what these settings' rates are shared by."""
        return list(dict.fromkeys(map(self.tuned, settings)))

    def tuned(self, setting: Setting) -> Tuned:
        ranks = 1 if setting.ranks == 1 else self.conditions.scale.tuning_ranks
        return self.conditions.leader(setting), ranks, setting.tuned_with

    def rate(self, setting: Setting) -> float:
        """Return the learning rate; raises MissingRun if a trial is missing."""
        return best(self.results(self.tuned(setting)))

    # ---- what is tried

    def trials(self, tuned: Tuned) -> Trials:
        """Return the trials that can be named so far: coarse ones, and, once the best of these is known, fine ones."""
        coarse = self.coarse(tuned)
        if not self.is_there(coarse):
            return coarse
        at = best(self.measured(coarse))
        return coarse if self.beyond(tuned, coarse, at) is not None else coarse | self.fine(tuned, at)

    def coarse(self, tuned: Tuned) -> Trials:
        """Return the trials with one seed: within the grid, its ends, and beyond, for as long as the best is an end."""
        grid = self.grid(tuned)
        trials = {rate: [self.trial(tuned, rate, TUNING_SEED)] for rate in grid[1:-1] or grid}
        while self.is_there(trials):
            further = self.beyond(tuned, trials, best(self.measured(trials)))
            if further is None:
                break
            trials[further] = [self.trial(tuned, further, TUNING_SEED)]
        return trials

    def grid(self, tuned: Tuned) -> list[float]:
        """Return the rates of the grid that are allowed; the first and the last one are its ends."""
        return [rate for rate in self.conditions.scale.learning_rates if rate <= self.highest(tuned)]

    def highest(self, tuned: Tuned) -> float:
        return HIGHEST.get(tuned[0].rpartition("/")[0], math.inf)

    def beyond(self, tuned: Tuned, tried: Mapping[float, object], at: float) -> float | None:
        """Return the rate that follows where the best one so far, ``at``, is the first or the last of those tried."""
        ladder = RateLadder(self.grid(tuned), BEYOND, MOST_BEYOND, self.highest(tuned))
        return ladder.next_rate(tried, at)

    def fine(self, tuned: Tuned, at: float) -> Trials:
        """Return the trials about a rate, with all tuning seeds; none at scales with a single one."""
        seeds = range(TUNING_SEED, TUNING_SEED + self.conditions.scale.tuning_seeds)
        if len(seeds) == 1:
            return {}
        rates = [rate for rate in (at / FINER, at, at * FINER) if rate <= self.highest(tuned)]
        return {rate: [self.trial(tuned, rate, seed) for seed in seeds] for rate in rates}

    def trial(self, tuned: Tuned, rate: float, seed: int) -> RunSpec:
        config, ranks, overrides = tuned
        images = self.conditions.scale.tuning_images
        fewer = (f"data.only_test={images}",) if images else ()
        setting = Setting(config, ranks, SIMULATED, overrides=overrides + fewer + STOPS_AT_TARGET)
        return self.conditions.spec(self.conditions.trajectory(setting), seed, rate)

    # ---- what they have found

    def is_there(self, trials: Trials) -> bool:
        return all(self.find(spec) is not None for specs in trials.values() for spec in specs)

    def results(self, tuned: Tuned) -> dict[float, TrialResult]:
        """Return the results of the trials that decide, by rate: those with the most seeds."""
        trials = self.trials(tuned)
        most = max(map(len, trials.values()))
        return self.measured({rate: specs for rate, specs in trials.items() if len(specs) == most})

    def measured(self, trials: Trials) -> dict[float, TrialResult]:
        return {rate: together([self.result(spec) for spec in specs]) for rate, specs in trials.items()}

    def result(self, spec: RunSpec) -> TrialResult:
        if (run := self.find(spec)) is None:
            raise MissingRun(f"the trial of learning rates {' '.join(spec.cli_args())}")
        samples = measures.crossing(run, "samples")
        return math.inf if samples is None else samples, measures.best(run)

    def table(self, settings: Iterable[Setting]) -> tuple[str, list[str], list[list[str]]]:
        """Return the table of trials: caption, headers and rows."""
        rows = []
        for tuned in self.list_tuned(settings):
            config, ranks, overrides = tuned
            chosen, trials = best(self.results(tuned)), self.trials(tuned)
            tried = [
                f"{rate:.3g}: {trial_text(*result)}" + mark(rate, chosen, trials)
                for rate, result in sorted(self.measured(trials).items())
            ]
            rows.append([" ".join([config, *overrides]), str(ranks), "; ".join(tried)])
        seeds = self.conditions.scale.tuning_seeds
        caption = (
            "Learning rates: samples to the target accuracy, or the best accuracy where it was not reached, in "
            f"simulated time; * is what is used, † too, but at an end. The grid has one seed, the rates about its best "
            f"{seeds}; none is used again. The rates beside * show what another choice would have cost."
        )
        return caption, ["configuration", "ranks", "rate: samples or accuracy"], rows


def together(results: Sequence[TrialResult]) -> TrialResult:
    """Return the result of several seeds: one that misses the target is as bad as all of them."""
    samples, accuracies = zip(*results, strict=True)
    return math.prod(samples) ** (1 / len(samples)), sum(accuracies) / len(accuracies)


def best(results: Mapping[float, TrialResult]) -> float:
    """Return the rate with the fewest samples; among those that did not reach the target, with the best accuracy."""
    return min(results, key=lambda rate: (results[rate][0], -results[rate][1]))


def mark(rate: float, chosen: float, tried: Mapping[float, object]) -> str:
    if rate != chosen:
        return ""
    return " †" if is_an_end(rate, tried) else " *"


def trial_text(samples: float, accuracy: float) -> str:
    return f"{samples / 1000:.0f}k" if math.isfinite(samples) else f"{100 * accuracy:.1f} %"
