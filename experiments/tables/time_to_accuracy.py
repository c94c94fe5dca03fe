"""The comparison of times to the target accuracy, in several scenarios of slow links and stragglers."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need, SamplesToTarget, TimeToTarget
from experiments.runner.outcome import CONTROL, EVIDENCE, SUPPORTED, Case
from experiments.runner.run_spec import MEASURED
from experiments.runner.sample import Sample
from experiments.runner.setting import EQUAL, Scenario, Setting
from experiments.tables.compare import (
    ALONE,
    CONTROLS,
    SECONDS,
    SHARED_TRAJECTORY_NOTE,
    TIMES,
    Settings,
    condition,
    is_desk,
    map_needs,
    places,
    quotient,
    settings_at,
    settled,
    show_values,
)
from experiments.tables.section import Section
from experiments.tables.targets import Found
from experiments.tables.wording import SOURCES

FEW_SEEDS = 3
"""Number of seeds of measured trainings, each of which takes minutes."""
DESK_SEEDS = 10
"""Number of seeds of trainings at SCALE=desk.

If trainings vary by 6 %, ten seeds suffice to find a difference of 10 % of time.
"""
SAMPLES = "samples"
"""First element of the keys of needs for the number of samples to the target accuracy."""


@dataclass(frozen=True)
class TimeToAccuracy:
    """The comparison of one algorithm's time to the target accuracy with other algorithms'.

    Parameters
    ----------
    claims
        The id of the claim for which a comparison is evidence, by name of the other algorithm.
    configs
        Configurations by name of the algorithm. The first name in ``configs`` is the algorithm of the claims.
    alone
        The configuration of ranks that never communicate.
    scenarios
        Scenarios, each with the reason why a claim may not hold in it.
    measured
        The scenarios in which runs are measured in addition to simulated runs.
    by_clock, at_desk
        Names of the algorithms that are compared in measured runs, and at SCALE=desk, including controls. At
        SCALE=desk, no scenario has slow links, which would make no difference, because the computation of a step takes
        long. At SCALE=desk, no trainings are measured, because they would take too long.
    later
        Names of algorithms that were published after the paper. Comparisons with these algorithms do not count as
        evidence.
    """

    claims: Mapping[str, str]
    configs: Mapping[str, str]
    alone: str
    scenarios: Mapping[Scenario, str]
    measured: tuple[Scenario, ...]
    by_clock: tuple[str, ...]
    at_desk: tuple[str, ...]
    later: tuple[str, ...] = ()

    def settings(self, conditions: Conditions) -> Settings:
        if is_desk(conditions):
            fast = [scenario for scenario in self.scenarios if not scenario.slow_links]
            return self.of(places(conditions, fast), self.at_desk)
        there = places(conditions, self.scenarios, self.measured)
        by_clock = [place for place in there if place.source == MEASURED]
        simulated = [place for place in there if place.source != MEASURED]
        return self.of(simulated, (*self.configs, *CONTROLS)) | self.of(by_clock, self.by_clock)

    def of(self, there: Iterable[Setting], names: tuple[str, ...]) -> Settings:
        found = settings_at(there, self.configs | dict.fromkeys(CONTROLS, self.alone))
        for some in found.values():
            some[ALONE] = some[ALONE].but(ranks=1, scenario=EQUAL)
        return {place: {name: some[name] for name in names} for place, some in found.items()}

    def needs(self, conditions: Conditions) -> dict[Hashable, Need]:
        def need(setting: Setting) -> Need:
            seeds = DESK_SEEDS if is_desk(conditions) else None
            if setting.source == MEASURED:
                seeds = min(FEW_SEEDS, len(conditions.seeds(setting.source, None)))
            return TimeToTarget(setting, seeds, settled(conditions, setting))

        times = map_needs(need, self.settings(conditions))
        return times | {(SAMPLES, one): SamplesToTarget(one, time.seeds) for one, time in times.items()}

    def show(self, found: Found, section: Section) -> dict[Setting, dict[str, Sample]]:
        """Write the times to the target accuracy into the section; return them by place (setting) and name."""
        times = {
            place: {name: found[one] for name, one in some.items()}
            for place, some in self.settings(found.conditions).items()
        }
        show_values(section, SECONDS, "seconds", times)
        self.show_factors(found, section, times)
        for claim in dict.fromkeys(self.claims.values()):
            cases = {place: self.cases(claim, found.conditions, place, some) for place, some in times.items()}
            reasons = dict.fromkeys(
                self.scenarios[place.scenario]
                for place, some in cases.items()
                if any(case.kind == EVIDENCE and case.verdict != SUPPORTED for case in some)
            )
            section.finding(claim, TIMES, [case for some in cases.values() for case in some], " ".join(reasons))
        section.note(SHARED_TRAJECTORY_NOTE)
        return times

    def show_factors(self, found: Found, section: Section, times: Mapping[Setting, Mapping[str, Sample]]):
        """Write into the section the algorithm's savings in samples to the target, and in seconds per sample.

        The number of samples to the target varies from training to training, but the seconds per sample vary little.
        """
        ours, *others = self.configs
        rows = []
        for place, settings in self.settings(found.conditions).items():
            samples = {name: found[SAMPLES, one] for name, one in settings.items()}
            paces = {name: quotient(times[place][name], samples[name]) for name in settings}
            for other in (name for name in others if name in settings):
                options = {"pairs": found.conditions.share_numbers(settings[ours], settings[other])}
                saved = [
                    decide.less(values[ours], values[other], "", other, unit, source=place.source, **options).text()
                    for values, unit in ((samples, "% fewer samples"), (paces, "% less time per sample"))
                ]
                rows.append([condition(place), SOURCES[place.source], other, *saved])
        caption = f"Savings of {ours} in the two factors of its time: samples to the target accuracy, time per sample."
        section.table(caption, ["ranks and links", "time", "against", "samples", "time per sample"], rows)

    def cases(self, claim: str, conditions: Conditions, place: Setting, times: Mapping[str, Sample]) -> list[Case]:
        """Return the comparisons of the algorithm at one place (setting), with other algorithms and with controls."""
        ours, *_ = self.configs
        settings = self.of([place], tuple(times))[place]
        kinds = {other: EVIDENCE for other, decides in self.claims.items() if decides == claim}
        return [
            decide.less(
                times[ours],
                times[other],
                condition(place),
                other,
                source=place.source,
                kind=kind,
                pairs=conditions.share_numbers(settings[ours], settings[other]),
            )
            for other, kind in (kinds | dict.fromkeys((*self.later, *CONTROLS), CONTROL)).items()
            if other in times
        ]
