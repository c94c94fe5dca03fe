"""Draws the estimates of comparisons with their intervals, one below the other.

On an axis of times, half the time and twice the time are equally far from equal times.
"""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.runner.outcome import (
    ALIKE,
    AT_LEAST,
    AT_MOST,
    EVIDENCE,
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
    Case,
)
from experiments.tables.draw import GREY, as_svg, limits
from experiments.tables.wording import condition
from grsgd.runs.series import COLOURS

VERDICT_COLOURS = {SUPPORTED: COLOURS[2], ALIKE: COLOURS[5], REFUTED: COLOURS[1], INCONCLUSIVE: "#888888"}
MARKERS = {AT_LEAST: ">", AT_MOST: "<"}
"""Matplotlib's markers for estimates that are lower or upper bounds."""
NEAR, FAR = (0.25, 0.5, 0.65, 0.8, 1, 1.25, 1.5, 2, 4), (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 10, 20, 100)
"""Ratios that have ticks on an axis: ``NEAR`` if the axis spans up to three octaves, and ``FAR`` if it is longer."""
LESS = ("% less ", "% fewer ")
MIN_RATIO = 1e-3
"""Least ratio on an axis.

Ratios below `MIN_RATIO` are drawn at this ratio, because a logarithmic axis has no zero.
"""


class Differences:
    """A linear axis, for estimates that are differences."""

    def __init__(self, unit: str, turned: str):
        self.label = turned if turned == unit else f"left of 0: {turned}; right: {unit}"

    def place(self, estimate: float) -> float:
        return estimate

    def set_ticks(self, ax):
        """Leave the choice of the axis' ticks to matplotlib."""


class Ratios:
    """A logarithmic axis, for estimates that are ratios, such as "% less time".

    On an axis of ratios, half and twice are equally far from 1. Effects in the claimed direction are to the right of 1
    on the axis.
    """

    def __init__(self, unit: str, turned: str):
        self.less, self.more = sorted((unit, turned), key=lambda words: not words.startswith(LESS))
        self.sign = 1 if unit == self.less else -1
        """1 if ratios below 1 are to the right of 1 on the axis, and -1 if they are to the left of 1."""
        self.label = f"left: {turned}; right: {unit} (logarithmic)"

    def place(self, estimate: float) -> float:
        """Return the position on the axis of an estimate in per cent.

        The position of an estimate is plus or minus the logarithm to base 2 of the ratio.
        """
        ratio = 1 - self.sign * estimate / 100
        return -self.sign * math.log2(max(ratio, MIN_RATIO))

    def set_ticks(self, ax):
        """Set the ticks of the axis at common ratios within its limits, with labels in per cent."""
        low, high = ax.get_xlim()
        places = {-self.sign * math.log2(factor): factor for factor in (NEAR if high - low <= 3 else FAR)}
        shown = {place: factor for place, factor in places.items() if low <= place <= high}
        ax.set_xticks(list(shown), [self.words(factor) for factor in shown.values()], fontsize=7)

    def words(self, factor: float) -> str:
        """Return the ratio ``factor`` as a percentage, such as "50 % less" or "100 % more"."""
        if factor == 1:
            return "0"
        unit = self.less if factor < 1 else self.more
        return f"{100 * abs(1 - factor):.0f} {' '.join(unit.split()[:2])}".replace(" % ", " %\n")


def scale_of(case: Case) -> Differences | Ratios:
    """Return the axis for a comparison's unit: logarithmic for units such as "% less time", else linear."""
    both = case.unit, case.turned_unit()
    return Ratios(*both) if any(words.startswith(LESS) for words in both) else Differences(*both)


def forest(cases: Sequence[Case], numbers: Sequence[float] = ()) -> str:
    """Return an SVG with the estimates and intervals of comparisons, which all have one unit, one below the other.

    numbers: the paper's numbers. Comparisons that count as evidence have filled points, in the colour of their
    verdict. Comparisons that do not count have grey, open points. If an estimate is a bound, its marker is a triangle
    that points to where the effect may lie.
    """
    by_condition = {}
    for case in cases:
        by_condition.setdefault(condition(case), []).append(case)
    rows = [row for name, some in by_condition.items() for row in (name, *some)]
    figure = Figure(figsize=(5.4, 1.5 + 0.21 * len(rows)), layout="constrained")
    ax, scale = figure.subplots(), scale_of(cases[0])
    for place, row in enumerate(rows):
        if isinstance(row, Case):
            _draw_interval(ax, place, row, scale)
        else:
            ax.annotate(row, (0.01, place), xycoords=ax.get_yaxis_transform(), va="center", fontsize=8, weight="bold")
    ax.axvline(0, color="black", linewidth=0.8)
    for number in numbers:
        at = scale.place(number)
        ax.axvline(at, color=GREY, linestyle="--", linewidth=1.2)
        words, offset = f"paper: {number:g}", (2, -9 if list(numbers).index(number) % 2 else 3)
        ax.annotate(words, (at, 1), offset, ax.get_xaxis_transform(), "offset points", fontsize=8)
    names = {place: row.baseline for place, row in enumerate(rows) if isinstance(row, Case)}
    ax.set_yticks(list(names), list(names.values()), fontsize=8)
    ax.set_ylim(len(rows) - 0.5, -0.7)
    ax.set_xlim(*limits((scale.place(case.estimate) for case in cases), ax.get_xlim()))
    scale.set_ticks(ax)
    ax.set_xlabel(scale.label, fontsize=9)
    ax.grid(alpha=0.3, axis="x")
    figure.legend(handles=_legend(cases), loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    return as_svg(figure)


def _look(case: Case) -> dict:
    """Return matplotlib's arguments for the point of a comparison."""
    colour = VERDICT_COLOURS[case.verdict] if case.kind == EVIDENCE else GREY
    fill = colour if case.kind == EVIDENCE else "white"
    return {"color": colour, "markerfacecolor": fill, "marker": MARKERS.get(case.bound, "o"), "markersize": 5}


def _draw_interval(ax, place: float, case: Case, scale: Differences | Ratios):
    ends = [scale.place(case.estimate if limit is None else limit) for limit in (case.low, case.high)]
    look = _look(case)
    ax.plot(ends, [place, place], color=look["color"], linewidth=1.6)
    ax.plot(scale.place(case.estimate), place, linestyle="", **look)


def _legend(cases: Sequence[Case]) -> list[Line2D]:
    """Return a legend entry for each kind of point that the figure has."""
    entries = {}
    for case in cases:
        words = case.verdict if case.kind == EVIDENCE else f"{case.kind}, not counted"
        entries.setdefault(words, Line2D([], [], linewidth=1.6, label=words, **_look(case) | {"marker": "o"}))
    for bound in dict.fromkeys(case.bound for case in cases if case.bound):
        entries[bound] = Line2D([], [], linestyle="", color=GREY, marker=MARKERS[bound], label=f"{bound} this much")
    return list(entries.values())
