"""Series of a figure. A series is the runs of one experiment, which are drawn with one colour, line style and
marker."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from grsgd.runs.run_file import Run
from grsgd.runs.several import by_experiment, names, seeds_of

# Okabe and Ito's colours, which colour-blind people can distinguish. A dark red replaces yellow, which is too light on
# paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00", "#882255")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "d")


def style(index: int) -> dict:
    """Return the matplotlib style of curve number ``index``. The styles of dozens of curves differ."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINES[(index + index // len(COLOURS)) % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linewidth": 1.6,
        "markersize": 5,
    }


class Series(NamedTuple):
    """Runs that differ only in the seed, usually one run per seed, with their ``name`` and the ``index`` of their
    style."""

    name: str
    runs: list[Run]
    index: int

    @property
    def style(self) -> dict:
        return style(self.index)


def as_series(paths: Sequence[str | os.PathLike], runs: Sequence[Run]) -> list[Series]:
    """Return ``runs`` as a list of series. Runs that differ only in the seed are in one series."""
    groups = by_experiment(runs)
    labels = names([paths[group[0]] for group in groups], [runs[group[0]] for group in groups])
    return [
        Series(", ".join(filter(None, [labels[i], seeds_of(members)])), members, i)
        for i, members in enumerate([runs[j] for j in group] for group in groups)
    ]
