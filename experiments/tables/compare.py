"""Comparisons that several papers need: the settings in which algorithms are compared, and tables of the results.

Each kind of comparison is a class, whose methods ``needs`` and ``show`` are the two functions of a target. A *place*
is a setting without a configuration, in which several algorithms are compared with each other.
"""

from collections.abc import Callable, Iterable, Mapping

from experiments.runner import sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need, Steps
from experiments.runner.outcome import BY_CONSTRUCTION, EVIDENCE
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.sample import Sample, algorithms_of
from experiments.runner.scale import DESK
from experiments.runner.setting import EQUAL, Scenario, Setting
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found
from experiments.tables.wording import SOURCES
from grsgd.runs.run_file import Run
from grsgd.simulator.network import TAKES_PROCESSOR

ALONE, NEVER = "one rank alone", "ranks that never communicate"
CONTROLS = (ALONE, NEVER)
"""Names of the controls.

A comparison with the controls shows whether an algorithm succeeds because its ranks communicate.
"""
MAX_BARS = 4
"""Greatest number of groups of bars in a panel; with more groups, the panel has lines over the ranks."""
CLOCK_SEEDS = 3
"""Number of seeds of runs for measured steps, and of runs that take minutes."""
SECONDS = "Seconds to the target accuracy."
TIMES = "time to the target accuracy"
SHARED_TRAJECTORY_NOTE = (
    "A step of a synchronous algorithm has the same result whatever time the step takes. So the time to the target "
    "accuracy is computed: the number of steps in a training in simulated time, times the time of a step, measured or "
    "simulated. Ring all-reduce, SSGD and CSSGD apply the same gradient, so they share the trainings of a single rank "
    "with a batch n times as large. With batch normalisation, they share the trainings of n ranks. Own trainings would "
    "differ in the order of the samples and in rounding. Overlapped gradient push is trained as if all messages came "
    "in time, which favours this algorithm. For gossip, the average of all models is tested, which training never "
    "forms."
)

Settings = dict[Setting, dict[str, Setting]]
"""Settings by place (a setting without a configuration), and by name of the algorithm at the place."""


def places(conditions: Conditions, scenarios: Iterable[Scenario], measured: Iterable[Scenario] = ()) -> list[Setting]:
    """Return the places (settings without a configuration) in which algorithms are compared.

    Each scenario without slow hosts has a place with simulated times for each number of ranks. Each scenario in
    ``measured`` that is possible has a place with measured times for each number of ranks.
    """
    found = []
    for scenario in scenarios:
        if not scenario.slow_hosts:
            found += [Setting("", n, SIMULATED, scenario) for n in conditions.ranks(SIMULATED, scenario)]
        if scenario in measured:
            found += [Setting("", n, MEASURED, scenario) for n in conditions.ranks(MEASURED, scenario)]
    return found


def settings_at(where: Iterable[Setting], configs: Mapping[str, str]) -> Settings:
    """Return a setting for each configuration in ``configs`` at each place (setting without a configuration)."""
    return {place: {name: place.but(config=config) for name, config in configs.items()} for place in where}


def map_needs(need: Callable[[Setting], Need], settings: Settings) -> dict[Setting, Need]:
    """Return the needs that the function ``need`` makes from the settings, by setting."""
    return {setting: need(setting) for some in settings.values() for setting in some.values()}


def settled(conditions: Conditions, setting: Setting) -> int | None:
    """Return the number of steps that are timed in a run of the setting; None takes the scale's number.

    In a ring, the effect of a slow rank spreads by one rank per step. If a rank is slow, more steps are timed, so that
    most timed steps come after the effect has reached all ranks.
    """
    slow = setting.scenario.overrides or setting.scenario.slow_hosts
    return max(conditions.scale.steps, 4 * setting.ranks) if slow else None


def timed_steps(conditions: Conditions, settings: Settings) -> dict[Setting, Need]:
    """Return the needs of short runs that time steps, one for each setting.

    Measured runs have few seeds, because each measured run starts slowly.
    """

    def need(setting: Setting) -> Steps:
        few = min(CLOCK_SEEDS, conditions.scale.clock_seeds)
        return Steps(setting, few if setting.source == MEASURED else None, settled(conditions, setting))

    return map_needs(need, settings)


