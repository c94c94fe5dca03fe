"""Runs as one figure: the curves that they have, and bars of what was sent and what the time was spent on."""

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
"""File types that ``plot`` writes."""
WIDTH, NARROW = 11.0, 6.0
"""Inches of a figure, and of one with a single column of curves and no bars."""
PANEL_HEIGHT = 3.6
"""Inches of a row of curves."""
CURVES_TO_BARS = 0.75
"""Least height of the curves, as a multiple of that of the bars: however many runs there are, curves have room."""
MANY = 8
"""Series beyond which names are set smaller."""
COLUMN_WIDTH, COLUMN_FONT = 5.0, 7.5
"""Inches of a figure that fits a column of a paper, at most, and the points of its letters."""


Rows = list[tuple[Quantity, list[Axis]]]
"""Rows of curves: a quantity, and the axes over which it is drawn."""


class Look(NamedTuple):
    """The look of a figure; the fields are those of `plot`."""

    panels: Sequence[str] = ()
    labels: Sequence[str] = ()
    title: str = ""
    size: tuple[float, float] | None = None


AS_IT_IS = Look()


class Drawing(Figure):
    """A figure that notebooks show by themselves."""

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
    """Draw runs, and write the figure to the file ``out``, if there is one, whose suffix is one of ``SUFFIXES``.

    Runs that differ in nothing but the seed share one curve and one bar (their median), and one entry of the legend.
    Simulated times and times by the clock have panels of their own.

    Parameters
    ----------
    runs
        Runs, or the files that have them.
    skip
        As for `load_runs`.
    panels
        Names of the panels, in order; by default what the runs have. ``NAME`` of a metric, of what a loop has logged,
        ``train_loss`` or ``samples`` is two panels, over time and over samples; ``NAME/time`` and ``NAME/samples`` are
        one of them. ``step``, ``sent`` and ``split`` are bars.
    labels
        Names of the curves and bars, in the order in which the legend has them.
    title
        Stands above the figure.
    size
        Width and height in inches; by default such that all has room.

    Raises RunFileError for a file that ``load_run`` refuses, another suffix, an unwritable ``out``, and if there is
    nothing to draw; UsageError for unknown panels and another number of labels.
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
            raise RunFileError(f"{os.fspath(out)}: {error.strerror or error}") from error
    return figure


def series_of(runs: Sequence[str | os.PathLike | Run], skip: Callable[[RunFileError], None] | None) -> list[Series]:
    """Return the series of runs, some of which are in files."""
    files = [each for each in runs if not isinstance(each, Run)]
    paths, loaded = load_runs(files, skip) if files or not runs else ([], [])
    given = [each for each in runs if isinstance(each, Run)]
    return as_series([*paths, *(f"run {number}" for number in range(1, len(given) + 1))], [*loaded, *given])


def draw(series: list[Series], look: Look = AS_IT_IS) -> Drawing:
    """Draw curves above, bars below: two subfigures, for the names of the bars not to narrow the curves.

    Only panels in which there is something to see, or those that ``look`` names. Raises RunFileError if there is
    nothing to draw, and UsageError.
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
    """Return the series with other names, if there are any; raises UsageError for another number of them."""
    if not labels:
        return series
    if len(labels) != len(series):
        there = "; ".join(one.name for one in series)
        raise UsageError(f"--labels: {len(labels)} for {len(series)} curves, which are: {there}")
    return [one._replace(name=label) for one, label in zip(series, labels, strict=True)]


def chosen(series: list[Series], panels: Sequence[str]) -> tuple[Rows, list[Bars]]:
    """Return the rows of curves, each a quantity over some axes, and the panels of bars. Raises UsageError for unknown
    names."""
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
    """Return the axes over which a quantity is drawn: where it is known, and samples not over themselves."""
    axes = [axis for axis in over if quantity.is_known(axis.series)]
    return [axis for axis in axes if axis.name != quantity.name]


def _heights(series: list[Series], rows: Rows, drawn: list[Bars], width: float) -> list[float]:
    """Return the inches of the curves with their legend, and of the bars, as far as there are such."""
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


# ---- bars


def _draw_bars(figure: SubFigure, series: list[Series], drawn: list[Bars]) -> None:
    every = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    bars.draw_bars(every, series, drawn)
    _name_rows(every[0], series)


def _bar_rows(series: list[Series]) -> int:
    """At least two, for a single bar not to fill its panel."""
    return max(len(series), 2)


def _name_rows(axes: Axes, series: list[Series]) -> None:
    """The names of the bars, the first on top."""
    many = len(series) > MANY
    names = [_wrapped(one.name, 45 if many else 30) for one in series]
    axes.set_yticks(range(len(series)), names, fontsize="small" if many else None)
    middle, half = (len(series) - 1) / 2, _bar_rows(series) / 2
    axes.set_ylim(middle + half, middle - half)


# ---- text


def _plain(text: str) -> str:
    """Return a text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def _wrapped(name: str, width: int) -> str:
    """Lines of at most ``width`` letters, numbers together with what they count; a dollar sign starts no formula."""
    return _plain(textwrap.fill(re.sub(r"(\d) ", "\\1\N{NO-BREAK SPACE}", name), width))


def _legend_columns(labels: list[str], width: float) -> int:
    """As many as fit the width: a letter takes about 0.08 inch at 10 points, a line and the gaps as much as seven."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    return max(int(width / (0.008 * rcParams["font.size"])) // (longest + 7), 1)
