"""Functions that say whether the run in a run file is finished and tested, so that it need not be repeated."""

import math
import os

from grsgd.errors import RunFileError
from grsgd.runs.ending import FINISHED, Ended
from grsgd.runs.metric import metric_of
from grsgd.runs.run_file import Run, load_run


def finished_run(path: str | os.PathLike, **attributes) -> Run | None:
    """Return the run in the file ``path`` if the run completed or diverged, and if its attributes have the values in
    ``attributes``. Return None for any other run, which must be repeated."""
    try:
        run = load_run(path)
    except RunFileError:
        return None
    same = all(run.attributes.get(name) == value for name, value in attributes.items())
    return run if same and run.attributes["ended"] in FINISHED else None


def is_tested(run: Run) -> bool:
    """Return whether a finished run has a test result, or needs no test result.

    A finished run lacks a test result if its job was killed after training, while the models were tested. Runs that
    diverged, and runs without gradients (``--timing-only``), need no test result.
    """
    if run.attributes["ended"] == Ended.DIVERGED or run.attributes.get("timing_only"):
        return True
    metric = metric_of(run)
    found = [run.attributes.get(metric.final, math.nan), *run.curve.get(metric.column, ())]
    return not all(math.isnan(value) for value in found)
