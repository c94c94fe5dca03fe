"""Draws the break-evens: the ratio of communication to computing time from which on each method saves time."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.runner.outcome import BreakEven
from experiments.tables.draw import as_svg
from grsgd.runs.series import COLOURS

PAYS, DOES_NOT, UNKNOWN = COLOURS[2], "#bbbbbb", "#e6e6e6"
UNSURE = "#a5d6bf"
"""Colour of a simulated saving, if simulated times differ from measured times by more than 10 %."""
TITLE = "The cost of communication from which on each method saves time, with equal ranks"
REACHES = "saves the paper's number from here on"
ROW_INCHES, WIDTH = 0.3, 8.2
TICKS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


def words(one: BreakEven) -> str:
    """Return the description of a break-even for readers who do not see the figure."""
    if not one.is_known:
        return f"{one.method} against {one.against}: not known from {one.first:.2g} to {one.last:.2g}"
    begins = one.text() if one.low is None else f"from {one.text()} on"
    reached = "" if one.reaches is None else f", and saves the paper's number from {one.reaches:.3g} on"
    off = ", by simulated times that are off by more than 10 %" * one.is_off
    return f"{one.method} against {one.against}: {begins}{reached}{off}"


def draw(found: Sequence[BreakEven], elsewhere: Mapping[str, str]) -> str:
    """Return an SVG with a row for each break-even.

    A row is green above the ratio from which on the method saves time.

    elsewhere: for methods whose saving does not depend on links, the reason by name of the method.
    """
    count = len(found) + len(elsewhere)
    figure = Figure(figsize=(WIDTH, 1.1 + ROW_INCHES * count), layout="constrained")
    ax = figure.subplots()
    ax.set_xscale("log")
    first, last = min(one.first for one in found), max(one.last for one in found)
    for place, one in enumerate(found):
        _draw_row(ax, place, one)
    for place, reason in enumerate(elsewhere.values(), len(found)):
        ax.annotate(reason, (first, place), va="center", fontsize=8)
    names = [f"{one.method} against {one.against}" for one in found]
    ax.set_yticks(range(count), [*names, *elsewhere], fontsize=8)
    ax.set_ylim(count - 0.5, -0.6)
    ticks = [tick for tick in TICKS if first / 1.2 <= tick <= 1.2 * last]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("communication time / computing time, equal ranks (logarithmic)", fontsize=9)
    ax.grid(alpha=0.3, axis="x")
    ax.set_axisbelow(True)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    described = ". ".join([*map(words, found), *(f"{name}: {reason}" for name, reason in elsewhere.items())])
    return as_svg(figure, TITLE, f"{described}.")


def _draw_row(ax, place: int, one: BreakEven):
    rest = DOES_NOT if one.is_known else UNKNOWN
    ax.plot([one.first, one.last], [place, place], color=rest, linewidth=7, solid_capstyle="butt")
    if one.at is not None and one.is_known:
        colour = UNSURE if one.is_off else PAYS
        ax.plot([one.at, one.last], [place, place], color=colour, linewidth=7, solid_capstyle="butt")
    if one.low is not None:
        high = one.last if one.high is None else one.high
        ax.plot([one.low, high], [place, place], color="black", linewidth=1.2, marker="|", markersize=8)
    if one.reaches is not None and one.is_known:
        ax.plot([one.reaches] * 2, [place - 0.36, place + 0.36], color="black", linewidth=2)
    ax.plot(one.here, [place] * len(one.here), **_HERE)


_HERE = {"linestyle": "", "marker": "D", "markersize": 5, "color": "black", "markerfacecolor": "white"}


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=PAYS, linewidth=7, label="saves time (simulated)"),
        Line2D([], [], color=UNSURE, linewidth=7, label="simulated times are off by more than 10 %"),
        Line2D([], [], color=DOES_NOT, linewidth=7, label="does not"),
        Line2D([], [], color=UNKNOWN, linewidth=7, label="not known"),
        Line2D(
            [], [], color="black", linewidth=1.2, marker="|", markersize=8, label="95 % interval of the break-even"
        ),
        Line2D([], [], label="links of the emulated hosts here", **_HERE),
        Line2D([], [], color="black", linestyle="", marker="|", markersize=11, markeredgewidth=2, label=REACHES),
    ]
