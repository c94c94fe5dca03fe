"""Figures of a report: vectors, readable in black and white; a label has the same style in every panel."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from grsgd.runs.series import COLOURS, style

matplotlib.rcParams["svg.hashsalt"] = "grsgd"  # the same figure is the same file
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "----")
WIDTH, HEIGHT = 4.6, 3.3
"""Inches of a panel."""
PANELS_IN_A_ROW = 3


class Panel(NamedTuple):
    """Axes with their units. logx, logy: logarithmic. mark: a horizontal line at this height, with its words."""

    title: str
    xlabel: str
    ylabel: str
    lines: dict[str, dict[float, list[float]]] = {}
    """By label and x: the values of all seeds, drawn as their median and range."""
    curves: dict[str, list[tuple[Sequence[float], Sequence[float]]]] = {}
    """By label: one curve (x, y) per seed."""
    bars: dict[str, dict[str, list[float]]] = {}
    """By label and group: the values of all seeds, drawn as their median and range."""
    logx: bool = False
    logy: bool = False
    mark: tuple[float, str] | None = None


def draw(path: Path, panels: list[Panel]):
    """Write the panels side by side, with one legend, as SVG."""
    columns = min(len(panels), PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    labels = list(dict.fromkeys(label for panel in panels for kind in panel[3:6] for label in kind))
    figure = Figure(figsize=(WIDTH * max(columns, 1.4), HEIGHT * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, panel in zip(axes, panels, strict=False):
        draw_panel(ax, panel, labels)
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    shown = [label for label in labels if label in handles]
    if len(shown) > 1 or not panels[0].bars:
        columns = max(1, min(len(shown), int(12 * figure.get_figwidth() / (6 + max(map(len, shown))))))
        handles = [handles[label] for label in shown]
        figure.legend(handles, shown, loc="outside lower center", ncols=columns, frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None})


def draw_panel(ax, panel: Panel, labels: list[str]):
    for label, points in panel.lines.items():
        known = {x: values for x, values in points.items() if not np.all(np.isnan(values))}
        middle = [np.nanmedian(values) for values in known.values()]
        low = [m - np.nanmin(values) for m, values in zip(middle, known.values(), strict=True)]
        high = [np.nanmax(values) - m for m, values in zip(middle, known.values(), strict=True)]
        look = style(labels.index(label)) | {"linewidth": 1.4}
        ax.errorbar(list(known), middle, [low, high], label=label, capsize=3, **look)
    for label, curves in panel.curves.items():
        look = style(labels.index(label)) | {"markersize": 3.5, "linewidth": 1}
        for number, (x, y) in enumerate(curves):
            ax.plot(x, y, label=label if number == 0 else None, markevery=max(1, len(x) // 6), **look)
    groups = list(dict.fromkeys(group for values in panel.bars.values() for group in values))
    for number, (label, values) in enumerate(panel.bars.items()):
        width, drawn = 0.8 / len(panel.bars), False
        for place, group in enumerate(groups):
            known = [value for value in values.get(group, []) if not np.isnan(value)]
            if not known:
                continue
            m = float(np.median(known))
            index = labels.index(label)
            ax.bar(
                place + (number - (len(panel.bars) - 1) / 2) * width,
                m,
                width,
                yerr=[[m - min(known)], [max(known) - m]],
                capsize=2,
                label=label if not drawn else None,
                color=COLOURS[index % len(COLOURS)],
                hatch=HATCHES[index % len(HATCHES)],
                edgecolor="white",
                linewidth=0,
            )
            drawn = True
    if panel.bars:
        ax.set_xticks(range(len(groups)), groups)
    if panel.logx and not panel.bars:
        ax.set_xscale("log")
        ticks = sorted({x for points in panel.lines.values() for x in points})
        if ticks and len(ticks) <= 16:
            kept = [x for x in ticks if x in (2, 4, 8, 16, 32, 64, 128, 256)] if len(ticks) > 5 else ticks
            ax.set_xticks(kept, [f"{x:g}" for x in kept])
            ax.minorticks_off()
    if panel.logy:
        ax.set_yscale("log")
    elif not panel.curves:
        ax.set_ylim(bottom=0)
    if panel.mark:
        ax.axhline(panel.mark[0], color="black", linestyle=":", linewidth=1)
        ax.annotate(
            panel.mark[1], (1, panel.mark[0]), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
        )
    ax.set_title(panel.title, fontsize=10, loc="left")
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    ax.grid(alpha=0.3, axis="y" if panel.bars else "both")
    ax.set_axisbelow(True)
