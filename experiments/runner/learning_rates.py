"""Learning rates, which are tuned for every algorithm on the same grid, in simulated time.

Tuning uses seeds that no other run uses. The best learning rate of a coarse grid is found with one seed. The learning
rates within the grid are tried before its lowest and highest rate. While the best learning rate is the lowest or the
highest tried one, a further rate is tried beyond it. If the scale (size of the experiment) has several tuning seeds,
rates close to the best rate are tried with all of these seeds.
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
"""First of the seeds of trainings that tune learning rates; no reported run uses these seeds."""
FINER = 1.5
"""Factor between the finely spaced learning rates that are tried close to the best rate of the grid."""
BEYOND, MAX_BEYOND = 2.5, 3
"""Factor between learning rates beyond the grid, and greatest number of such rates below and above the grid."""
HIGHEST = {"cssgd/dnn": 0.15}
"""Highest allowed learning rate, by folder of configurations.

The rate 0.4 may be the fastest with one seed, but diverges with one seed in ten.
"""

Trials = dict[float, list[RunSpec]]
"""Trials (trainings that tune a learning rate) by learning rate, one per seed."""
Tuned = tuple[str, int, tuple[str, ...]]
"""Key of a tuned learning rate: configuration, number of ranks of the trials, and overrides of the trials."""
TrialResult = tuple[float, float]
"""Result of a trial of a learning rate: samples to the target accuracy, and the best accuracy.

If the trial missed the target, the samples are infinite. The result of trials with several seeds has the geometric
mean of the samples, and the mean of the accuracies.
"""


class MissingRun(RuntimeError):
    """Error: a run that a table or figure needs does not exist."""


class LearningRates:
    """Finds the tuned learning rate of each setting, which needs the fewest samples to the target accuracy.

    Trials of learning rates run on ``tuning_ranks`` ranks, or on one rank if the setting has one rank. If no learning
    rate reaches the target, the rate with the highest accuracy is chosen. The learning rates to try next depend on
    earlier trials, so trials are listed and made in rounds. find: function that returns the run of a specification, or
    None if the run does not exist.
    """

    def __init__(self, conditions: Conditions, find: Callable[[RunSpec], Run | None]):
        self.conditions, self.find = conditions, find

    def missing(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the missing trials that tune the learning rates of ``settings``.

        Further trials follow from the results of the returned trials.
        """
        return [spec for spec in self.list_trials(settings) if self.find(spec) is None]

    def list_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials that tune the learning rates of ``settings``, as far as earlier trials determine them.

        The returned trials include trials that exist.
        """
        trials = (self.trials(tuned) for tuned in self.list_tuned(settings))
        return list({spec: None for by_rate in trials for specs in by_rate.values() for spec in specs})

    def planned_trials(self, settings: Iterable[Setting]) -> list[RunSpec]:
        """Return the trials that the tuning of the learning rates of ``settings`` will probably need.

        If the best learning rate of the grid is not known yet, it is assumed to lie within the grid.
        """
        found = dict.fromkeys(self.list_trials(settings))
        for tuned in self.list_tuned(settings):
            coarse = self.coarse(tuned)
            if not self.is_there(coarse):
                middle = sorted(coarse)[len(coarse) // 2]
                found |= {spec: None for specs in self.fine(tuned, middle).values() for spec in specs}
        return list(found)

    def guess_rate(self, setting: Setting) -> float:
        """Return the tuned learning rate of a setting, or a rate of the grid if the tuning is not complete."""
        try:
            return self.rate(setting)
        except MissingRun:
            return self.conditions.scale.learning_rates[1]

    def list_tuned(self, settings: Iterable[Setting]) -> list[Tuned]:
        """Return the keys of the learning rates of ``settings``, without repetitions.

        Several settings may share a key, and thus a learning rate.
        """
        return list(dict.fromkeys(map(self.tuned, settings)))

    def tuned(self, setting: Setting) -> Tuned:
        ranks = 1 if setting.ranks == 1 else self.conditions.scale.tuning_ranks
        return self.conditions.leader(setting), ranks, setting.tuned_with

    def rate(self, setting: Setting) -> float:
        """Return the tuned learning rate of a setting; raise MissingRun if a trial of the tuning is missing."""
        return best(self.results(self.tuned(setting)))

    # ---- methods that list the trials of learning rates

    def trials(self, tuned: Tuned) -> Trials:
        """Return the trials for one key of a learning rate.

        Trials close to the best rate of the grid are left out until the best rate is known.
        """
        coarse = self.coarse(tuned)
        if not self.is_there(coarse):
            return coarse
        at = best(self.measured(coarse))
        return coarse if self.beyond(tuned, coarse, at) is not None else coarse | self.fine(tuned, at)

    def coarse(self, tuned: Tuned) -> Trials:
        """Return the trials with one seed: rates within the grid, the two ends of the grid, and rates beyond the grid.

        The trials of each group are left out until the results of the groups before it are known.
        """
        grid = self.grid(tuned)
        trials = {rate: [self.trial(tuned, rate, TUNING_SEED)] for rate in grid[1:-1] or grid}
        while self.is_there(trials):
            further = self.beyond(tuned, trials, best(self.measured(trials)))
            if further is None:
                break
            trials[further] = [self.trial(tuned, further, TUNING_SEED)]
        return trials

    def grid(self, tuned: Tuned) -> list[float]:
        """Return the rates of the grid up to the highest allowed rate, in the order of the grid."""
        return [rate for rate in self.conditions.scale.learning_rates if rate <= self.highest(tuned)]

    def highest(self, tuned: Tuned) -> float:
        return HIGHEST.get(tuned[0].rpartition("/")[0], math.inf)

    def beyond(self, tuned: Tuned, tried: Mapping[float, object], at: float) -> float | None:
        """Return the next learning rate beyond ``tried``; None unless the best rate ``at`` is the lowest or highest."""
        ladder = RateLadder(self.grid(tuned), BEYOND, MAX_BEYOND, self.highest(tuned))
        return ladder.next_rate(tried, at)

    def fine(self, tuned: Tuned, at: float) -> Trials:
        """Return the trials of learning rates close to ``at`` with all tuning seeds.

        The returned dict is empty if the scale (size of the experiment) has one tuning seed.
        """
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

    # ---- functions that evaluate the trials of learning rates

    def is_there(self, trials: Trials) -> bool:
        return all(self.find(spec) is not None for specs in trials.values() for spec in specs)

    def results(self, tuned: Tuned) -> dict[float, TrialResult]:
        """Return the results of the trials that choose the learning rate, by rate.

        The rate is chosen among the rates whose trials have the most seeds.
        """
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
        """Return the table of the trials that tuned the learning rates of ``settings``: caption, headers and rows."""
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
    """Return the joint result of trials with several seeds.

    The number of samples is infinite if the trial of one seed missed the target.
    """
    samples, accuracies = zip(*results, strict=True)
    return math.prod(samples) ** (1 / len(samples)), sum(accuracies) / len(accuracies)


def best(results: Mapping[float, TrialResult]) -> float:
    """Return the learning rate with the fewest samples to the target.

    If no rate reached the target, the rate with the best accuracy is returned.
    """
    return min(results, key=lambda rate: (results[rate][0], -results[rate][1]))


def mark(rate: float, chosen: float, tried: Mapping[float, object]) -> str:
    if rate != chosen:
        return ""
    return " †" if is_an_end(rate, tried) else " *"


def trial_text(samples: float, accuracy: float) -> str:
    return f"{samples / 1000:.0f}k" if math.isfinite(samples) else f"{100 * accuracy:.1f} %"
