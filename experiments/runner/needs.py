"""Needs: the trainings, steps, and times to the target accuracy from which tables and figures are made.

A need names its runs before they are made (``specs``), and computes a result from them afterwards (``result``).
``rate_of`` is a function that returns the learning rate of a setting. ``runs_of`` returns the runs of specifications.
"""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.runner import sample
from experiments.runner.conditions import Conditions
from experiments.runner.run_spec import SIMULATED, RunSpec
from experiments.runner.sample import Sample
from experiments.runner.setting import Setting
from grsgd.runs.measures import crosses_before_first, crossing, seconds_per_step
from grsgd.runs.run_file import Run

RateOf = Callable[[Setting], float]
RunsOf = Callable[[list[RunSpec]], list[Run]]
STOPS_AT_TARGET = ("train.stop_at_target=true",)
"""Override of trainings that may end at the target accuracy."""


@dataclass(frozen=True)
class Trainings:
    """Whole trainings, one per seed; the result is a list of runs.

    seeds: number of seeds; None takes the scale's number.
    """

    setting: Setting
    seeds: int | None = None

    def trained(self, conditions: Conditions) -> Setting:
        """Return the setting of the runs from which the result is computed."""
        return self.setting

    def is_tuned(self, conditions: Conditions) -> bool:
        """Return whether the result depends on the learning rate."""
        return True

    def specs(self, conditions: Conditions, rate_of: RateOf) -> list[RunSpec]:
        trained = self.trained(conditions)
        if self.is_tuned(conditions):
            rate = rate_of(self.setting)
        else:
            rate = conditions.load(self.setting.config).optimizer.lr
        return [conditions.spec(trained, seed, rate) for seed in conditions.seeds(self.setting.source, self.seeds)]

    def result(self, conditions: Conditions, rate_of: RateOf, runs_of: RunsOf) -> list[Run]:
        return runs_of(self.specs(conditions, rate_of))


class Trajectories(Trainings):
    """Trainings, one per seed, that take the same steps as the training of ``setting`` (``Conditions.trajectory``).

    The result is a list of runs. The times of these runs mean nothing if the algorithm is synchronous.
    """

    def trained(self, conditions: Conditions) -> Setting:
        return conditions.trajectory(self.setting)


@dataclass(frozen=True)
class Steps(Trainings):
    """Short runs, one per seed, for the time and the bytes of a step; the result is a list of runs.

    steps: number of steps per rank; None takes the scale's number.
    """

    steps: int | None = None

    def trained(self, conditions: Conditions) -> Setting:
        return conditions.short(self.setting, self.steps)

    def is_tuned(self, conditions: Conditions) -> bool:
        return conditions.load(self.setting.config, self.setting.overrides).traits.depends_on_values


@dataclass(frozen=True)
class TimeToTarget:
    """Seconds to the target accuracy, by seed; the result is a ``Sample``.

    The steps of a synchronous algorithm do not depend on their times. Therefore, its result is the time of a step times
    the number of steps to the target. For an asynchronous algorithm, the result is the time at which the accuracy
    crosses the target. A training that ends before reaching the target has the time of its end, as a lower bound. A
    training that is at the target at its first snapshot has the time of this snapshot, as an upper bound.
    """

    setting: Setting
    seeds: int | None = None
    steps: int | None = None

    def is_tuned(self, conditions: Conditions) -> bool:
        return True

    def specs(self, conditions: Conditions, rate_of: RateOf) -> list[RunSpec]:
        return [spec for part in self._parts(conditions) for spec in part.specs(conditions, rate_of)]

    def result(self, conditions: Conditions, rate_of: RateOf, runs_of: RunsOf) -> Sample:
        curves, *steps = (part.result(conditions, rate_of, runs_of) for part in self._parts(conditions))
        if not steps:
            return to_target(curves, "time")
        batch = self.setting.ranks * conditions.load(self.setting.config, self.setting.overrides).data.batch_size
        return product(to_target(curves, "samples").scaled(1 / batch), sample.of(steps[0], seconds_per_step))

    def _parts(self, conditions: Conditions) -> list[Trainings]:
        traits = conditions.load(self.setting.config, self.setting.overrides).traits
        to_target = self.setting
        if traits.synchronous or self.setting.source == SIMULATED:
            to_target = to_target.but(overrides=(*to_target.overrides, *STOPS_AT_TARGET))
        if not traits.synchronous:
            return [Trainings(to_target, self.seeds)]
        return [Trajectories(to_target, self.seeds), Steps(self.setting, self.seeds, self.steps)]


class SamplesToTarget(TimeToTarget):
    """Number of samples of all ranks to the target accuracy, by seed, in the trainings of a `TimeToTarget`.

    The result is a ``Sample``.
    """

    def result(self, conditions: Conditions, rate_of: RateOf, runs_of: RunsOf) -> Sample:
        return to_target(self._parts(conditions)[0].result(conditions, rate_of, runs_of), "samples")

    def _parts(self, conditions: Conditions) -> list[Trainings]:
        return super()._parts(conditions)[:1]


Need = Trainings | TimeToTarget


def to_target(runs: list[Run], column: str) -> Sample:
    """Return the times or samples to the target accuracy, by seed; ``column`` is "time" or "samples".

    A value is a lower bound if the target was not reached, and an upper bound if the first snapshot had reached it.
    """
    crossings = {run.attributes["seed"]: crossing(run, column) for run in runs}
    ends = {run.attributes["seed"]: float(run.curve[column][-1]) for run in runs}
    missed = frozenset(seed for seed, at in crossings.items() if at is None)
    early = frozenset(run.attributes["seed"] for run in runs if crosses_before_first(run))
    values = {seed: ends[seed] if seed in missed else at for seed, at in crossings.items()}
    return Sample(values, missed, early, sample.labels_of(runs))


def product(counts: Sample, each: Sample) -> Sample:
    """Return the product of ``counts`` and ``each``, by seed; None for a seed if a factor is unknown.

    Values of ``counts`` may be bounds.
    """
    values = {
        seed: None if count is None or each.values.get(seed) is None else count * each.values[seed]
        for seed, count in counts.values.items()
    }
    known = {seed for seed, value in values.items() if value is not None}
    return Sample(values, counts.bounds & known, counts.upper & known, each.algorithms)
