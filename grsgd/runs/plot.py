"""Figure of several runs, for ``grsgd plot``: curves above bars of bytes sent and of the parts of the time."""

import io
import math
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from grsgd.errors import RunFileError, UsageError
from grsgd.runs import bars, curves
from grsgd.runs.bars import Bars
from grsgd.runs.curves import Axis, Quantity, draw_curves
from grsgd.runs.run_file import Run, check_writable
from grsgd.runs.series import Series, as_series
from grsgd.runs.several import load_runs

SUFFIXES = (".png", ".pdf", ".svg")
"""Suffixes of the file types that `plot` can write."""
WIDTH, NARROW = 11.0, 6.0
"""Width in inches of a figure, and of a narrow figure, which has only one column of curves and no bars."""
PANEL_HEIGHT = 3.6
"""Height of a row of curve panels in inches."""
CURVES_TO_BARS = 0.75
"""Smallest ratio of the curves' height to the bars' height, so that many bars do not make the curves too small."""
MANY = 8
"""If a figure has more series than this number, the names of the series are printed in small letters."""
COLUMN_WIDTH, COLUMN_FONT = 5.0, 7.5
"""Width in inches up to which a figure counts as a figure for one column of a paper, and the font size in points of
such a figure."""


Rows = list[tuple[Quantity, list[Axis]]]
"""Rows of curve panels: each row has a quantity, and the axes over which this quantity is drawn."""


class Look(NamedTuple):
    """Options of the appearance of a figure, which are parameters of `plot`."""

    panels: Sequence[str] = ()
    labels: Sequence[str] = ()
    title: str = ""
    size: tuple[float, float] | None = None


AS_IT_IS = Look()


