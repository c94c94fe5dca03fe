"""Results of a sweep: a table with a row per combination of values, and a plot."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from grsgd.cli.outcome import SkippedFiles, print_error
from grsgd.errors import RunFileError

TABLE, NUMBERS, PLOT = "sweep.md", "sweep.csv", "sweep.png"
"""Names of a sweep's files: the table in Markdown, the unrounded numbers of the table as CSV, and the plot."""


def show(files: Sequence[Path], folder: Path):
    """Print the table of the run files ``files``, write the table to ``folder`` as Markdown and as CSV, and draw a plot
    in ``folder``.

    Runs that differ only in the seed share a row and a curve. The table of a sweep has the mean over the seeds, and the
    95 % interval of this mean. In the plot, a band shows the range from the least to the greatest value of the runs
    that differ in the seed. The function does nothing if ``files`` is empty.
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
    """Draw the plot of the run files ``files`` to the file ``picture``. Raises RunFileError if the runs cannot be
    drawn."""
    # a plot in a file needs no backend of matplotlib, and an unknown backend would be an error
    os.environ.pop("MPLBACKEND", None)
    from grsgd.runs.plot import plot

    plot(files, picture, SkippedFiles())
