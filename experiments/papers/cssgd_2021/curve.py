"""The time that CSSGD's best redundancy saves over SSGD by multicast, as a curve over Tcomm / Tcalc.

Tcomm / Tcalc is the ratio of communication to computing time. The saving that the paper's abstract states is one point
of the curve. The speeds of links and processors determine the ratio Tcomm / Tcalc, and thus the point of the curve
that a measurement shows. The experiment's result is therefore the curve, with the least Tcomm / Tcalc at which CSSGD
saves time, and the least at which it saves the paper's number. A calibration of a testbed gives only one example of
the ratio Tcomm / Tcalc.
"""

import csv
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from coding.time_model import step_seconds as modelled_seconds
from experiments import papers
from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.redundancy import communication_ratio, needed
from experiments.papers.cssgd_2021.tasks import CNN, DNN, MULTICAST, SHARED, Task
from experiments.runner import decide
from experiments.runner.outcome import BY_CONSTRUCTION, BreakEven, Case
from experiments.runner.run_spec import MEASURED
from experiments.runner.sample import Sample
from experiments.tables.claims import read_claims
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found

RATIOS = 0.1, 1000.0
"""Least and greatest ratio of communication to computing time (Tcomm / Tcalc) for which the curve is computed."""
SHOWN_RATIOS = 0.5, 100.0
"""Least and greatest ratio of communication to computing time (Tcomm / Tcalc) that the figure shows."""
MEASURED_POINTS = Path(__file__).with_name("ip_multicast.csv")
"""CSV file of measured times of a CSSGD step by IP multicast on a testbed.

Each time in the file is divided by the time of a step of SSGD by multicast in the same round. Each row of the CSV file
has the commit of the code that measured it. The ratio Tcomm / Tcalc on 4 nodes is computed from the step with r = n,
in which nothing is sent.
"""


class Scheme(NamedTuple):
    """A scheme of sending gradients, by its name in `coding.cost`.

    If ``has_redundancy`` is true, the scheme's redundancy r is the best of 1 to n-1; if false, r is 1.
    """

    name: str
    has_redundancy: bool = True


CSSGD, GROUPED, ALLREDUCE = Scheme("coded"), Scheme("grouped-rs"), Scheme("ring", False)


def saving(scheme: Scheme, n: int, ratio: float) -> float:
    """Return the time of a step that the scheme saves with its best redundancy, in per cent of SSGD by multicast.

    The saving is computed from the bytes that a shared medium has to carry. ``ratio``: the ratio of communication to
    computing time (Tcomm / Tcalc) of SSGD by multicast.
    """
    redundancies = range(1, n) if scheme.has_redundancy else [1]
    least = min(modelled_seconds(scheme.name, n, r, 1.0, ratio / n) for r in redundancies)
    return 100 * (1 - least / modelled_seconds("ssgd-multicast", n, 1, 1.0, ratio / n))


def reaches(scheme: Scheme, n: int, percent: float) -> float | None:
    """Return the least Tcomm / Tcalc (communication to computing) at which the scheme saves ``percent`` per cent.

    Returns None if no ratio suffices.
    """
    least, greatest = RATIOS
    if saving(scheme, n, greatest) < percent:
        return None
    return float(brentq(lambda ratio: saving(scheme, n, ratio) - percent, least, greatest, xtol=1e-9))


# ---- functions on measurements


class CurvePoint(NamedTuple):
    """Measured steps on ``nodes`` nodes.

    shares: time of a CSSGD step divided by the time of a step of SSGD by multicast, by round.
    """

    task: str
    nodes: int
    r: int
    ratio: float
    shares: Sample


def measured_points() -> Iterator[CurvePoint]:
    """Yield the measurements in the file `MEASURED_POINTS`."""
    rows = csv.DictReader(MEASURED_POINTS.read_text(encoding="utf-8").splitlines())
    for (task, nodes, r, ratio), own in groupby(rows, itemgetter("task", "nodes", "r", "ratio")):
        shares = Sample({int(row["round"]): float(row["share"]) for row in own})
        yield CurvePoint(task, int(nodes), int(r), float(ratio), shares)


def point_case(point: CurvePoint, number: float) -> Case:
    """Return the comparison (case) of a measurement with SSGD by multicast."""
    where = f"{point.task}, n = {point.nodes}, IP multicast, Tcomm / Tcalc = {point.ratio:g}"
    once = Sample(dict.fromkeys(point.shares.values, 1.0))
    return decide.less(point.shares, once, where, MULTICAST.name, number=number, source=MEASURED, pairs=True)


# ---- functions that draw figures and write tables

ACCOUNTING = (
    "time of a step: measured by IP multicast in two rounds, which decide little; and computed from counted bytes, for "
    "a shared medium with this Tcomm / Tcalc"
)
REASON = (
    "The saving is a function of Tcomm / Tcalc, which depends on links, processors and models. The paper's own best r "
    "tells the Tcomm / Tcalc of the paper's testbed."
)


def needs(conditions) -> dict:
    parts = [tasks.steps(conditions, task, [SHARED], lambda n, network: [MULTICAST]) for task in (DNN, CNN)]
    return {key: need for part in parts for key, need in part.items() if key[-1] == conditions.scale.tuning_ranks}