def samples(found: Found, settings: Settings, value: Callable[[Run], float | None]) -> dict[Setting, dict[str, Sample]]:
    """Return the number that ``value`` computes for each run, by place (setting) and name of the algorithm."""
    return {
        place: {name: sample.of(found[one], value) for name, one in some.items()} for place, some in settings.items()
    }


def where(place: Setting) -> str:
    """Return the name of a place's scenario, with the rate of the links if it is not the scale's rate."""
    rate = place.link.rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s") if place.link else ""
    links = f"links of {rate}" if place.link else ""
    return ", ".join(filter(None, [links, place.scenario.name if place.scenario != EQUAL or not links else ""]))


def condition(place: Setting) -> str:
    return f"{where(place)}, n = {place.ranks}"


def show_values(section: Section, caption: str, unit: str, values: Mapping[Setting, Mapping[str, Sample]], **figure):
    """Draw samples (values by seed), and write them as a table, by place (setting) and name of the algorithm.

    unit: unit of the values, for the axis of the figure. figure: further arguments of ``Section.figure``.
    """
    names = list(dict.fromkeys(name for some in values.values() for name in some))
    titles = dict.fromkeys(map(where, values))
    panels = [
        panel(title, unit, {place: some for place, some in values.items() if where(place) == title}) for title in titles
    ]
    section.figure(caption, panels, **figure)
    section.table(
        caption,
        ["ranks and links", "time", *names],
        [
            [where(place), source(place)] + [some[name].text() if name in some else "" for name in names]
            for place, some in values.items()
        ],
    )


def source(place: Setting) -> str:
    return f"{SOURCES[place.source]}, n = {place.ranks}"


def panel(title: str, unit: str, values: Mapping[Setting, Mapping[str, Sample]]) -> Panel:
    """Return a panel with bars, or with lines over the number of ranks if ``values`` has many places (settings).

    If ``values`` has a single place, each control with a known median is a horizontal line.
    """
    drawn: dict[str, dict] = {}
    levels: dict[str, Sample] = {}
    for place, some in values.items():
        for name, one in some.items():
            if name in CONTROLS and len(values) == 1 and one.median() is not None:
                levels[name] = one
            elif len(values) <= MAX_BARS:
                drawn.setdefault(name, {})[source(place)] = one
            else:
                drawn.setdefault(f"{name}, {SOURCES[place.source]}", {})[place.ranks] = one
    grey = [label for label in drawn if label.startswith(CONTROLS)]
    if len(values) <= MAX_BARS:
        return Panel(title, "", unit, bars=drawn, controls=grey, levels=levels)
    return Panel(title, "ranks n", unit, lines=drawn, controls=grey, logx=True)


def kind_of_pace(runs: Iterable[Run]) -> str:
    """Return the kind of comparisons (cases) on the step time of an algorithm that never waits.

    Comparisons of step times are evidence if the times are measured, or if simulated messages take processor time. If
    simulated messages take no processor time, nothing can slow the algorithm down, so that the comparisons are true by
    construction.
    """
    attributes = [run.attributes for run in runs]
    is_free = any(a["clock"] == "virtual" and TAKES_PROCESSOR not in a.get("network", "") for a in attributes)
    return BY_CONSTRUCTION if is_free else EVIDENCE


def is_desk(conditions: Conditions) -> bool:
    return conditions.scale.name == DESK.name


def quotient(ours: Sample, theirs: Sample) -> Sample:
    """Return the sample of ``ours`` divided by ``theirs``, for the seeds that the two samples have in common."""
    pairs = {seed: (value, theirs.values.get(seed)) for seed, value in ours.values.items()}
    ratios = {seed: a / b for seed, (a, b) in pairs.items() if a is not None and b}
    return Sample(ratios, algorithms=algorithms_of([ours, theirs]))
