"""The comparison of adsp with each other strategy over varied delays.

The figure shows the delays from which on adsp saves time.
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import CONSTANT, MIN_SAVING, OURS, RANDOM, Delays
from experiments.papers.adsp_2024.speed import seconds_per_gradient
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.outcome import Case
from experiments.runner.run_spec import TIMING_ONLY
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.link_rates import break_even
from experiments.tables.section import Section
from experiments.tables.targets import Found

SWEEPS = {
    "steps": ("mean random delay [steps]", "mean delay {:g} steps", RANDOM, (2.0, 10.0, 30.0)),
    "factor": ("slow worker, times slower", "a worker {:g} times slower", CONSTANT, (2.0, 4.0, 8.0)),
    "probability": ("probability of a delay", "delays of probability {:g}", RANDOM, (0.01, 0.05, 0.2)),
}
"""The varied delays by field of ``Delays``.

An entry of ``SWEEPS`` has the title of an axis, the text for a value, the delays of which the field is varied, and the
values of the field.
"""
NAMES = (OURS, "BSP", "ASP")
"""Names of adsp, of the strategy that waits for all workers, and of the strategy that waits for none."""
UNIT = "% less time per gradient"
Point = tuple[str, float]
"""Name of the varied field of ``Delays``, and its value."""


def points(conditions: Conditions) -> Iterator[tuple[Point, Delays]]:
    for field, (_, _, delays, values) in SWEEPS.items():
        for value in values:
            if field != "probability" or not compared.is_small(conditions):
                yield (field, value), replace(delays, **{field: value})


def needs(conditions: Conditions) -> dict[tuple[Point, str], Trainings]:
    return {
        (point, name): compared.training(conditions, name, delays, TIMING_ONLY)
        for point, delays in points(conditions)
        for name in NAMES
    }


def show(found: Found, section: Section) -> None:
    seconds = {key: sample.of(runs, seconds_per_gradient) for key, runs in found.items()}
    swept = dict.fromkeys(point for point, _ in found)
    savings = {
        other: {point: saving(seconds, point, OURS, other) for point in swept} for other in NAMES if other != OURS
    }
    section.figure(
        "Time that adsp saves per gradient of all workers, in the second half of the run. A vertical line marks the "
        "break-even.",
        [panel(field, savings) for field in dict.fromkeys(field for field, _ in swept)],
    )
    section.table(
        f"Seconds per gradient of all workers in the second half of the run, {compared.where(found.conditions)}.",
        ["delays", *NAMES],
        [[words(point), *(seconds[point, name].text() for name in NAMES)] for point in swept],
    )
    section.finding(
        "adsp-heterogeneity",
        "seconds per gradient of all workers in the second half of the run, in simulated time, no gradient computed, "
        f"n = {compared.workers(found.conditions)}",
        [case for point, case in savings["BSP"].items() if point[0] != "factor"]
        + [saving(seconds, point, "ASP", OURS) for point in swept if point[0] == "factor"],
        "Delays shorter than a step disappear in the variation of computing times.",
    )
    section.note(compared.DELAYS_NOTE)
    section.note("These times leave out the samples that late gradients cost: see adsp-convergence-time.")


def saving(seconds: dict[tuple[Point, str], Sample], point: Point, ours: str, theirs: str) -> Case:
    condition = words(point) if ours == OURS else f"{ours}, {words(point)}"
    return decide.less(seconds[point, ours], seconds[point, theirs], condition, theirs, UNIT)


def words(point: Point) -> str:
    field, value = point
    return SWEEPS[field][1].format(value)


def panel(field: str, savings: dict[str, dict[Point, Case]]) -> Panel:
    """Return a panel of adsp's savings over a field of ``Delays``, with the break-even against each other strategy."""
    axis, _, delays, _ = SWEEPS[field]
    estimates = {
        other: {value: case for (of, value), case in cases.items() if of == field} for other, cases in savings.items()
    }
    even = {other: break_even(OURS, other, cases).at for other, cases in estimates.items()}
    return Panel(
        delays.name,
        axis,
        "time saved [%]",
        estimates=estimates,
        levels={"no difference": 0.0, "the paper's least saving": MIN_SAVING},
        marks={other: at for other, at in even.items() if at is not None},
        logx=field != "factor",
    )
