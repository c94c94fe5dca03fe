"""Panels with curves in a figure that compares runs: metric, training loss and logged values, over time and over
samples."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grsgd.runs.layout import LAYOUT
from grsgd.runs.measures import epochs, is_virtual, samples, seconds
from grsgd.runs.metric import Metric, columns_of, final_of, metric_of, metrics_of, target_of, values_of
from grsgd.runs.numbers import known_values
from grsgd.runs.run_file import Run
from grsgd.runs.series import Series

BAND = 0.15  # opacity of the band between the least and the greatest value
TARGET = {"color": "black", "linestyle": ":", "linewidth": 1}
MAX_OWN = 4
"""Largest number of quantities, logged by users' scripts, that are drawn as curves."""


class Quantity(NamedTuple):
    """Quantity that is drawn as a curve: a dataset of the run file's group ``curve``, multiplied by ``factor``."""

    dataset: str
    title: str
    label: str
    factor: float = 1.0
    metric: Metric | None = None
    """Metric whose test values the dataset has; None if the dataset has no test values."""

    @property
    def name(self) -> str:
        """Name by which users choose the panel: the metric's name, or the dataset's name if ``metric`` is None."""
        return self.metric.name if self.metric else self.dataset

    def of(self, run: Run) -> np.ndarray:
        """Return the quantity's value at each snapshot of a run, an array [snapshots]; NaN where the value is not
        known."""
        if self.metric is not None:
            is_of_it = metric_of(run) == self.metric
            return self.factor * values_of(run) if is_of_it else np.full(len(run.curve["time"]), math.nan)
        values = run.curve.get(self.dataset)
        return np.full(len(run.curve["time"]), math.nan) if values is None else self.factor * values.astype(float)

    def is_known(self, series: list[Series]) -> bool:
        """Return whether the quantity is known for any run of ``series``, at a snapshot or at the end."""
        return any(known_values([*self.of(run), self.final(run)]) for one in series for run in one.runs)

    def final(self, run: Run) -> float:
        """Return the quantity's value for the run's final model; NaN if the value is not known."""
        return self.factor * final_of(run) if self.metric is not None and metric_of(run) == self.metric else math.nan


LOSS = Quantity("train_loss", "training loss", "training loss")
SAMPLES = Quantity("samples", "samples of all ranks", "samples")


class Axis(NamedTuple):
    """Horizontal axis over which the curves of ``series`` are drawn. ``of(run)`` returns the axis values of the run's
    snapshots. ``end(run)`` returns the axis value of the run's end."""

    name: str
    label: str
    of: Callable[[Run], np.ndarray]
    end: Callable[[Run], float]
    series: list[Series]


def time_axes(series: list[Series]) -> list[Axis]:
    """Return one time axis for runs in real time and one time axis for simulated runs, because simulated seconds are
    not real seconds. A time axis without runs is left out."""
    time = lambda run: run.curve["time"]  # noqa: E731
    return [Axis("time", time_label(alike), time, seconds, alike) for alike in by_clock(series)]


def by_clock(series: list[Series]) -> list[list[Series]]:
    """Return a list of two lists: the series of runs in real time, and the series of simulated runs. An empty list of
    series is left out."""
    both = [[one for one in series if is_virtual(one.runs[0]) is virtual] for virtual in (False, True)]
    return [alike for alike in both if alike]


def samples_axis(series: list[Series]) -> Axis:
    """Return a horizontal axis of epochs, or of samples if the number of epochs of some run is not known."""
    in_epochs = not any(math.isnan(epochs(run)) for one in series for run in one.runs)

    def unit(run: Run) -> int:
        return run.attributes["train_samples"] if in_epochs else 1

    return Axis(
        "samples",
        "epochs" if in_epochs else "samples",
        lambda run: run.curve["samples"] / unit(run),
        lambda run: samples(run) / unit(run),
        series,
    )


def time_label(series: list[Series]) -> str:
    return "simulated time [s]" if all(is_virtual(run) for one in series for run in one.runs) else "time [s]"


def quantities(series: list[Series]) -> list[Quantity]:
    """Return the quantities to draw if the user names no panels. These quantities are the metrics (or the training loss
    if no metric is known), and the values that scripts have logged.

    Return only the number of samples if the runs have no other quantity.
    """
    found = [quantity for quantity in own_quantities(series) if quantity.is_known(series)]
    if is_tested(series):
        return [*tested(series), *found]
    if all(LOSS.is_known([one]) for one in series):
        return [LOSS, *found]
    return found or [SAMPLES] * any(len(run.curve["time"]) for one in series for run in one.runs)


def all_quantities(series: list[Series]) -> list[Quantity]:
    """Return all quantities that can be drawn as curves of the runs in ``series``."""
    every = [*tested(series), LOSS, *own_quantities(series), SAMPLES]
    return [quantity for quantity in every if quantity.is_known(series)]


def tested(series: list[Series]) -> list[Quantity]:
    """Return a quantity for each metric of which test values are known."""
    runs = [run for one in series for run in one.runs]
    return [*map(quantity_of, metrics_of([run for run in runs if known_values([*values_of(run), final_of(run)])]))]


