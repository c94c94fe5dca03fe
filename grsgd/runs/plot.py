"""Runs as one figure: accuracy over time and over samples, bytes sent, and what the time was spent on."""

import math
import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grsgd.errors import RunFileError
from grsgd.runs.measures import epochs, is_virtual, target_accuracy, time_split
from grsgd.runs.numbers import byte_unit
from grsgd.runs.run_file import Run, check_writable, load_run
from grsgd.runs.several import by_experiment, names

SUFFIXES = (".png", ".pdf", ".svg")
"""File types that ``plot`` writes."""

# Okabe and Ito's colours, which the colour-blind can tell apart; without the yellow, too light on white paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "d")
HATCHES = {"compute": "", "communicate": "////", "wait": "...."}
GREYS = {"compute": "#555555", "communicate": "#aaaaaa", "wait": "#eeeeee"}

WIDTH = 11  # inches
BAND = 0.15  # opacity
TARGET = {"color": "black", "linestyle": ":", "linewidth": 1}


class Series(NamedTuple):
    """Runs of one experiment, one a seed, drawn alike."""

    name: str
    runs: list[Run]
    index: int

    @property
    def style(self) -> dict:
        i = self.index
        return {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": LINES[i % len(LINES)],
            "marker": MARKERS[i % len(MARKERS)],
            "linewidth": 1.6 if len(self.runs) == 1 else 0.8,
            "markersize": 5 if len(self.runs) == 1 else 3.5,
        }


def plot(paths: Sequence[str | os.PathLike], out: str | os.PathLike) -> None:
    """Draw the runs in the files ``paths`` into the file ``out``, whose suffix is one of ``SUFFIXES``.

    Runs that differ in nothing but the seed share one style, one bar (their median) and one entry of the legend.
    Raises RunFileError for a file that ``load_run`` refuses, another suffix or an unwritable ``out``.
    """
    if not paths:
        raise RunFileError("no run files given")
    suffix = Path(out).suffix.lower()
    if suffix not in SUFFIXES:
        raise RunFileError(f"{os.fspath(out)}: unknown suffix {suffix!r}, not one of {', '.join(SUFFIXES)}")
    check_writable(out)
    figure = _figure(_series(paths))
    try:
        figure.savefig(out, format=suffix[1:], dpi=150)
    except OSError as error:
        raise RunFileError(f"{os.fspath(out)}: {error.strerror or error}") from error


def _series(paths: Sequence[str | os.PathLike]) -> list[Series]:
    runs = [load_run(path) for path in paths]
    groups = by_experiment(runs)
    labels = names([paths[group[0]] for group in groups], [runs[group[0]] for group in groups])
    return [
        Series(labels[i] if len(group) == 1 else f"{labels[i]}, {len(group)} seeds", [runs[j] for j in group], i)
        for i, group in enumerate(groups)
    ]


def _figure(series: list[Series]) -> Figure:
    """Curves above, bars below: two subfigures, for the names of the bars not to narrow the curves."""
    entries = _legend_entries(series)
    columns = _legend_columns(entries)
    lines = max(_wrapped(one.name, 30).count("\n") + 1 for one in series)
    heights = (3.6 + 0.25 * math.ceil(len(entries) / columns), 1.2 + (0.25 + 0.15 * lines) * _bar_rows(series))
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    curves, bars = figure.subfigures(2, 1, height_ratios=heights)
    over_time, over_samples = curves.subplots(1, 2, sharey=True)
    _draw_over_time(over_time, series)
    _draw_over_samples(over_samples, series)
    curves.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False)
    sent, split = bars.subplots(1, 2, sharey=True)
    _draw_sent(sent, series)
    _draw_split(split, series)
    _name_rows(sent, series)
    return figure


# ---- accuracy


def _draw_over_time(axes: Axes, series: list[Series]) -> None:
    _draw_accuracy(axes, series, [[run.curve["time"] for run in one.runs] for one in series])
    axes.set_title("test accuracy over time", loc="left")
    axes.set_ylabel("test accuracy [%]")
    axes.set_xlabel(_time_label(series))


def _time_label(series: list[Series]) -> str:
    return "simulated time [s]" if all(is_virtual(run) for one in series for run in one.runs) else "time [s]"


def _draw_over_samples(axes: Axes, series: list[Series]) -> None:
    in_epochs = not any(math.isnan(epochs(run)) for one in series for run in one.runs)

    def trained(run: Run) -> np.ndarray:
        return run.curve["samples"] / (run.attributes["train_samples"] if in_epochs else 1)

    _draw_accuracy(axes, series, [[trained(run) for run in one.runs] for one in series])
    axes.set_title("test accuracy over samples", loc="left")
    axes.set_xlabel("epochs" if in_epochs else "samples")


