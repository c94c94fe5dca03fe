"""Functions that write an experiment's figures and numbers to files.

Each row of a CSV file states the commit, the machine and the date of its numbers. If a page quotes numbers of a file, a
copy of the file is in the folder `RECORDED`.
"""

import csv
import shutil
import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.figure import Figure

from experiments.papers import ROOT
from experiments.runner.hosts import describe_machine
from grsgd.errors import UsageError
from grsgd.training.description import commit

RECORDED = ROOT / "docs" / "results" / "numbers"
"""Folder of the CSV files whose numbers pages quote."""
DIRTY = "-dirty"
"""End of the name of a commit with uncommitted changes, whose code cannot be obtained again."""
ORIGIN = ("commit", "machine", "made")
"""Columns of a CSV file that state the origin of a row's numbers."""


def save(figure: Figure, out: Path):
    """Write a figure as PDF and PNG; the endings .pdf and .png replace the ending of the path ``out``."""
    for suffix in (".pdf", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=150)


def write_csv(results: Mapping[tuple, tuple], path: Path):
    """Write each pair of named tuples as a CSV row with its origin; the names of their fields are the header."""
    point, result = next(iter(results.items()))
    rows = ([*point, *result] for point, result in results.items())
    write_rows(path, [*point._fields, *result._fields], rows)


def write_rows(path: Path, header: Iterable[str], rows: Iterable[Iterable]):
    """Write rows to a CSV file, with the origin of the numbers in the last columns."""
    origin = [str(commit()), describe_machine(), f"{datetime.now(UTC):%Y-%m-%d}"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, *ORIGIN])
        writer.writerows([*row, *origin] for row in rows)


def read_csv(path: Path, point: type, result: type) -> dict[tuple, tuple]:
    """Return the pairs of named tuples, of the types ``point`` and ``result``, that `write_csv` has written."""
    with path.open(newline="") as file:
        return {parsed(point, row): parsed(result, row) for row in csv.DictReader(file)}


def parsed(kind: type, row: Mapping[str, str]) -> tuple:
    """Return the named tuple of type ``kind`` with the values of a CSV row; truth values are False and True."""
    types = typing.get_type_hints(kind)
    return kind(*(row[name] == "True" if types[name] is bool else types[name](row[name]) for name in kind._fields))


def record(path: Path, folder: Path = RECORDED, name: str = "") -> Path:
    """Copy a CSV file to the folder of recorded numbers, under its own name or ``name``; return the copy's path.

    Raises UsageError if the file's numbers were made by code that was not committed.
    """
    with path.open(newline="") as file:
        commits = {row["commit"] for row in csv.DictReader(file)}
    if lost := sorted(one for one in commits if one.endswith(DIRTY) or one == "None"):
        raise UsageError(f"--record: {path}: numbers of {', '.join(lost)}: commit the code, and make them again")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(path, folder / (name or path.name)))
