"""Functions that draw the atlas, write it as a table, and compare it with the formula for the time of a step."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from tabulate import tabulate

from experiments.atlas import analytic
from experiments.atlas.points import METHODS, PERIODS, RATES, SLOWER, AtlasRun, periods_of
from experiments.figures import save
from experiments.tables.draw import as_svg
from grsgd.runs.measures import bytes_sent, crossing, seconds, seconds_per_step, time_split
from grsgd.runs.run_file import Run
from grsgd.runs.series import COLOURS, MARKERS
from grsgd.units import rate

LITERATURE = (1.08, 1.92)
"""Least and greatest ratio of measured seconds of a step to the formula's, as found by one independent project."""
MEGABYTE = 1e6
"""Number of bytes in a megabyte."""
NO_INTERFACES = np.full((1, 2), math.nan)
"""NaN in place of the bytes that network interfaces send, because simulated hosts have no interfaces."""


class AtlasNumbers(NamedTuple):
    """The numbers of a run that the atlas's figure and table show."""

    seconds_per_step: float
    utilisation: float
    """Fraction of the time in which ranks compute, as the mean over the ranks that train."""
    time_to_target: float
    """Seconds to the target accuracy, interpolated between two snapshots; NaN if the run missed the target."""
    megabytes: float
    """Megabytes sent by all ranks, as counted by grsgd."""
    interface_megabytes: float
    """Megabytes sent by the hosts' interfaces, headers included; NaN in simulated time."""

    @classmethod
    def of(cls, run: Run) -> "AtlasNumbers":
        interfaces = run.traffic.get("interface", NO_INTERFACES)
        return cls(
            seconds_per_step(run),
            time_split(run)["compute"] / seconds(run),
            math.nan if (reached := crossing(run, "time")) is None else reached,
            bytes_sent(run) / MEGABYTE,
            float(interfaces[:, 0].sum()) / MEGABYTE,
        )


Results = Mapping[AtlasRun, AtlasNumbers]
"""The numbers (`AtlasNumbers`) of each finished run of the atlas."""


def draw(results: Results, out: Path):
    """Draw the utilisation of processors and the time to the target over the rate of the links.

    The figure has one column for each task with and without a straggler. Solid lines show simulated runs, and markers
    show measured runs. Dashed grey lines show the formula for methods that wait for an all-reduce, one line per period
    of exchanges.
    """
    # the language model with a straggler is left out, because it has single points only, which make no curve
    columns = [("gpt", 1), *(("cnn", slower) for slower in SLOWER)]
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, len(columns), sharex=True, squeeze=False)
    rates = [rate(name) * 8 / 1e6 for name in RATES]
    for column, (task, slower) in enumerate(columns):
        above, below = panels[0][column], panels[1][column]
        for period in PERIODS:
            points = [AtlasRun(task, "local_sgd", period, name, slower, False) for name in RATES]
            above.plot(rates, [analytic.utilisation(point) for point in points], "--", color="0.5", linewidth=1)
        for index, method in enumerate(METHODS):
            colour, period = COLOURS[index % len(COLOURS)], min(PERIODS[1], max(periods_of(method)))
            for panel, what in ((above, "utilisation"), (below, "time_to_target")):
                for measured in (False, True):
                    points = [AtlasRun(task, method, period, name, slower, measured) for name in RATES]
                    values = [getattr(results[point], what) if point in results else math.nan for point in points]
                    dashes = "-" if index < len(COLOURS) else "-."  # there are more methods than colours
                    style = {"marker": MARKERS[index % len(MARKERS)]} if measured else {}
                    style["linestyle"] = "" if measured else dashes
                    label = f"{method}, {period}" if not measured else None
                    panel.plot(rates, values, color=colour, label=label, **style)
        above.set_title(task + (f", one host {slower} times slower" if slower > 1 else ""), fontsize=10)
        above.set_ylim(0, 1.05)
        below.set_xlabel("link [Mbit/s]")
        if any(np.isfinite(line.get_ydata()).any() for line in below.lines):
            below.set_yscale("log")
            below.yaxis.set_major_formatter("{x:g}")
            below.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            below.yaxis.set_minor_formatter("{x:g}")
        for panel in (above, below):
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
            panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("share of the time spent computing")
    panels[1][0].set_ylabel("time to the target [s]")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle("Methods that exchange every 4 steps (all-reduce: every step), on four hosts", fontsize=11)
    save(figure, out)
    out.with_suffix(".svg").write_text(as_svg(figure), encoding="utf-8")


def table(results: Results) -> str:
    """Return the table of measured runs, each with the relative error of the simulated run."""
    rows = []
    for point, found in results.items():
        if not point.measured:
            continue
        twin = results.get(point._replace(measured=False))
        error = f"{twin.seconds_per_step / found.seconds_per_step - 1:+.0%}" if twin else ""
        rows.append(
            [
                *point[:-1],
                f"{1e3 * found.seconds_per_step:.0f}",
                error,
                f"{found.utilisation:.0%}",
                "" if math.isnan(found.time_to_target) else f"{found.time_to_target:.0f}",
                f"{found.megabytes:.0f}",
                f"{found.interface_megabytes / found.megabytes:.2f}" if found.megabytes else "",
            ]
        )
    headers = ["task", "method", "period", "link", "slower", "ms a step", "simulated", "computing", "s to the target"]
    headers += ["MB sent", "interfaces / counted"]
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)


def verdicts(results: Results) -> Iterator[str]:
    """Yield the conclusions from the atlas, each as one line of text."""
    for measured in (True, False):
        ratios = [
            found.seconds_per_step / analytic.step_seconds(point)
            for point, found in results.items()
            if point.measured is measured and point.method in analytic.BLOCKING
        ]
        if ratios:
            least, most = LITERATURE
            within = sum(least <= ratio <= most for ratio in ratios)
            yield (
                f"A step by all-reduce takes {spread(ratios)} times as long as the formula says, "
                f"{'measured' if measured else 'simulated'}, at {len(ratios)} points; {within} of them are between "
                f"{least} and {most}, which others have found."
            )
    errors = [
        abs(results[twin].seconds_per_step / found.seconds_per_step - 1)
        for point, found in results.items()
        if point.measured and (twin := point._replace(measured=False)) in results
    ]
    if errors:
        yield (
            f"Simulated steps are {np.median(errors):.1%} off the measured ones in the median, {max(errors):.0%} at "
            f"most, at {len(errors)} points."
        )
    overheads = [
        found.interface_megabytes / found.megabytes
        for point, found in results.items()
        if point.measured and found.megabytes > 1 and not math.isnan(found.interface_megabytes)
    ]
    if overheads:
        yield (
            f"At {len(overheads)} points, interfaces have sent {spread(overheads)} times the counted bytes, headers of "
            "packets included."
        )


def spread(values: list[float]) -> str:
    """Return the median, the least and the greatest of ``values``, as text."""
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
