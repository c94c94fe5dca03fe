"""Results of a sweep: a table with a row per combination, and a plot."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from grsgd.cli.outcome import SkippedFiles, print_error
from grsgd.errors import RunFileError

TABLE, NUMBERS, PLOT = "sweep.md", "sweep.csv", "sweep.png"
"""Files of the table in Markdown, of the same numbers in full, and of the plot."""


def show(files: Sequence[Path], folder: Path):
    """Print the table of run files, write it to ``folder`` in two forms, and draw the plot there.

    Runs that differ in the seed alone share a row and a curve: mean and 95 % interval in the table, a band from the
    least to the greatest value in the plot. Does nothing without files.
    """
    if not files:
        return
    from grsgd.runs.report import WIDTH, report

    skip = SkippedFiles()
    form = "text" if sys.stdout.isatty() else "md"
    width = shutil.get_terminal_size((WIDTH, 0)).columns if form == "text" else WIDTH
    print(report(files, "mean", form, width=width, skip=skip), flush=True)
    try:
        for name, of_file in ((TABLE, "md"), (NUMBERS, "csv")):
            (folder / name).write_text(report(files, "mean", of_file, skip=skip) + "\n")
        draw(files, folder / PLOT)
    except (OSError, RunFileError) as error:
        print_error(error)
        return
    print(f"\n{folder / TABLE}, {folder / NUMBERS}, {folder / PLOT}", flush=True)


def draw(files: Sequence[Path], picture: Path):
    """Draw the runs; raises RunFileError."""
    os.environ.pop("MPLBACKEND", None)  # figures are files here, and an unknown backend would be an error
    from grsgd.runs.plot import plot

    plot(files, picture, SkippedFiles())