def own_quantities(series: list[Series]) -> list[Quantity]:
    """Return at most `MAX_OWN` quantities that users' scripts have logged."""
    runs = [run for one in series for run in one.runs]
    own = {name: None for run in runs for name in run.curve if name not in LAYOUT["curve"].keys() | columns_of(run)}
    return [Quantity(name, name, name) for name in [*own][:MAX_OWN] if _is_curve(series, name)]


def _is_curve(series: list[Series], name: str) -> bool:
    arrays = [(run.curve[name], run.curve["time"]) for one in series for run in one.runs if name in run.curve]
    return all(array.shape == time.shape and array.dtype.kind in "biuf" for array, time in arrays)


def quantity_of(metric: Metric) -> Quantity:
    return Quantity(metric.column, metric.title, metric.title + metric.in_unit, metric.factor, metric)


def is_tested(series: list[Series]) -> bool:
    """Return whether any run of ``series`` has a known value of its metric."""
    return any(known_values([*values_of(run), final_of(run)]) for one in series for run in one.runs)


def draw_curves(axes: Axes, quantity: Quantity, over: Axis) -> dict[str, Artist]:
    """Draw one panel of curves. Return a dictionary from label to the entry that this panel needs in the figure's
    legend."""
    entries: dict[str, Artist] = {}
    for one in over.series:
        drawn = [run for run in one.runs if known_values(quantity.of(run))]
        if drawn:
            entries[one.name] = Line2D([], [], **one.style)
        if not _draw_seeds(axes, one, drawn, quantity, over):
            for run in drawn:
                _draw_line(axes, one, over.of(run), quantity.of(run))
        elif len(drawn) > 1:
            entries["range of the seeds"] = Patch(color="black", alpha=BAND)
        if quantity.metric:
            if len(drawn) == 1 and _draw_replicas(axes, one, drawn[0], quantity, over):
                entries["range of the replicas"] = Patch(color="black", alpha=BAND)
            if _draw_final(axes, one, quantity, over):
                entries.setdefault(one.name, Line2D([], [], **one.style))
                entries["final model"] = Line2D([], [], **_final_style("black"))
    if quantity.metric:
        for target in sorted(_targets(over.series, quantity.metric)):
            axes.axhline(quantity.factor * target, **TARGET)
            entries[f"target {quantity.metric.words}"] = Line2D([], [], **TARGET)
    axes.set_title(f"{quantity.title} over {over.name}", loc="left")
    axes.set_xlabel(over.label)
    axes.grid(alpha=0.3)
    return entries


def _draw_line(axes: Axes, one: Series, x: np.ndarray, y: np.ndarray) -> None:
    known = ~np.isnan(y)
    # Different series have markers at different snapshots, so that coinciding curves can be distinguished.
    every = max(known.sum() // 8, 1)
    axes.plot(x[known], y[known], markevery=(one.index % every, every), **one.style)


def _draw_seeds(axes: Axes, one: Series, runs: list[Run], quantity: Quantity, over: Axis) -> bool:
    """Draw the median and the range of runs with different seeds, over the part of the axis that all runs cover. Return
    whether a curve was drawn."""
    curves = [(over.of(run), quantity.of(run)) for run in runs]
    curves = [(x[~np.isnan(y)], y[~np.isnan(y)]) for x, y in curves]
    if len(curves) < 2:
        return False
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) < 2:
        return False
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    _draw_line(axes, one, grid, np.median(values, axis=0))
    axes.fill_between(grid, values.min(0), values.max(0), color=one.style["color"], alpha=BAND, linewidth=0)
    return True


def _draw_replicas(axes: Axes, one: Series, run: Run, quantity: Quantity, over: Axis) -> bool:
    """Draw the range between the worst and the best rank's model (replica) of a run. Return whether the worst and the
    best rank's model differ."""
    x, least, greatest = over.of(run), *(quantity.factor * values_of(run, end) for end in ("_min", "_max"))
    known = ~np.isnan(least) & ~np.isnan(greatest)
    x, least, greatest, colour = x[known], least[known], greatest[known], one.style["color"]
    if len(x) == 1:
        axes.vlines(x, least, greatest, color=colour, alpha=2 * BAND, linewidth=6)
    elif len(x):
        axes.fill_between(x, least, greatest, color=colour, alpha=BAND, linewidth=0)
    return bool((greatest > least).any())


def _draw_final(axes: Axes, one: Series, quantity: Quantity, over: Axis) -> bool:
    """Mark the final model's value with a star if it differs from the last snapshot's value. Return whether a star was
    drawn."""
    finals, ends = [], []
    for run in one.runs:
        final, x, y = quantity.final(run), over.of(run), quantity.of(run)
        if not math.isnan(final) and not (len(y) and abs(y[-1] - final) < 1e-6):
            finals.append(final)
            ends.append(x[-1] if len(x) else over.end(run))
    if finals:
        axes.plot(np.median(ends), np.median(finals), clip_on=False, zorder=3, **_final_style(one.style["color"]))
    return bool(finals)


def _final_style(colour: str) -> dict:
    return {
        "linestyle": "",
        "marker": "*",
        "markersize": 12,
        "markerfacecolor": "white",
        "markeredgecolor": colour,
        "markeredgewidth": 1.5,
    }


def _targets(series: list[Series], metric: Metric) -> set[float]:
    targets = [target_of(run) for one in series for run in one.runs if metric_of(run) == metric]
    return {target for target in targets if not math.isnan(target)}
