"""Learning rates: tuned for every algorithm on the same grid, in simulated time, with seeds that no other run uses.

The best rate of a coarse grid is found with one seed. The rates within the grid are tried first. As long as the best
rate is the lowest or the highest tried rate, a further rate is tried beyond it. If the scale has several tuning seeds,
rates close to the best rate follow, with all tuning seeds.
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
"""First of the seeds of learning-rate trials, which no reported run uses."""
FINER = 1.5
"""Factor between the finer learning rates, which are tried close to the best rate of the grid."""
BEYOND, MAX_BEYOND = 2.5, 3
"""Factor between the rates beyond the grid, and greatest number of rates below and above the grid."""
HIGHEST = {"cssgd/dnn": 0.15}
"""Highest allowed learning rate, by folder of configurations.

The rate 0.4 may be the fastest with one seed, but diverges with one seed in ten.
"""

Trials = dict[float, list[RunSpec]]
"""Trials by learning rate; a rate has one run per seed."""
Tuned = tuple[str, int, tuple[str, ...]]
"""Key of a learning rate: a configuration, the number of ranks of its trials, and the overrides of its trials."""
TrialResult = tuple[float, float]
"""Result of a trial: samples to the target accuracy (infinite if it was not reached), and the best accuracy.

A result of several seeds has the geometric mean of the samples, and the mean of the accuracies.
"""


class MissingRun(RuntimeError):
    """An error: a run that is needed for a table or figure could not be made."""


class LearningRates:
    """The learning rate of each setting: the rate with which the fewest samples lead to the target accuracy.

    Trials run on ``tuning_ranks`` ranks, or on one rank for a setting of one rank. If no rate reaches the target, the
    rate with the highest accuracy is chosen. The next rates to try depend on earlier trials, so trials are named and
    made in rounds. find: function that returns the run of a specification, or None.
    """

    def __init__(self, conditions: Conditions, find: Callable[[RunSpec], Run | None]):
        self.conditions, self.find = conditions, find

    def missing(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the missing learning-rate trials of these settings; later trials depend on their results."""
        return [spec for spec in self.list_trials(settings) if self.find(spec) is None]

    def list_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the learning-rate trials of these settings, existing or not, that earlier trials determine."""
        trials = (self.trials(tuned) for tuned in self.list_tuned(settings))
        return list({spec: None for by_rate in trials for specs in by_rate.values() for spec in specs})

    def planned_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the learning-rate trials that these settings are expected to need.

        If the best rate of the grid is not known yet, it is assumed to lie within the grid.
        """
        found = dict.fromkeys(self.list_trials(settings))
        for tuned in self.list_tuned(settings):
            coarse = self.coarse(tuned)
            if not self.is_there(coarse):
                middle = sorted(coarse)[len(coarse) // 2]
                found |= {spec: None for specs in self.fine(tuned, middle).values() for spec in specs}
        return list(found)

    def guess_rate(self, setting: Setting) -> float:
        """Return the learning rate of a setting, or a rate of the grid if trials of the setting are missing."""
        try:
            return self.rate(setting)
        except MissingRun:
            return self.conditions.scale.learning_rates[1]

    def list_tuned(self, settings: Iterable[Setting]) -> list[Tuned]:
        """Return the keys of the learning rates of these settings, each key once; several settings may share a key."""
        return list(dict.fromkeys(map(self.tuned, settings)))

    def tuned(self, setting: Setting) -> Tuned:
        ranks = 1 if setting.ranks == 1 else self.conditions.scale.tuning_ranks
        return self.conditions.leader(setting), ranks, setting.tuned_with

    def rate(self, setting: Setting) -> float:
        """Return the learning rate of a setting; raise MissingRun if a trial is missing."""
        return best(self.results(self.tuned(setting)))

    # ---- the trials

    def trials(self, tuned: Tuned) -> Trials:
        """Return the trials of a learning rate; fine trials are left out until the best coarse rate is known."""
        coarse = self.coarse(tuned)
        if not self.is_there(coarse):
            return coarse
        at = best(self.measured(coarse))
        return coarse if self.beyond(tuned, coarse, at) is not None else coarse | self.fine(tuned, at)

    def coarse(self, tuned: Tuned) -> Trials:
        """Return the trials with one seed: rates within the grid, then its two ends, then rates beyond the grid."""
        grid = self.grid(tuned)
        trials = {rate: [self.trial(tuned, rate, TUNING_SEED)] for rate in grid[1:-1] or grid}
        while self.is_there(trials):
            further = self.beyond(tuned, trials, best(self.measured(trials)))
            if further is None:
                break
            trials[further] = [self.trial(tuned, further, TUNING_SEED)]
        return trials

    def grid(self, tuned: Tuned) -> list[float]:
        """Return the rates of the grid that are not above the highest allowed rate; its two ends are tried last."""
        return [rate for rate in self.conditions.scale.learning_rates if rate <= self.highest(tuned)]

    def highest(self, tuned: Tuned) -> float:
        return HIGHEST.get(tuned[0].rpartition("/")[0], math.inf)

    def beyond(self, tuned: Tuned, tried: Mapping[float, object], at: float) -> float | None:
        """Return the next rate beyond the tried rates; None unless the best rate ``at`` is the lowest or highest."""
        ladder = RateLadder(self.grid(tuned), BEYOND, MAX_BEYOND, self.highest(tuned))
        return ladder.next_rate(tried, at)

    def fine(self, tuned: Tuned, at: float) -> Trials:
        """Return the trials close to the rate ``at``, with all tuning seeds; none at scales with one tuning seed."""
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

    # ---- the results of the trials

    def is_there(self, trials: Trials) -> bool:
        return all(self.find(spec) is not None for specs in trials.values() for spec in specs)

    def results(self, tuned: Tuned) -> dict[float, TrialResult]:
        """Return the results by rate, only of the trials that choose the rate: the trials with the most seeds."""
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
        """Return the table of trials of these settings: its caption, headers and rows."""
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
            "Learning rates: samples to the target accuracy, or the best accuracy if the target was not reached, in "
            "simulated time. The mark * is the used rate; † is a used rate at an end of the grid. The grid has one "
            f"seed, and the rates next to its best rate have {seeds}; no later run has these seeds. The rates next to "
            "the mark show the cost of another choice."
        )
        return caption, ["configuration", "ranks", "rate: samples or accuracy"], rows


def together(results: Sequence[TrialResult]) -> TrialResult:
    """Return the joint result of trials with several seeds; the samples are infinite if one seed misses the target."""
    samples, accuracies = zip(*results, strict=True)
    return math.prod(samples) ** (1 / len(samples)), sum(accuracies) / len(accuracies)


def best(results: Mapping[float, TrialResult]) -> float:
    """Return the rate with the fewest samples; if no rate reaches the target, the rate with the best accuracy."""
    return min(results, key=lambda rate: (results[rate][0], -results[rate][1]))


def mark(rate: float, chosen: float, tried: Mapping[float, object]) -> str:
    if rate != chosen:
        return ""
    return " †" if is_an_end(rate, tried) else " *"


def trial_text(samples: float, accuracy: float) -> str:
    return f"{samples / 1000:.0f}k" if math.isfinite(samples) else f"{100 * accuracy:.1f} %"