def _draw_accuracy(axes: Axes, series: list[Series], positions: list[list[np.ndarray]]) -> None:
    """Averaged models as lines, the range of the single replicas as a band, target accuracies dotted."""
    for one, xs in zip(series, positions, strict=True):
        for run, x in zip(one.runs, xs, strict=True):
            _draw_line(axes, one, run, x)
    if not axes.lines:
        axes.text(0.5, 0.5, "no accuracy measured", transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    for accuracy in _targets(series):
        axes.axhline(100 * accuracy, **TARGET)
    axes.grid(alpha=0.3)


def _draw_line(axes: Axes, one: Series, run: Run, x: np.ndarray) -> None:
    accuracy, least, greatest = (100 * run.curve[f"test_accuracy{end}"] for end in ("", "_min", "_max"))
    measured, banded = ~np.isnan(accuracy), ~np.isnan(least) & ~np.isnan(greatest)
    if measured.any():
        # Markers of different series at different snapshots, for curves that lie on each other.
        every = max(measured.sum() // 8, 1)
        axes.plot(x[measured], accuracy[measured], markevery=(one.index % every, every), **one.style)
    axes.fill_between(x[banded], least[banded], greatest[banded], color=one.style["color"], alpha=BAND, linewidth=0)


def _targets(series: list[Series]) -> set[float]:
    return {target_accuracy(run) for one in series for run in one.runs if not math.isnan(target_accuracy(run))}


# ---- bars


def _draw_sent(axes: Axes, series: list[Series]) -> None:
    """One bar a series; a diamond where a multicast counted once gives another number."""
    sent, once = (
        [[float(run.traffic[name].sum()) for run in one.runs] for one in series] for name in ("sent", "sent_once")
    )
    unit, size = byte_unit(max(map(max, sent)))
    medians, lows, highs = (np.array([pick(values) for values in sent]) / size for pick in (np.median, min, max))
    spread = np.array([medians - lows, highs - medians])
    rows = np.arange(len(series))
    axes.barh(
        rows,
        medians,
        xerr=spread if spread.any() else None,
        height=0.6,
        color=[one.style["color"] for one in series],
        edgecolor="black",
        alpha=0.7,
        capsize=3,
    )
    if once != sent:
        medians_once = np.array([np.median(values) for values in once]) / size
        label = "a multicast counted once"
        axes.plot(medians_once, rows, "D", color="white", markeredgecolor="black", label=label, clip_on=False)
        _legend_above(axes)
    axes.set_title("payload sent by all ranks", loc="left")
    axes.set_xlabel(f"sent [{unit}]")
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_split(axes: Axes, series: list[Series]) -> None:
    splits = [[time_split(run) for run in one.runs] for one in series]
    rows, left = np.arange(len(series)), np.zeros(len(series))
    for part, hatch in HATCHES.items():
        width = np.array([np.median([split[part] for split in splits_of_one]) for splits_of_one in splits])
        axes.barh(rows, width, 0.6, left, color=GREYS[part], edgecolor="black", hatch=hatch, label=part)
        left += width
    axes.set_title("time split", loc="left")
    axes.set_xlabel(f"{_time_label(series)}, mean over the ranks")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend_above(axes)


def _bar_rows(series: list[Series]) -> int:
    """At least two, for a single bar not to fill its panel."""
    return max(len(series), 2)


def _name_rows(axes: Axes, series: list[Series]) -> None:
    """The names of the bars, the first on top."""
    axes.set_yticks(range(len(series)), [_wrapped(one.name, 30) for one in series])
    middle, half = (len(series) - 1) / 2, _bar_rows(series) / 2
    axes.set_ylim(middle + half, middle - half)


def _wrapped(name: str, width: int) -> str:
    """Lines of at most ``width`` letters, numbers together with what they count; a dollar sign starts no formula."""
    return textwrap.fill(re.sub(r"(\d) ", "\\1\N{NO-BREAK SPACE}", name), width).replace("$", r"\$")


# ---- legends


def _legend_entries(series: list[Series]) -> list[Artist]:
    entries = [Line2D([], [], label=_wrapped(one.name, 60), **one.style) for one in series]
    entries.append(Patch(label="range of the replicas", color="black", alpha=BAND))
    return [*entries, Line2D([], [], label="target accuracy", **TARGET)] if _targets(series) else entries


def _legend_columns(entries: list[Artist]) -> int:
    """As many as fit the width: a letter takes about 0.08 inch, a line and the gaps as much as seven letters."""
    longest = max(len(line) for entry in entries for line in entry.get_label().splitlines())
    return max(int(WIDTH / 0.08) // (longest + 7), 1)


def _legend_above(axes: Axes) -> None:
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        frameon=False,
        fontsize="small",
        handlelength=1.4,
        columnspacing=1,
        borderaxespad=0,
    )
