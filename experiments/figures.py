"""Files of an experiment's figures and numbers."""

import csv
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure


def save(figure: Figure, out: Path):
    """Write a figure as PDF and PNG."""
    for suffix in (".pdf", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=150)


def write_csv(results: Mapping[tuple, tuple], path: Path):
    """Write named tuples, each of which leads to another one, as rows with the names of both."""
    point, result = next(iter(results.items()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*point._fields, *result._fields])
        writer.writerows([*point, *result] for point, result in results.items())
