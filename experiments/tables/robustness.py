"""The comparison of times to the target accuracy with several values of the options that a paper leaves open."""

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need, TimeToTarget
from experiments.runner.setting import Scenario, Setting
from experiments.tables.compare import SECONDS, TIMES, Settings, condition, map_needs, settled, show_values
from experiments.tables.section import Section
from experiments.tables.targets import Found


@dataclass(frozen=True)
class Robustness:
    """The comparison of one algorithm's time with another's over the options that a paper leaves open.

    claim: the id of the claim for which the comparison is evidence. config: configuration of the algorithm. other:
    name and configuration of the other algorithm. options: overrides of the algorithm's options, by name of the
    variant. scenario: scenario of the simulated runs.
    """

    claim: str
    config: str
    other: tuple[str, str]
    options: Mapping[str, tuple[str, ...]]
    scenario: Scenario

    def settings(self, conditions: Conditions) -> Settings:
        place = Setting("", conditions.scale.tuning_ranks, scenario=self.scenario)
        ours = {option: place.but(config=self.config, overrides=some) for option, some in self.options.items()}
        name, config = self.other
        return {place: ours | {name: place.but(config=config)}}

    def needs(self, conditions: Conditions) -> dict[Setting, Need]:
        return map_needs(
            lambda setting: TimeToTarget(setting, steps=settled(conditions, setting)), self.settings(conditions)
        )

    def show(self, found: Found, section: Section):
        ((place, settings),) = self.settings(found.conditions).items()
        times = {name: found[one] for name, one in settings.items()}
        other, _ = self.other
        show_values(section, SECONDS, "seconds", {place: times})
        cases = [decide.less(times[option], times[other], option, other) for option in self.options]
        section.finding(self.claim, f"{TIMES}; {condition(place)}", cases)
        section.note("All options have the learning rate that was tuned for the default options.")
