"""The plan of a command: all runs that the chosen targets (tables or figures of a paper) need, and which exist."""

from collections.abc import Hashable, Iterable
from contextlib import suppress

from experiments.runner.conditions import Conditions
from experiments.runner.learning_rates import LearningRates, MissingRun
from experiments.runner.needs import STOPS_AT_TARGET, Need, RateOf
from experiments.runner.run_spec import MEASURED, RunSpec
from experiments.runner.setting import Setting
from experiments.runner.store import Store
from grsgd.runs.run_file import Run

Needs = dict[Hashable, Need]


class Plan:
    """The needs of each target (table or figure of a paper), and the runs that the store has for them.

    A training that may stop at the target accuracy is not made if the same training without this stop exists or is
    needed.
    """

    def __init__(self, conditions: Conditions, store: Store, needs: dict[str, Needs]):
        self.conditions, self.store, self.needs = conditions, store, needs
        self.read: dict[RunSpec, Run] = {}
        self.rates = LearningRates(conditions, self.find)

    def find(self, spec: RunSpec) -> Run | None:
        """Return the run of a specification if it exists and has finished, else None."""
        if spec not in self.read and (run := self.store.find(spec)) is not None:
            self.read[spec] = run
        return self.read.get(spec)

    def settings(self, target: str) -> list[Setting]:
        """Return the settings of a target whose results depend on learning rates, which must be tuned."""
        return [need.setting for need in self.needs[target].values() if need.is_tuned(self.conditions)]

    def trials(self, targets: Iterable[str] | None = None) -> list[RunSpec]:
        """Return the missing trials that tune learning rates, for ``targets`` or for all targets.

        Further trials follow from the results of the returned trials.
        """
        return self.rates.missing(setting for target in targets or self.needs for setting in self.settings(target))

    def needed(self, target: str, rate_of: RateOf | None = None) -> list[RunSpec]:
        """Return the specifications of the runs that a target needs, without repetitions, in the order of its needs.

        The measured runs of a target are all from one machine. rate_of: function that returns the learning rate of a
        setting; by default, the function returns the tuned rate. Raises MissingRun if a learning rate is not known yet.
        """
        needs = self.needs[target].values()
        specs = dict.fromkeys(
            spec for need in needs for spec in need.specs(self.conditions, rate_of or self.rates.rate)
        )
        place = self.store.place([spec for spec in specs if spec.source == MEASURED])
        return [with_place(spec, place) for spec in specs]

    def specs(self, targets: Iterable[str] | None = None) -> list[RunSpec]:
        """Return the runs that ``targets`` or all targets need, without repetitions.

        Targets with an unknown learning rate are left out.
        """
        by_target = self.specs_by_target(self.rates.rate)
        return list(dict.fromkeys(spec for target in targets or self.needs for spec in by_target.get(target, [])))

    def specs_by_target(self, rate_of: RateOf) -> dict[str, list[RunSpec]]:
        """Return the runs that each target needs, without repetitions.

        Targets with an unknown learning rate are left out.
        """
        wanted: dict[str, list[RunSpec]] = {}
        for target in self.needs:
            # a target with an unknown learning rate is left out, and reports the missing run when it is shown
            with suppress(MissingRun):
                wanted[target] = self.needed(target, rate_of)
        is_wanted = {spec for specs in wanted.values() for spec in specs}

        def made_of(spec: RunSpec) -> RunSpec:
            return without_stop(spec) if without_stop(spec) in is_wanted else self.choose_made(spec)

        return {target: list(dict.fromkeys(map(made_of, specs))) for target, specs in wanted.items()}

    def planned_runs(self) -> dict[str, list[RunSpec]]:
        """Return, for each target, the runs that it needs and the trials of its learning rates, existing or not.

        If the learning rate of a setting is not known yet, a rate of the grid replaces it.
        """
        specs = self.specs_by_target(self.rates.guess_rate)
        trials = {target: self.rates.planned_trials(self.settings(target)) for target in self.needs}
        return {target: list(dict.fromkeys([*trials[target], *specs[target]])) for target in self.needs}

    def existing_runs(self, target: str) -> set[RunSpec]:
        """Return the runs of a target that exist, and the existing trials of its learning rates.

        The returned runs include a training without a stop if it replaces a training that may stop at the target
        accuracy.
        """
        specs = [*self.rates.list_trials(self.settings(target)), *self.needed(target, self.rates.guess_rate)]
        return {one for spec in specs for one in (spec, without_stop(spec)) if self.find(one) is not None}

    def load_runs(self, target: str) -> dict[RunSpec, Run]:
        """Return the finished runs that a target needs, in the order of its needs. Raises MissingRun."""
        return {self.choose_made(spec): self.load_run(spec) for spec in self.needed(target)}

    def is_complete(self, target: str) -> bool:
        """Return True if all runs that a target needs exist."""
        try:
            self.load_runs(target)
        except MissingRun:
            return False
        return True

    def results(self, target: str) -> dict:
        """Return the result of each need of a target, by the need's key. Raises MissingRun."""
        place = next((spec.place for spec in self.needed(target) if spec.source == MEASURED), "")

        def runs_of(specs: list[RunSpec]) -> list[Run]:
            return [self.load_run(with_place(spec, place)) for spec in specs]

        return {key: need.result(self.conditions, self.rates.rate, runs_of) for key, need in self.needs[target].items()}

    def choose_made(self, spec: RunSpec) -> RunSpec:
        """Return the specification of the run that was made for ``spec``: the training without a stop, if it exists."""
        return without_stop(spec) if self.find(without_stop(spec)) is not None else spec

    def load_run(self, spec: RunSpec) -> Run:
        """Return the finished run of a specification; raise MissingRun if it does not exist."""
        if (run := self.find(self.choose_made(spec))) is None:
            # the name of a simulated run's file depends on the measurements from which it is simulated
            is_named = not self.store.networks.missing(spec)
            raise MissingRun(self.store.path(spec).name if is_named else spec.words())
        return run


def without_stop(spec: RunSpec) -> RunSpec:
    """Return the specification of the same training as ``spec``, but without a stop at the target accuracy."""
    return spec._replace(overrides=tuple(value for value in spec.overrides if value not in STOPS_AT_TARGET))


def with_place(spec: RunSpec, place: str) -> RunSpec:
    """Return the specification of a measured run with the machine ``place``.

    The specification of a run that is not measured is returned unchanged.
    """
    return spec._replace(place=place) if spec.source == MEASURED else spec
