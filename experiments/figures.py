"""Functions by which experiments write figures and numbers to files.

Each row of a CSV file states the commit, the machine and the date of the numbers in the row. If a documentation page
quotes numbers of a CSV file, a copy of the file is in the folder `RECORDED`.
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
"""Folder of the CSV files whose numbers the documentation's pages quote."""
DIRTY = "-dirty"
"""End of the name of a commit if the code had uncommitted changes, so that this code cannot be obtained again."""
ORIGIN = ("commit", "machine", "made")
"""Columns of a CSV file that state where and when the numbers of a row were made."""


def save(figure: Figure, out: Path):
    """Write a figure as PDF and PNG; the endings .pdf and .png replace the ending of the path ``out``."""
    for suffix in (".pdf", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=150)


def write_csv(results: Mapping[tuple, tuple], path: Path):
    """Write each pair of named tuples as a row of a CSV file, with commit, machine and date.

    The names of the tuples' fields are the header.
    """
    point, result = next(iter(results.items()))
    rows = ([*point, *result] for point, result in results.items())
    write_rows(path, [*point._fields, *result._fields], rows)


def write_rows(path: Path, header: Iterable[str], rows: Iterable[Iterable]):
    """Write ``rows`` to a CSV file, with commit, machine and date in the last columns."""
    origin = [str(commit()), describe_machine(), f"{datetime.now(UTC):%Y-%m-%d}"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, *ORIGIN])
        writer.writerows([*row, *origin] for row in rows)


def read_csv(path: Path, point: type, result: type) -> dict[tuple, tuple]:
    """Read a CSV file of `write_csv`; return a dict from named tuples ``point`` to named tuples ``result``."""
    with path.open(newline="") as file:
        return {parsed(point, row): parsed(result, row) for row in csv.DictReader(file)}


def parsed(kind: type, row: Mapping[str, str]) -> tuple:
    """Return a named tuple of type ``kind`` with the values of a CSV row, in which bools are "True" or "False"."""
    types = typing.get_type_hints(kind)
    return kind(*(row[name] == "True" if types[name] is bool else types[name](row[name]) for name in kind._fields))


def record(path: Path, folder: Path = RECORDED, name: str = "") -> Path:
    """Copy a CSV file to the folder of recorded numbers; return the path of the copy.

    The copy of the CSV file has the name ``name``, or by default the file's own name. Raises UsageError if code with
    uncommitted changes made some of the file's numbers.
    """
    with path.open(newline="") as file:
        commits = {row["commit"] for row in csv.DictReader(file)}
    if lost := sorted(one for one in commits if one.endswith(DIRTY) or one == "None"):
        raise UsageError(f"--record: {path}: numbers of {', '.join(lost)}: commit the code, and make them again")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(path, folder / (name or path.name)))
