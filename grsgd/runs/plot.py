"""Runs as one figure: the curves that they have, and bars of what was sent and what the time was spent on."""

import io
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from grsgd.errors import RunFileError
from grsgd.runs import bars
from grsgd.runs.curves import SAMPLES, draw_curves, quantities, samples_axis, time_axis
from grsgd.runs.run_file import check_writable
from grsgd.runs.series import Series, as_series
from grsgd.runs.several import load_runs

SUFFIXES = (".png", ".pdf", ".svg")
"""File types that ``plot`` writes."""
WIDTH = 11  # inches


class Drawing(Figure):
    """A figure that notebooks show by themselves."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=80)
        return content.getvalue()


def plot(
    paths: Sequence[str | os.PathLike], out: str | os.PathLike, skip: Callable[[RunFileError], None] | None = None
) -> None:
    """Draw the runs in the files ``paths`` into the file ``out``, whose suffix is one of ``SUFFIXES``.

    Runs that differ in nothing but the seed share one curve and one bar (their median), and one entry of the legend.
    ``skip``: see `load_runs`. Raises RunFileError for a file that ``load_run`` refuses, another suffix or an
    unwritable ``out``.
    """
    suffix = Path(out).suffix.lower()
    if suffix not in SUFFIXES:
        raise RunFileError(f"{os.fspath(out)}: unknown suffix {suffix!r}, not one of {', '.join(SUFFIXES)}")
    series = as_series(*load_runs(paths, skip))
    check_writable(out)
    figure = draw(series)
    try:
        figure.savefig(out, format=suffix[1:], dpi=150)
    except OSError as error:
        raise RunFileError(f"{os.fspath(out)}: {error.strerror or error}") from error


def draw(series: list[Series]) -> Drawing:
    """Curves above, bars below: two subfigures, for the names of the bars not to narrow the curves.

    Only panels in which there is something to see: accuracies, or losses if all runs have them, or else the samples
    over time; the time of a step where accuracies are missing. Raises RunFileError if there is none.
    """
    rows = quantities(series)
    has_curves = bool(rows) or any(len(run.curve["time"]) for one in series for run in one.runs)
    bar_panels = len(bars.panels(series))
    if not has_curves and not bar_panels:
        raise RunFileError("nothing to draw: there are no curves, times or bytes")
    lines = max(_wrapped(one.name, 30).count("\n") + 1 for one in series)
    curves_height = 3.6 * max(len(rows), 1) + 0.25 * (len(series) + 3) / 2
    bars_height = (1.7 if bar_panels > 2 else 1.2) + (0.25 + 0.15 * lines) * _bar_rows(series)
    heights = [curves_height] * has_curves + [bars_height] * bool(bar_panels)
    figure = Drawing(figsize=(WIDTH, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if has_curves:
        _draw_curves(parts[0], series)
    if bar_panels:
        _draw_bars(parts[-1], series)
    return figure


def _draw_curves(figure: SubFigure, series: list[Series]) -> None:
    rows, over = quantities(series), (time_axis(series), samples_axis(series))
    entries: dict[str, Artist] = {}
    if not rows:
        panel = figure.subplots()
        entries |= draw_curves(panel, series, SAMPLES, over[0])
        panel.set_ylabel(SAMPLES.label)
    else:
        for quantity, panels in zip(rows, figure.subplots(len(rows), 2, sharey="row", squeeze=False), strict=True):
            for panel, axis in zip(panels, over, strict=True):
                entries |= draw_curves(panel, series, quantity, axis)
            panels[0].set_ylabel(_wrapped(quantity.label, 40))
    for label, entry in entries.items():
        entry.set_label(_wrapped(label, 60))
    by_name = [entries.pop(one.name) for one in series if one.name in entries]
    handles = [*by_name, *entries.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=_legend_columns(handles), frameon=False)


# ---- bars


def _draw_bars(figure: SubFigure, series: list[Series]) -> None:
    every = figure.subplots(1, len(bars.panels(series)), sharey=True, squeeze=False)[0]
    bars.draw_bars(every, series)
    _name_rows(every[0], series)


def _bar_rows(series: list[Series]) -> int:
    """At least two, for a single bar not to fill its panel."""
    return max(len(series), 2)


def _name_rows(axes: Axes, series: list[Series]) -> None:
    """The names of the bars, the first on top."""
    axes.set_yticks(range(len(series)), [_wrapped(one.name, 30) for one in series])
    middle, half = (len(series) - 1) / 2, _bar_rows(series) / 2
    axes.set_ylim(middle + half, middle - half)


# ---- text


def _wrapped(name: str, width: int) -> str:
    """Lines of at most ``width`` letters, numbers together with what they count; a dollar sign starts no formula."""
    return textwrap.fill(re.sub(r"(\d) ", "\\1\N{NO-BREAK SPACE}", name), width).replace("$", r"\$")


def _legend_columns(entries: list[Artist]) -> int:
    """As many as fit the width: a letter takes about 0.08 inch, a line and the gaps as much as seven letters."""
    longest = max((len(line) for entry in entries for line in entry.get_label().splitlines()), default=1)
    return max(int(WIDTH / 0.08) // (longest + 7), 1)
