"""Draws the figures of a report as vector graphics that are readable in black and white.

A label has the same colour and line in all panels of a figure. For each figure NAME.svg, the file NAME.csv in the same
folder has every number of every seed in the figure.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.runner.outcome import Case
from experiments.runner.sample import Sample
from grsgd.runs.series import style

matplotlib.rcParams["svg.hashsalt"] = "grsgd"  # constant, so that equal figures have equal files
HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "++++", "||||", "||--")
LEVEL_LINES = ((0, (6, 3)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 3)))
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
GREY = "#666666"
WIDTH, HEIGHT = 4.6, 3.3
"""Width and height of one panel of a figure, in inches."""
PANELS_IN_A_ROW = 3
"""Greatest number of panels that a figure has side by side."""
COLUMNS = ("panel", "series", "x", "seed", "y", "bound", "low", "high")
"""Columns of a figure's CSV table; ``bound`` is the kind of bound that ``y`` is, ``low`` to ``high`` an interval."""

Number = Sample | float
"""A sample (one number per seed), or an exact number that does not depend on seeds."""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: axes with their units, and the numbers that are drawn on them, by label."""

    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, Mapping[float, Number]] = field(default_factory=dict)
    """Numbers by label and x, drawn as a point for each seed and as a line through the medians."""
    curves: Mapping[str, Mapping[int, tuple[Sequence[float], Sequence[float]]]] = field(default_factory=dict)
    """Curves by label and seed, each as two sequences of equal length, x and y."""
    bars: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    """Numbers by label and group, drawn as a bar up to the median, and as a point for each seed."""
    estimates: Mapping[str, Mapping[float, Case]] = field(default_factory=dict)
    """Comparisons (cases) by label and x, drawn as an estimate with its interval as error bar."""
    controls: Collection[str] = ()
    """Labels of the controls, whose lines are drawn thin and grey."""
    levels: Mapping[str, Number] = field(default_factory=dict)
    """Heights of horizontal lines, by label: for example a target, the paper's number, or a control."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Positions x of vertical lines, by label: for example a break-even, in the colour of an equal label of a line."""
    logx: bool = False
    logy: bool = False

    @property
    def labels(self) -> list[str]:
        return [*self.lines, *self.curves, *self.bars, *self.estimates]


def draw(path: Path, panels: Sequence[Panel]):
    """Write the panels as SVG to ``path``, and their numbers to the CSV file of the same name."""
    path.write_text(as_svg(figure(panels)), encoding="utf-8")
    write_table(path.with_suffix(".csv"), panels)


