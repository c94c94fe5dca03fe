"""Forecasts of how long the runs of targets (tables or figures of a paper) will take, and which runs exist already."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from experiments.runner.costs import Costs, kind, seconds_taken
from experiments.runner.networks import Measurement
from experiments.runner.plan import Plan
from experiments.runner.progress import duration, hours_of
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, RunSpec
from grsgd.data.base import MissingData
from grsgd.data.fetch import RECIPES

SOURCES = {
    SIMULATED: "simulated",
    UNIT_STEPS: "steps of a second",
    TIMING_ONLY: "times only",
    MEASURED: "measured",
}

CALIBRATION_SECONDS, WORK_SECONDS = 60, 3
"""Approximate seconds in which a model is calibrated at one link rate, and in which an algorithm's work is measured.

The work is the part of a step's seconds that exceeds the computation of the gradient.
"""


@dataclass
class Forecast:
    """The runs that a target (table or figure) needs, without runs that an earlier target in the list needs.

    sources: numbers of runs by the source of their times (for example simulated or measured). there: number of runs
    that exist. missing: numbers of missing runs, by kind of run.
    """

    sources: Counter[str] = field(default_factory=Counter)
    there: int = 0
    took: float = 0.0
    """Sum of the seconds that the target's existing runs took."""
    missing: Counter[RunSpec] = field(default_factory=Counter)
    calibrations: set[Measurement] = field(default_factory=set)
    """Missing measurements: calibrations, and measurements of algorithms' work."""

    def hours(self, costs: Costs, workers: int) -> float:
        """Return the estimated hours for all missing runs and measurements, with ``workers`` simulations at a time."""
        calibrating = sum(WORK_SECONDS if one.work else CALIBRATION_SECONDS for one in self.calibrations)
        return hours_of(self.missing, workers, costs) + calibrating / 3600


def forecast_targets(plans: Iterable[Plan], costs: Costs) -> dict[str, Forecast]:
    """Return the forecast of each target (table or figure).

    The durations of existing runs are added to ``costs`` and improve the estimates.
    """
    return {target: forecast for plan in plans for target, forecast in forecast_plan(plan, costs).items()}


def forecast_plan(plan: Plan, costs: Costs) -> dict[str, Forecast]:
    """Return the forecast of each target (table or figure) of a plan.

    If the learning rate of a run is not known yet, a rate of the grid replaces it in the forecast. The trainings that
    tune an unknown learning rate are counted without the two ends of the grid.
    """
    found, seen, calibrations = {}, set(), set()
    for target, specs in plan.planned_runs().items():
        found[target] = forecast = Forecast()
        for spec in specs:
            if (key := identity(spec)) in seen:
                continue
            seen.add(key)
            forecast.sources[spec.source] += 1
            if (run := plan.find(spec)) is None:
                forecast.missing[kind(spec)] += 1
                forecast.calibrations |= plan.store.networks.missing(spec) - calibrations
                calibrations |= forecast.calibrations
            else:
                forecast.there += 1
                forecast.took += seconds_taken(run)
                costs.learn(spec, run)
    return found


def identity(spec: RunSpec) -> str:
    """Return a text that is equal for equal runs, even if their specifications are written differently."""
    where = "" if spec.source == UNIT_STEPS else f"{spec.link} {spec.slow_hosts} {spec.compute} {spec.place}"
    return spec.name(where)


def format_table(found: dict[str, Forecast], costs: Costs, workers: int) -> str:
    """Return the forecasts as a table, with a line for their sum.

    workers: number of simulations at a time.
    """
    rows = []
    for target, forecast in found.items():
        numbers = [forecast.sources[source] for source in SOURCES]
        hours = f"{forecast.hours(costs, workers):.2f}"
        rows.append([target, *numbers, forecast.there, forecast.missing.total(), hours])
    headers = ["target", *SOURCES.values(), "are there", "missing", "hours"]
    table = tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
    return f"{table}\n\n{sum_up(found.values(), costs, workers)}"


def sum_up(found: Iterable[Forecast], costs: Costs, workers: int) -> str:
    """Return the sum of several forecasts as one line of text."""
    whole = Forecast()
    for forecast in found:
        whole.missing += forecast.missing
        whole.there += forecast.there
        whole.took += forecast.took
        whole.calibrations |= forecast.calibrations
    clock = Counter({spec: count for spec, count in whole.missing.items() if spec.source == MEASURED})
    hours, by_clock = (duration(part) for part in (whole.hours(costs, workers), hours_of(clock, workers, costs)))
    longest = duration(max(map(costs.seconds, whole.missing), default=0) / 3600)
    took = f" and took {duration(whole.took / 3600)} of a core" if whole.there else ""
    works = sum(bool(one.work) for one in whole.calibrations)
    return (
        f"{whole.missing.total() + whole.there} runs, {whole.there} of them exist{took}; the others, with "
        f"{len(whole.calibrations) - works} calibrations and the work of {works} algorithms, take about {hours}, "
        f"{by_clock} of wall time, with {workers} simulation{'s' * (workers != 1)} side by side; the longest takes "
        f"{longest}{downloads(whole.missing)}"
    )


def downloads(missing: Iterable[RunSpec]) -> str:
    """Return a text with the data sets that are downloaded before the missing runs; "" if all data are on the disk."""
    sets = [f"{name} ({RECIPES[name].megabytes:g} MB, into {folder})" for name, folder in to_fetch(missing)]
    return f"; before them, {' and '.join(sets)} will be fetched" if sets else ""


def to_fetch(missing: Iterable[RunSpec]) -> list[tuple[str, str]]:
    """Return the public data sets that the missing runs need and that are not on the disk yet.

    Each pair has the name of a data set and the folder for its files.
    """
    wanted = {(data.name, data.dir) for spec in missing if (data := spec.load().data).name in RECIPES}
    return [each for each in sorted(wanted) if not is_there(*each)]


def is_there(name: str, folder: str) -> bool:
    try:
        RECIPES[name].find(Path(folder).expanduser())
    except MissingData:
        return False
    return True
