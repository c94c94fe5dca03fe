"""Panels with bars in a figure that compares runs: bytes sent, time of a step, and parts of the time (compute,
communicate, wait, other)."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from grsgd.runs.curves import by_clock, is_tested, time_label
from grsgd.runs.measures import (
    bytes_sent,
    bytes_sent_once,
    is_virtual,
    other_seconds,
    seconds,
    seconds_per_step,
    time_split,
)
from grsgd.runs.numbers import byte_unit, known_values
from grsgd.runs.run_file import Run
from grsgd.runs.series import Series

TONES = {
    "compute": ("#555555", ""),
    "communicate": ("#aaaaaa", "////"),
    "wait": ("#eeeeee", "...."),
    "other": ("w", ""),
}
"""Dictionary from each part of a run's time to the shade of grey and the hatch with which its bar is drawn."""
MIN_PART = 0.002
"""Smallest part of a run's time that is drawn, as a fraction of the longest run's time."""


class Bars(NamedTuple):
    """Panel of a figure with one bar per series (runs that differ only in the seed). ``name`` is the panel's name in
    the option ``--panels`` of ``grsgd plot``. ``draw(axes, series)`` draws the bars of all series, and returns the
    panel's title."""

    name: str
    draw: Callable[[Axes, list[Series]], str]


def draw_bars(every: Sequence[Axes], series: list[Series], drawn: Sequence[Bars]) -> None:
    """Draw the panels ``drawn``, each on one of the matplotlib axes ``every``. If there are more than two panels, they
    are narrow, so their titles are placed higher."""
    for axes, bars in zip(every, drawn, strict=True):
        title = bars.draw(axes, series)
        narrow = len(every) > 2
        axes.set_title(title, loc="left", pad=30 if narrow else None)
        if narrow:
            axes.set_xlabel(axes.get_xlabel().replace(", ", ",\n"))
        if axes.get_legend_handles_labels()[0]:
            _legend_above(axes, columns=2 if narrow else len(TONES))


def panels(series: list[Series]) -> list[Bars]:
    """Return the bar panels for which the runs of ``series`` have data. Real times and simulated times have separate
    panels, because simulated seconds are not real seconds."""
    runs = [run for one in series for run in one.runs]
    found = []
    for alike in by_clock(series):
        if known_values(seconds_per_step(run) for one in alike for run in one.runs):
            found.append(Bars("step", partial(_draw_step, shown=alike)))
    if any(bytes_sent(run) > 0 for run in runs):
        found.append(Bars("sent", _draw_sent))
    for alike in by_clock(series):
        if any(seconds(run) > 0 for one in alike for run in one.runs):
            found.append(Bars("split", partial(_draw_split, shown=alike)))
    return found


def shown_by_default(series: list[Series]) -> list[Bars]:
    """Return the bar panels to draw if the user names no panels. The panel "step" (time of a step) is drawn only if
    some run has no test values."""
    all_tested = all(is_tested([one]) for one in series)
    return [bars for bars in panels(series) if bars.name != "step" or not all_tested]


def _draw_step(axes: Axes, series: list[Series], shown: list[Series]) -> str:
    """Draw a bar with the time of a step, in milliseconds, for each series of ``shown``. Return the panel's title."""
    virtual = is_virtual(shown[0].runs[0])
    _draw_medians(
        axes, series, lambda run: 1000 * seconds_per_step(run) if is_virtual(run) is virtual else math.nan
    )
    axes.set_xlabel(time_label(shown).replace("[s]", "[ms]"))
    return "time of a step"


def _draw_sent(axes: Axes, series: list[Series]) -> str:
    """Draw the payload in bytes that all ranks have sent. If any run has multicasts, a diamond marks the payload in
    which a multicast counts once. Return the panel's title."""
    unit, size = byte_unit(max(bytes_sent(run) for one in series for run in one.runs))
    _draw_medians(axes, series, lambda run: bytes_sent(run) / size)
    if any(bytes_sent(run) != bytes_sent_once(run) for one in series for run in one.runs):
        once = [np.median([bytes_sent_once(run) for run in one.runs]) / size for one in series]
        style = {"color": "white", "markeredgecolor": "black", "label": "a multicast counted once", "clip_on": False}
        axes.plot(once, range(len(series)), "D", **style)
    axes.set_xlabel(f"sent [{unit}]")
    return "payload sent by all ranks"


def _draw_medians(axes: Axes, series: list[Series], of: Callable[[Run], float]) -> None:
    """Draw one bar per series. The bar's length is the median of ``of(run)`` over the series' runs, and an error bar
    shows the range. A series without known values has no bar."""
    values = [_finite([of(run) for run in one.runs]) or [math.nan] for one in series]
    medians, lows, highs = (np.array([pick(one) for one in values]) for pick in (np.median, min, max))
    spread = np.array([medians - lows, highs - medians])
    axes.barh(
        range(len(series)),
        medians,
        xerr=spread if np.nansum(spread) else None,
        height=0.6,
        color=[one.style["color"] for one in series],
        edgecolor="black",
        alpha=0.7,
        capsize=3,
    )
    _end(axes, highs)


def _draw_split(axes: Axes, series: list[Series], shown: list[Series]) -> str:
    """Draw a bar for each series of ``shown``, divided into the parts of the runs' time from the start of training to
    its end."""
    rows = [row for row, one in enumerate(series) if one.index in {other.index for other in shown}]
    splits = [[time_split(run) | {"other": other_seconds(run)} for run in one.runs] for one in shown]
    left, longest = np.zeros(len(shown)), max(_finite([seconds(run) for one in shown for run in one.runs]), default=0)
    for part, (grey, hatch) in TONES.items():
        widths = np.array([_median([split[part] for split in of_one]) for of_one in splits])
        if (widths > MIN_PART * longest).any():
            axes.barh(rows, widths, 0.6, left, color=grey, hatch=hatch, edgecolor="black", label=part)
            left += widths
    _end(axes, left)
    axes.set_xlabel(f"{time_label(shown)}, mean over the ranks")
    return "time split"


def _median(values: list[float]) -> float:
    """Return the median of the known values; 0 if no value is known, so that no bar is drawn."""
    return float(np.median(_finite(values) or [0.0]))


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _end(axes: Axes, highest: np.ndarray) -> None:
    """Set the limit of the horizontal axis slightly beyond the longest bar."""
    axes.set_xlim(0, 1.06 * np.nanmax(highest, initial=0) or 1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _legend_above(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=columns,
        frameon=False,
        fontsize="small",
        handlelength=1.4,
        columnspacing=1,
        borderaxespad=0,
    )
