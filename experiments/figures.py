"""Files of an experiment's figures and numbers.

A CSV file says in each row which commit its numbers are of, on what machine they were made, and when. Those of which a
page quotes numbers lie beside the pages, in `RECORDED`.
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
"""The numbers that pages quote."""
DIRTY = "-dirty"
"""The end of a commit whose code was changed and not committed, so that nobody can have it again."""
ORIGIN = ("commit", "machine", "made")
"""The columns that say where the numbers of a row are from."""


def save(figure: Figure, out: Path):
    """Write a figure as PDF and PNG."""
    for suffix in (".pdf", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=150)


def write_csv(results: Mapping[tuple, tuple], path: Path):
    """Write named tuples, each of which leads to another one, as rows with the names of both, and their origin."""
    point, result = next(iter(results.items()))
    rows = ([*point, *result] for point, result in results.items())
    write_rows(path, [*point._fields, *result._fields], rows)


def write_rows(path: Path, header: Iterable[str], rows: Iterable[Iterable]):
    """Write rows with their origin."""
    origin = [str(commit()), describe_machine(), f"{datetime.now(UTC):%Y-%m-%d}"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, *ORIGIN])
        writer.writerows([*row, *origin] for row in rows)


def read_csv(path: Path, point: type, result: type) -> dict[tuple, tuple]:
    """Return what `write_csv` has written of named tuples of these types."""
    with path.open(newline="") as file:
        return {parsed(point, row): parsed(result, row) for row in csv.DictReader(file)}


def parsed(kind: type, row: Mapping[str, str]) -> tuple:
    """Return the named tuple whose fields a row has. Truth values are False and True."""
    types = typing.get_type_hints(kind)
    return kind(*(row[name] == "True" if types[name] is bool else types[name](row[name]) for name in kind._fields))


def record(path: Path, folder: Path = RECORDED, name: str = "") -> Path:
    """Keep a CSV file beside the pages, under its own name or another one; return where. Raises UsageError if its
    numbers are of code that was not committed."""
    with path.open(newline="") as file:
        commits = {row["commit"] for row in csv.DictReader(file)}
    if lost := sorted(one for one in commits if one.endswith(DIRTY) or one == "None"):
        raise UsageError(f"--record: {path}: numbers of {', '.join(lost)}, which nobody can have again: commit first")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(path, folder / (name or path.name)))
