"""Check of whether a run has to be repeated."""

import os

from grsgd.errors import RunFileError
from grsgd.runs.ending import FINISHED
from grsgd.runs.run_file import Run, load_run


def finished_run(path: str | os.PathLike, **attributes) -> Run | None:
    """Return the run in a file if it completed or diverged and has ``attributes``, so that it need not be repeated;
    else None."""
    try:
        run = load_run(path)
    except RunFileError:
        return None
    same = all(run.attributes.get(name) == value for name, value in attributes.items())
    return run if same and run.attributes["ended"] in FINISHED else None
