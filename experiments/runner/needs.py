"""Needs: descriptions of the runs that tables and figures need, and of the results computed from these runs.

A need lists its runs before they are made (``specs``), and computes a result from the finished runs (``result``).
``rate_of`` is a function that returns the tuned learning rate of a setting. ``runs_of`` is a function that returns the
finished runs for a list of specifications.
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
"""Override by which a training may end as soon as it reaches its target accuracy."""


@dataclass(frozen=True)
class Trainings:
    """Need of complete trainings of one setting, one per seed; the result is the list of the runs.

    seeds: number of seeds; None takes the number of the experiment's scale (size).
    """

    setting: Setting
    seeds: int | None = None

    def trained(self, conditions: Conditions) -> Setting:
        """Return the setting of the runs that are made for this need."""
        return self.setting

    def is_tuned(self, conditions: Conditions) -> bool:
        """Return True if the result depends on the learning rate, which must then be tuned."""
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
    """Need of trainings, one per seed, that take the steps of trainings of ``setting`` (``Conditions.trajectory``).

    The result of this need is the list of the runs. The times of runs of this need mean nothing if the algorithm is
    synchronous.
    """

    def trained(self, conditions: Conditions) -> Setting:
        return conditions.trajectory(self.setting)


@dataclass(frozen=True)
class Steps(Trainings):
    """Need of short runs, one per seed, that find the time and the bytes of a step; the result is the list of the runs.

    steps: number of steps per rank; None takes the number of the experiment's scale (size).
    """

    steps: int | None = None

    def trained(self, conditions: Conditions) -> Setting:
        return conditions.short(self.setting, self.steps)

    def is_tuned(self, conditions: Conditions) -> bool:
        return conditions.load(self.setting.config, self.setting.overrides).traits.depends_on_values


@dataclass(frozen=True)
class TimeToTarget:
    """Need of the seconds to the target accuracy; the result is a ``Sample`` (values by seed).

    The training steps of a synchronous algorithm do not depend on the time that the steps take. For a synchronous
    algorithm, the result is therefore the time of a step times the number of steps to the target accuracy. For an
    asynchronous algorithm, the result is the time at which the accuracy of a training crosses the target. If a
    training ends before it reaches the target, its time is a lower bound of the time to the target. If a training has
    reached the target at its first snapshot, the time of the snapshot is an upper bound.
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
    """Need of the number of samples that all ranks train on until the target accuracy; made like a `TimeToTarget`.

    The result of this need is a ``Sample`` (values by seed).
    """

    def result(self, conditions: Conditions, rate_of: RateOf, runs_of: RunsOf) -> Sample:
        return to_target(self._parts(conditions)[0].result(conditions, rate_of, runs_of), "samples")

    def _parts(self, conditions: Conditions) -> list[Trainings]:
        return super()._parts(conditions)[:1]


Need = Trainings | TimeToTarget


def to_target(runs: list[Run], column: str) -> Sample:
    """Return the times or the samples to the target accuracy, by seed.

    ``column`` is "time" or "samples". A value is a lower bound if its run missed the target, and an upper bound if the
    run had reached the target at its first snapshot.
    """
    crossings = {run.attributes["seed"]: crossing(run, column) for run in runs}
    ends = {run.attributes["seed"]: float(run.curve[column][-1]) for run in runs}
    missed = frozenset(seed for seed, at in crossings.items() if at is None)
    early = frozenset(run.attributes["seed"] for run in runs if crosses_before_first(run))
    values = {seed: ends[seed] if seed in missed else at for seed, at in crossings.items()}
    return Sample(values, missed, early, sample.labels_of(runs))


def product(counts: Sample, each: Sample) -> Sample:
    """Return the product of ``counts`` and ``each``, by seed.

    The product for a seed is None if one of the two factors is unknown. Values of ``counts`` may be bounds, and the
    products are then bounds of the same kind.
    """
    values = {
        seed: None if count is None or each.values.get(seed) is None else count * each.values[seed]
        for seed, count in counts.values.items()
    }
    known = {seed for seed, value in values.items() if value is not None}
    return Sample(values, counts.bounds & known, counts.upper & known, each.algorithms)