def write_table(path: Path, panels: Sequence[Panel]):
    """Write every number that the panels show to the CSV file ``path``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *table(panels)])


def figure(panels: Sequence[Panel]) -> Figure:
    """Return a figure with the panels side by side, and with one legend for all panels."""
    columns = 2 if len(panels) == 4 else min(len(panels), PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    drawn = Figure(figsize=(WIDTH * max(columns, 1.4), HEIGHT * rows + 0.5), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    looks = _looks(panels)
    for ax, panel in zip(axes, map(_as_bars, panels), strict=False):
        draw_panel(ax, panel, looks)
    _legend(drawn, axes)
    return drawn


def _as_bars(panel: Panel) -> Panel:
    """Return the panel, with bars in place of lines if all points of its lines have one x."""
    if len({x for points in panel.lines.values() for x in points}) != 1:
        return panel
    bars = {label: {f"{x:g}": number for x, number in points.items()} for label, points in panel.lines.items()}
    return replace(panel, lines={}, bars=bars)


def draw_panel(ax, panel: Panel, looks: Mapping[str, dict]):
    """Draw a panel on the axes ``ax``.

    looks: matplotlib's arguments (colour, line, marker) for each label.
    """
    for label, points in panel.lines.items():
        _draw_line(ax, points, label, looks[label])
    for label, curves in panel.curves.items():
        _draw_curves(ax, curves, label, looks[label])
    for label, points in panel.estimates.items():
        _draw_estimates(ax, points, label, looks[label])
    _draw_bars(ax, panel.bars, looks)
    _draw_levels(ax, panel.levels, looks)
    for label, x in panel.marks.items():
        colour = looks.get(label, {"color": "black"})["color"]
        ax.axvline(x, color=colour, linestyle=":", linewidth=1.2)
        words = f"{x:.3g}" if label in looks else label
        ax.annotate(
            words, (x, 1), (2, -2), ax.get_xaxis_transform(), "offset points", rotation=90, va="top", fontsize=8
        )
    _scale_axes(ax, panel)
    ax.set_title(panel.title, fontsize=10, loc="left")
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    ax.grid(alpha=0.3, axis="y" if panel.bars else "both")
    ax.set_axisbelow(True)


def _draw_line(ax, points: Mapping[float, Number], label: str, look: dict):
    medians = {x: _median(number) for x, number in points.items()}
    ax.plot(list(medians), [np.nan if y is None else y for y in medians.values()], label=label, **look)
    for x, number in points.items():
        _draw_points(ax, x, number, look["color"])


def _draw_points(ax, x: float, number: Number, colour: str):
    """Draw a point for each seed: a circle at an exact number, and a triangle at a lower or upper bound."""
    if not isinstance(number, Sample):
        return
    lower, upper = ([number.values[seed] for seed in bounds] for bounds in (number.bounds, number.upper))
    for marker, values in (("o", number.known), ("^", lower), ("v", upper)):
        ax.plot([x] * len(values), values, marker, color=colour, markersize=3.2, markerfacecolor="none", alpha=0.7)


def _draw_curves(ax, curves: Mapping[int, tuple[Sequence[float], Sequence[float]]], label: str, look: dict):
    look = look | {"markersize": 3.5, "linewidth": 0.7 * look["linewidth"]}
    for number, (xs, ys) in enumerate(curves.values()):
        ax.plot(xs, ys, label=label if number == 0 else None, markevery=max(1, len(xs) // 6), **look)


def _draw_estimates(ax, cases: Mapping[float, Case], label: str, look: dict):
    known = {x: case for x, case in cases.items() if case.estimate is not None}
    with_interval = {x: case for x, case in known.items() if case.low is not None and case.high is not None}
    ax.plot(list(known), [case.estimate for case in known.values()], label=label, **look)
    for x, case in with_interval.items():
        ax.errorbar(x, case.estimate, [[case.estimate - case.low], [case.high - case.estimate]], capsize=3, **look)


def limits(estimates: Iterable[float], of_all: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of an axis, chosen so that intervals are cut off far beyond all estimates.

    of_all: the ends of an axis that would show all intervals completely.
    """
    estimates = [0.0, *estimates]
    beyond = 2 * (max(estimates) - min(estimates)) or math.inf
    return max(of_all[0], min(estimates) - beyond), min(of_all[1], max(estimates) + beyond)


def _draw_bars(ax, bars: Mapping[str, Mapping[str, Number]], looks: Mapping[str, dict]):
    groups = list(dict.fromkeys(group for numbers in bars.values() for group in numbers))
    width = 0.8 / max(1, len(bars))
    for index, (label, numbers) in enumerate(bars.items()):
        places = {group: groups.index(group) + (index - (len(bars) - 1) / 2) * width for group in numbers}
        medians = {places[group]: _median(number) for group, number in numbers.items()}
        heights = {place: np.nan if middle is None else middle for place, middle in medians.items()}
        ax.bar(
            list(heights.keys()),
            list(heights.values()),
            0.92 * width,
            label=label,
            color=looks[label]["color"],
            hatch=HATCHES[list(looks).index(label) % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            alpha=0.65,
        )
        for group, number in numbers.items():
            _draw_points(ax, places[group], number, "black")
    if bars:
        ax.set_xticks(range(len(groups)), groups)


def _draw_levels(ax, levels: Mapping[str, Number], looks: Mapping[str, dict]):
    for label, number in levels.items():
        if (height := _median(number)) is not None:
            ax.axhline(height, label=label, **looks[label])


def _scale_axes(ax, panel: Panel):
    if panel.logx and not panel.bars:
        ax.set_xscale("log")
    ticks = sorted({x for points in panel.lines.values() for x in points})
    if ticks and len(ticks) <= 16:
        kept = [x for x in ticks if math.log2(x).is_integer()] if panel.logx and len(ticks) > 5 else ticks
        ax.set_xticks(kept, [f"{x:g}" for x in kept])
        ax.minorticks_off()
    cases = [case for points in panel.estimates.values() for case in points.values() if case.estimate is not None]
    if cases:
        ax.set_ylim(*limits((case.estimate for case in cases), ax.get_ylim()))
    if panel.logy and not panel.bars:  # a logarithmic axis has no 0, at which the bars must begin
        ax.set_yscale("log")
    elif not panel.curves and not panel.estimates:
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))