class Drawing(Figure):
    """matplotlib figure that notebooks display when it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=80)
        return content.getvalue()


def plot(
    runs: Sequence[str | os.PathLike | Run],
    out: str | os.PathLike | None = None,
    skip: Callable[[RunFileError], None] | None = None,
    **look,
) -> Drawing:
    """Draw runs, and write the figure to the file ``out``, if given. The suffix of ``out`` must be .png, .pdf or .svg.

    Runs that differ only in the seed are drawn as one curve and one bar, the median, with one entry in the legend.
    Simulated times and real times have separate panels.

    Parameters
    ----------
    runs
        Runs (`Run`), or paths of run files.
    skip
        Function that is called with the error of each file that cannot be read. Without ``skip`` the error is raised.
    panels
        Names of the panels, in order; by default all panels for which the runs have data. The name of a metric or of a
        logged value, ``train_loss`` and ``samples`` stand for two panels each, over time and over samples.
        ``NAME/time`` and ``NAME/samples`` stand for only one of the two panels. Panels of bars: ``step``, ``sent`` and
        ``split``.
    labels
        Names of the curves and bars, in the order of the legend.
    title
        Title above the figure.
    size
        Width and height in inches. By default the size is chosen by the content.

    Raises RunFileError for a run file that ``load_run`` refuses, for runs without data to draw, and for an ``out`` that
    has another suffix or cannot be written. Raises UsageError for unknown panels and a wrong number of labels.
    """
    suffix = Path(out).suffix.lower() if out is not None else ""
    if out is not None and suffix not in SUFFIXES:
        raise RunFileError(f"{os.fspath(out)}: unknown suffix {suffix!r}, not one of {', '.join(SUFFIXES)}")
    figure = draw(series_of(runs, skip), Look(**look))
    if out is not None:
        check_writable(out)
        try:
            figure.savefig(out, format=suffix[1:], dpi=150)
        except OSError as error:
            raise RunFileError(f"{os.fspath(out)}: the figure cannot be written: {error.strerror or error}") from error
    return figure


def series_of(runs: Sequence[str | os.PathLike | Run], skip: Callable[[RunFileError], None] | None) -> list[Series]:
    """Return the series (runs that differ only in the seed) of the given runs and run files."""
    files = [each for each in runs if not isinstance(each, Run)]
    paths, loaded = load_runs(files, skip) if files or not runs else ([], [])
    given = [each for each in runs if isinstance(each, Run)]
    return as_series([*paths, *(f"run {number}" for number in range(1, len(given) + 1))], [*loaded, *given])


def draw(series: list[Series], look: Look = AS_IT_IS) -> Drawing:
    """Draw the curves and the bars in two subfigures, so that long names at the bars do not make the curves narrower.

    The figure has the panels that ``look`` names. If ``look`` names no panels, all panels for which the runs have data
    are drawn. Raises RunFileError if the runs have no data to draw. Raises UsageError for unknown panels and a wrong
    number of labels.
    """
    series = named(series, look.labels)
    rows, drawn = chosen(series, look.panels)
    if not rows and not drawn:
        raise RunFileError("nothing to draw: there are no curves, times or bytes")
    columns = max((len(axes) for _, axes in rows), default=0)
    width = look.size[0] if look.size else WIDTH if drawn or columns > 1 else NARROW
    with rc_context({"font.size": COLUMN_FONT} if width <= COLUMN_WIDTH else {}):
        return _drawn(series, rows, drawn, look, width)


def _drawn(series: list[Series], rows: Rows, drawn: list[Bars], look: Look, width: float) -> Drawing:
    heights = _heights(series, rows, drawn, width)
    figure = Drawing(figsize=look.size or (width, sum(heights)), layout="constrained")
    if look.title:
        figure.suptitle(_plain(look.title))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if rows:
        _draw_curves(parts[0], series, rows, width)
    if drawn:
        _draw_bars(parts[-1], series, drawn)
    return figure


def named(series: list[Series], labels: Sequence[str]) -> list[Series]:
    """Return the series with ``labels`` as names, or unchanged if ``labels`` is empty. Raises UsageError if the number
    of labels is wrong."""
    if not labels:
        return series
    if len(labels) != len(series):
        there = "; ".join(one.name for one in series)
        raise UsageError(f"--labels: {len(labels)} given for {len(series)} curves, which are: {there}")
    return [one._replace(name=label) for one, label in zip(series, labels, strict=True)]


def chosen(series: list[Series], panels: Sequence[str]) -> tuple[Rows, list[Bars]]:
    """Return the rows of curves to draw (each row shows one quantity over some axes), and the panels of bars. Raises
    UsageError for unknown names of panels."""
    over = [*curves.time_axes(series), curves.samples_axis(series)]
    if not panels:
        rows = [(each, _axes_of(each, over)) for each in curves.quantities(series)]
        return rows, bars.shown_by_default(series)
    known = {quantity.name: quantity for quantity in curves.all_quantities(series)}
    known_bars = bars.panels(series)
    rows, drawn = {}, []
    for panel in dict.fromkeys(panels):
        name, _, axis = panel.partition("/")
        axes = [each for each in _axes_of(known[name], over) if axis in ("", each.name)] if name in known else []
        found = [each for each in known_bars if each.name == panel]
        if not axes and not found:
            allowed = ", ".join([*known, *dict.fromkeys(each.name for each in known_bars)])
            more = "of a curve also NAME/time, NAME/samples"
            raise UsageError(f"--panels: these runs have no panel {panel!r}; they have {allowed}; {more}")
        if axes:
            rows.setdefault(name, []).extend(axes)
        drawn += found
    return [(known[name], axes) for name, axes in rows.items()], drawn


def _axes_of(quantity: Quantity, over: list[Axis]) -> list[Axis]:
    """Return the axes in ``over`` over which curves of ``quantity`` are drawn. An axis is left out if its runs lack the
    quantity, or if the axis itself shows the quantity."""
    axes = [axis for axis in over if quantity.is_known(axis.series)]
    return [axis for axis in axes if axis.name != quantity.name]


def _heights(series: list[Series], rows: Rows, drawn: list[Bars], width: float) -> list[float]:
    """Return a list of heights in inches: the height of the curves with their legend, and the height of the bars. If
    the figure has no curves or no bars, the returned list has only one height."""
    per_row = 0.25 + 0.15 * _lines(series, 30) if len(series) <= MANY else 0.15 + 0.12 * _lines(series, 45)
    bars_height = (1.7 if len(drawn) > 2 else 1.2) + per_row * _bar_rows(series)
    entries = [_wrapped(one.name, 60) for one in series] + [""] * 3
    legend = 0.2 * _lines(series, 60) * math.ceil(len(entries) / _legend_columns(entries, width)) + 0.3
    curves_height = PANEL_HEIGHT * len(rows)
    if drawn:
        curves_height = max(curves_height, CURVES_TO_BARS * bars_height)
    return [curves_height + legend] * bool(rows) + [bars_height] * bool(drawn)


def _lines(series: list[Series], width: int) -> int:
    return max(_wrapped(one.name, width).count("\n") + 1 for one in series)


def _draw_curves(figure: SubFigure, series: list[Series], rows: Rows, width: float) -> None:
    entries: dict[str, Artist] = {}
    columns = max(len(axes) for _, axes in rows)
    for (quantity, axes), panels in zip(
        rows, figure.subplots(len(rows), columns, sharey="row", squeeze=False), strict=True
    ):
        for panel, axis in zip(panels, axes, strict=False):
            entries |= draw_curves(panel, quantity, axis)
        for panel in panels[len(axes) :]:
            panel.remove()
        panels[0].set_ylabel(_wrapped(quantity.label, 40))
    for label, entry in entries.items():
        entry.set_label(_wrapped(label, 60))
    by_name = [entries.pop(one.name) for one in series if one.name in entries]
    handles = [*by_name, *entries.values()]
    columns = _legend_columns([handle.get_label() for handle in handles], width)
    size = "small" if len(series) > MANY else None
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=size)


# ---- functions that draw bars


def _draw_bars(figure: SubFigure, series: list[Series], drawn: list[Bars]) -> None:
    every = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    bars.draw_bars(every, series, drawn)
    _name_rows(every[0], series)


def _bar_rows(series: list[Series]) -> int:
    """Return the number of rows of bars, at least two, so that a single bar does not fill its panel."""
    return max(len(series), 2)


def _name_rows(axes: Axes, series: list[Series]) -> None:
    """Label the rows of bars at the y axis, with the first row on top."""
    many = len(series) > MANY
    names = [_wrapped(one.name, 45 if many else 30) for one in series]
    axes.set_yticks(range(len(series)), names, fontsize="small" if many else None)
    middle, half = (len(series) - 1) / 2, _bar_rows(series) / 2
    axes.set_ylim(middle + half, middle - half)


# ---- functions for texts in figures


def _plain(text: str) -> str:
    """Return ``text`` with escaped dollar signs, so that matplotlib prints dollar signs and starts no formula."""
    return text.replace("$", r"\$")


def _wrapped(name: str, width: int) -> str:
    """Return ``name`` broken into lines of at most ``width`` characters. No line ends between a number and the word
    after the number."""
    return _plain(textwrap.fill(re.sub(r"(\d) ", "\\1\N{NO-BREAK SPACE}", name), width))


def _legend_columns(labels: list[str], width: float) -> int:
    """Return the number of legend columns that fit into ``width`` inches. A letter of 10 points is about 0.08 inch
    wide. In a legend, the line sample and the gaps of an entry take the width of seven letters."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    return max(int(width / (0.008 * rcParams["font.size"])) // (longest + 7), 1)