def show(found: Found, section: Section):
    n, rows = found.conditions.scale.tuning_ranks, []
    numbers = paper_numbers()
    here = {task: communication_ratio(found, task, SHARED, n) for task in (DNN, CNN)}
    measured = {task: {p.ratio: point_case(p, numbers[task]) for p in points_of(task)} for task in (DNN, CNN)}
    section.figure(
        "Time of a step saved over SSGD by multicast, over Tcomm / Tcalc, computed from counted bytes; points are "
        "measured by IP multicast.",
        [panel(n, numbers, here, measured)],
        times=False,
    )
    for task, number in numbers.items():
        even, reached = (reaches(CSSGD, n, percent) for percent in (0.0, number))
        least, most = (saving(CSSGD, n, ratio) for ratio in window(task.best_r))
        section.break_even(break_even(task, even, reached, here[task]))
        there = needed(task.best_r), f"{least:.0f} to {most:.0f} %", here[task].text()
        rows.append([task.name, *map(text, (even, reached)), *there])
        cases = [*measured[task].values(), *facts(n, task, number, even, reached, most)]
        section.finding(task.claim, ACCOUNTING, cases, REASON)
    section.table(
        f"Tcomm / Tcalc of SSGD by multicast, {n} nodes on a shared medium: the least ratio at which CSSGD with its "
        "best r saves time; the least ratio at which CSSGD saves the paper's number; the ratios at which the paper's r "
        "is the best, with CSSGD's saving at these ratios; and the ratio on this testbed.",
        ["model", "saves time from", "saves the paper's number from", "the paper's r needs", "and saves then", "here"],
        rows,
    )
    section.note(tasks.NETWORKS_NOTE)


def paper_numbers() -> dict[Task, float]:
    """Return the time that CSSGD saves over SSGD by multicast according to the paper, in per cent, by task."""
    claims = read_claims([papers.folder("cssgd")])
    return {task: claims[task.claim]["ssgd_multicast"] for task in (DNN, CNN)}


def break_even(task: Task, even: float | None, reached: float | None, here: Sample) -> BreakEven:
    """Return the least Tcomm / Tcalc at which CSSGD saves time, and the least at which it saves the paper's number.

    The two ratios of communication to computing time (Tcomm / Tcalc) are exact, because they follow from counted bytes.
    """
    at = [] if here.median() is None else [here.median()]
    return BreakEven(f"CSSGD, {task.name} (bytes only)", MULTICAST.name, even, even, even, *SHOWN_RATIOS, at, reached)


def window(r: int) -> tuple[int, int]:
    """Return the least and the greatest Tcomm / Tcalc at which redundancy ``r`` is the best in the paper's model."""
    return r * (r - 1), r * (r + 1)


def points_of(task: Task) -> Iterator[CurvePoint]:
    return (point for point in measured_points() if point.task == task.name)


def text(ratio: float | None) -> str:
    return "nowhere" if ratio is None else f"{ratio:.3g}"


def facts(n: int, task: Task, number: float, even: float | None, reached: float | None, most: float) -> list[Case]:
    """Return the comparisons (cases) that follow from computed bytes alone.

    even, reached: the ratios Tcomm / Tcalc from which on CSSGD saves time, and saves the paper's number. most:
    greatest saving, in per cent, at the ratios at which the redundancy that the paper finds best is the best in the
    paper's model.
    """
    where, ratio = f"{task.name}, n = {n}, shared medium", "Tcomm / Tcalc"
    return [
        decide.fact(even is not None, f"{where}: CSSGD saves time from", "", BY_CONSTRUCTION, even, ratio),
        decide.fact(
            reached is not None, f"{where}: CSSGD saves {number:g} % from", "", BY_CONSTRUCTION, reached, ratio
        ),
        decide.fact(
            most >= number,
            f"{where}: greatest saving at the {ratio} of the paper's best r, {needed(task.best_r)}",
            "",
            BY_CONSTRUCTION,
            most,
            "% less time",
        ),
    ]


def panel(n: int, numbers: dict[Task, float], here: dict[Task, Sample], measured: dict[Task, dict]) -> Panel:
    """Return a panel: CSSGD's savings on several numbers of nodes, break-evens, the paper's numbers, measurements.

    measured: comparisons of measurements, by task and by Tcomm / Tcalc.
    """
    ratios = np.geomspace(*SHOWN_RATIOS, 61).tolist()
    curves = {f"CSSGD, n = {nodes}": (CSSGD, nodes) for nodes in sorted({4, 6, n})}
    curves |= {f"grouped (ours), n = {n}": (GROUPED, n), f"ring all-reduce, n = {n}": (ALLREDUCE, n)}
    even = {name: reaches(*curve, 0.0) for name, curve in curves.items()}
    reached = {f"the paper's {number:g} %": reaches(CSSGD, n, number) for number in numbers.values()}
    at = {f"{task.name} here": ratio.median() for task, ratio in here.items()}
    return Panel(
        f"{n} nodes, shared medium",
        "Tcomm / Tcalc of SSGD by multicast",
        "time of a step saved [%]",
        {name: {ratio: saving(*curve, ratio) for ratio in ratios} for name, curve in curves.items()},
        estimates={f"{task.name}, IP multicast": cases for task, cases in measured.items()},
        controls=[name for name in curves if not name.startswith("CSSGD")],
        levels={f"the paper, {task.name}": number for task, number in numbers.items()},
        marks={name: ratio for name, ratio in (even | reached | at).items() if ratio is not None},
        logx=True,
    )