def _looks(panels: Sequence[Panel]) -> dict[str, dict]:
    """Return matplotlib's arguments for each label, equal in all panels.

    Controls are grey, and come after all other labels.
    """
    controls = {label for panel in panels for label in panel.controls}
    labels = dict.fromkeys(label for panel in panels for label in panel.labels)
    labels = sorted(labels, key=lambda label: label in controls)
    looks = {label: style(index) | {"linewidth": 1.4} for index, label in enumerate(labels)}
    looks |= {label: looks[label] | {"color": GREY, "linewidth": 0.9} for label in labels if label in controls}
    levels = dict.fromkeys(label for panel in panels for label in panel.levels if label not in looks)
    lines = zip(levels, itertools.cycle(LEVEL_LINES), strict=False)
    return looks | {label: {"color": GREY, "linestyle": line, "linewidth": 1} for label, line in lines}


def _legend(figure: Figure, axes):
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        columns = max(1, min(len(handles), int(12 * figure.get_figwidth() / (6 + max(map(len, handles))))))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)


def as_svg(figure: Figure, title: str = "", description: str = "") -> str:
    """Return the figure as SVG text, in which coordinates are rounded to the visible digits.

    title, description: texts for readers who do not see the figure, for example with a screen reader.
    """
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.sans-serif": FONTS}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    short = re.sub(
        r' (d|x|y)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text.getvalue(), flags=re.DOTALL
    )
    return in_words(short, title, description) if title else short


def in_words(svg: str, title: str, description: str) -> str:
    """Return the SVG text with a title and a description as its first elements, where screen readers look for them."""
    begin = svg.index(">", svg.index("<svg")) + 1
    head = svg[:begin].replace("<svg", '<svg role="img"')
    return f"{head}\n <title>{escape(title)}</title>\n <desc>{escape(description)}</desc>{svg[begin:]}"


def table(panels: Sequence[Panel]) -> Iterator[tuple]:
    """Yield a row with the columns ``COLUMNS`` for every number of the panels.

    Unknown and inapplicable values are "".
    """
    for panel in panels:
        for label, points in [*panel.lines.items(), *panel.bars.items()]:
            for x, number in points.items():
                for seed, value in _by_seed(number).items():
                    yield panel.title, label, x, seed, _short(value), _bound(number, seed), "", ""
        for label, curves in panel.curves.items():
            for seed, (xs, ys) in curves.items():
                for x, y in zip(xs, ys, strict=True):
                    yield panel.title, label, _short(x), seed, _short(y), "", "", ""
        for label, cases in panel.estimates.items():
            for x, case in cases.items():
                yield panel.title, label, x, "", *map(_short, (case.estimate, "", case.low, case.high))
        for label, number in panel.levels.items():
            for seed, value in _by_seed(number).items():
                yield panel.title, label, "", seed, _short(value), _bound(number, seed), "", ""
        for label, x in panel.marks.items():
            yield panel.title, f"break-even, {label}", _short(x), "", "", "", "", ""


def _by_seed(number: Number) -> Mapping:
    return number.values if isinstance(number, Sample) else {"": number}


def _bound(number: Number, seed) -> str:
    """Return the kind of bound that the value of ``seed`` is, ``lower`` or ``upper``; "" if the value is exact."""
    bounds = {"lower": number.bounds, "upper": number.upper} if isinstance(number, Sample) else {}
    return "".join(kind for kind, seeds in bounds.items() if seed in seeds)


def _median(number: Number) -> float | None:
    return number.median() if isinstance(number, Sample) else number


def _short(value: float | None) -> str:
    return "" if value is None or value == "" else f"{value:.6g}"
