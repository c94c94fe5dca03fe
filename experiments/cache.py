"""Runs that an experiment keeps: found again if they are what would be run today, and made side by side if not."""

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from experiments.ending import ENDING, with_parent
from grsgd import __version__, config
from grsgd.results import Run, RunFileError, load_run
from grsgd.run import commit

DIVERGED = "non-finite loss"
"""How the reason begins why such a run ended."""


class Unfinished(RuntimeError):
    """A run that failed or was ended before its end."""


def finished(stopped: str) -> bool:
    """Whether a run need not be made again: it trained to its end, or cannot, because it diverges."""
    return stopped in config.ENDS or stopped.startswith(DIVERGED)


@functools.cache
def source() -> dict[str, str | None]:
    """The code that runs are made with now. Two uncommitted changes of one commit cannot be told apart."""
    return {"version": __version__, "commit": commit()}


def kept(path: Path, attributes: dict) -> Run | None:
    """The run in the file if it is there, was made by this code, and has these attributes."""
    try:
        run = load_run(path)
    except RunFileError:
        return None
    return run if all(run.attributes.get(name) == value for name, value in (source() | attributes).items()) else None


def made_side_by_side(make: Callable, cells: list, folder: Path, workers: int) -> Iterator:
    """Call ``make(cell, folder)`` for all cells in so many processes; yields the cells as they are done.

    The processes end with this one, and at once if this is ended by a signal. Raises BrokenProcessPool if one of them
    is killed.
    """
    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(with_parent(),)) as pool:
        futures = {pool.submit(make, cell, folder): cell for cell in cells}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except (KeyboardInterrupt, SystemExit, GeneratorExit):  # the last: of whoever takes the cells
            for process in multiprocessing.active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C the others must not begin


def _begin(end_with_parent: Callable[[], None]):
    """First in each of the processes, which has this one's handlers of signals."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
