"""Functions that draw the benchmark of all-reduces: each all-reduce's time as a multiple of a memcpy, by array size."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.tables.draw import as_svg
from grsgd.runs.series import COLOURS, MARKERS

MEMCPY, IN_PLACE = "memcpy", "grsgd shared, in place"
SHOWN = {
    IN_PLACE: "grsgd shared",
    "grsgd ring": "grsgd ring",
    "grsgd halving-doubling": "grsgd halving-doubling",
    "MPI_Allreduce": "MPI_Allreduce",
    "gloo": "gloo",
}
"""The all-reduces in the figure, with their labels; the benchmark's table has further all-reduces."""
KIB = 1 << 10


class Timing(NamedTuple):
    """The name of a measured all-reduce, and the number of bytes of its array."""

    contender: str
    nbytes: int


class Spread(NamedTuple):
    """Seconds of an all-reduce: median, least and greatest value over all rounds of the benchmark."""

    median: float
    least: float
    most: float


def read(path: Path) -> dict[Timing, Spread]:
    """Read the seconds of all-reduces from a CSV file."""
    with path.open(newline="") as file:
        return {
            Timing(row["contender"], int(row["nbytes"])): Spread(*(float(row[name]) for name in Spread._fields))
            for row in csv.DictReader(file)
        }


def draw(by_ranks: dict[int, dict[Timing, Spread]], out: Path):
    """Write an SVG file with one panel per number of ranks.

    Shaded areas extend from the fastest to the slowest round of each all-reduce.
    """
    figure = Figure(figsize=(4.6 * len(by_ranks), 3.4), layout="constrained")
    panels = figure.subplots(1, len(by_ranks), sharey=True, squeeze=False)[0]
    for panel, (ranks, results) in zip(panels, sorted(by_ranks.items()), strict=True):
        for index, (contender, label) in enumerate(SHOWN.items()):
            lines = defaultdict(list)
            for point, result in sorted(results.items(), key=lambda item: item[0].nbytes):
                if point.contender == contender:
                    bound = results[Timing(MEMCPY, point.nbytes)].median
                    lines["x"].append(point.nbytes / KIB)
                    for name, value in result._asdict().items():
                        lines[name].append(value / bound)
            if not lines:
                continue
            colour = COLOURS[index % len(COLOURS)]
            panel.plot(lines["x"], lines["median"], color=colour, marker=MARKERS[index % len(MARKERS)], label=label)
            panel.fill_between(lines["x"], lines["least"], lines["most"], color=colour, alpha=0.12, linewidth=0)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        sizes = sorted({point.nbytes for point in results})
        panel.set_xticks([size / KIB for size in sizes], [in_words(size) for size in sizes], fontsize=8)
        panel.set_yscale("log")
        panel.set_title(f"{ranks} ranks", fontsize=10)
        panel.set_xlabel("array")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("time / memcpy by all ranks")
    panels[-1].legend(fontsize=8)
    out.write_text(as_svg(figure), encoding="utf-8")


def in_words(nbytes: int) -> str:
    return f"{nbytes // KIB} KiB" if nbytes < KIB * KIB else f"{nbytes // KIB // KIB} MiB"
