"""Comparisons that several papers make: one algorithm against others in time, with stragglers and slow links."""

import math
from collections.abc import Iterable

from experiments import papers
from experiments.tables.draw import Panel
from experiments.tables.numbers import NOT_REACHED, all_at_least, median_and_range, percent, saving
from experiments.tables.report import read_claims
from experiments.tables.requests import EQUAL, MIN_DIFFERENCE_PERCENT, SOURCES, RunRequests, Scenario
from experiments.tables.run_spec import MEASURED, SIMULATED
from experiments.tables.section import Section

SHARED_TRAJECTORY_NOTE = (
    "Synchronous algorithms ({}) do the same in a step whatever time it takes, so their time to the target accuracy "
    "is computed: steps to it, of trainings in simulated time, times the time of a step, measured or simulated. Those "
    "that apply the same gradient (ring all-reduce, SSGD, CSSGD) share the trainings of a single rank with a batch n "
    "times as large, or, with batch normalisation, of n ranks; they differ from it in the order of the samples and in "
    "rounding. The time of asynchronous ones is "
    "that of the first snapshot at or above the target, so it is known to the distance of two snapshots."
)
MIN_DIFFERENCE_NOTE = (
    f"less counts from {MIN_DIFFERENCE_PERCENT[MEASURED]:g} % on if measured, "
    f"{MIN_DIFFERENCE_PERCENT[SIMULATED]:g} % if simulated"
)


def time_to_accuracy(
    requests: RunRequests,
    section: Section,
    claim: str,
    configs: dict[str, str],
    scenarios: dict[Scenario, str],
    synchronous: str,
):
    """The first of the configurations, by name, against the others, under all scenarios, measured and simulated.

    scenarios: with why the claim does not hold there, if it should not. synchronous: the names of those that are.
    """
    ours, *others = configs
    panels, rows, measured, cases, reasons = [], [], [], {}, []
    for scenario, reason in scenarios.items():
        times = {
            (source, n): {name: requests.seconds(config, n, source, scenario) for name, config in configs.items()}
            for source in (MEASURED, SIMULATED)
            for n in rank_counts(requests, source, scenario)
        }
        rows += [
            [scenario.name, f"{SOURCES[source]}, n = {n}", *map(median_and_range, values.values())]
            for (source, n), values in times.items()
        ]
        lines = {
            f"{name}, {SOURCES[source]}": {n: times[source, n][name] for n in rank_counts(requests, source, scenario)}
            for name in configs
            for source in (MEASURED, SIMULATED)
        }
        panels.append(Panel(scenario.name, "ranks n", "time to accuracy [s]", lines, logx=True))
        savings = {
            other: {where: saving(values[ours], values[other]) for where, values in times.items()} for other in others
        }
        measured.append(
            f"{scenario.name}: "
            + ", ".join(f"{savings_range(savings[other].values())} than {other}" for other in others)
        )
        for other in others:
            beyond = [saved - MIN_DIFFERENCE_PERCENT[source] for (source, _), saved in savings[other].items()]
            holds = all_at_least(beyond, 0)
            cases[f"{scenario.name}, against {other}"] = holds
            if not holds and reason not in reasons:
                reasons.append(reason)
    section.figure("Time to the target accuracy; median and range of the seeds.", panels)
    section.table(
        "Seconds to the target accuracy: median (range) of the seeds.", ["ranks and links", "time", *configs], rows
    )
    section.finding(
        claim,
        "; ".join(measured),
        f"time to accuracy, measured and simulated, all n; {MIN_DIFFERENCE_NOTE}",
        cases,
        " ".join(reasons),
    )
    section.note(SHARED_TRAJECTORY_NOTE.format(synchronous))


def claim(name: str) -> dict:
    """Return the claim of this id, as its paper's claims.toml has it."""
    return read_claims([papers.folder(name.partition("-")[0])])[name]


def rank_counts(requests: RunRequests, source: str, scenario: Scenario = EQUAL) -> tuple[int, ...]:
    """Numbers of ranks that train, for times of this source; none where slow links cannot be had."""
    if source == SIMULATED:
        return requests.scale.ranks
    return requests.scale.clock_ranks if requests.emulated or not scenario.slow_links else ()


def savings_range(savings: Iterable[float]) -> str:
    """Return the least and the greatest saving, in words."""
    known = sorted(value for value in savings if not math.isnan(value))
    if not known:
        return "not known how much less"
    there = [value for value in known if not math.isinf(value)]
    if not there:
        return NOT_REACHED
    least, most = percent(there[0]), percent(there[-1])
    missed = f" (target not reached in {len(known) - len(there)} of {len(known)})" if len(there) < len(known) else ""
    return (least if least == most else f"from {least} to {most}") + missed
