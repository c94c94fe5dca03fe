"""Runs of an experiment, made side by side, as far as they are not there yet."""

import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

from grsgd.job.ending import ENDING, with_parent
from grsgd.runs.ending import FINISHED, how_ended

MOST_LEFT = 2**29
"""Bytes that runs may leave in a process before it looks for what nothing refers to."""


class Unfinished(RuntimeError):
    """A run that failed or was ended before its end."""


def is_finished(stopped: str) -> bool:
    """Return whether a run need not be made again: it trained to its end, or cannot, because it diverges."""
    return how_ended(stopped) in FINISHED


def make_in_parallel(make: Callable, items: Iterable, folder: Path, workers: int) -> Iterator:
    """Call ``make(item, folder)`` for all items in so many processes; yields the items as they are done.

    An item is only taken when a process is free for it.

    The processes end with this one, and at once if this is ended by a signal. If one of them is killed, as where memory
    is short, what is being made is lost, and the other items are made in new ones; raises BrokenProcessPool after that.
    """
    waiting, broken = iter(items), None
    while True:
        try:
            yield from _in_a_pool(make, waiting, folder, workers)
            break
        except BrokenProcessPool as error:
            broken = error
    if broken is not None:
        raise broken


def _in_a_pool(make: Callable, waiting: Iterator, folder: Path, workers: int) -> Iterator:
    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(with_parent(),)) as pool:
        try:  # a signal may come as soon as the first process is there
            futures = {pool.submit(_make, make, item, folder): item for item in islice(waiting, workers)}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    done = futures.pop(future)
                    future.result()
                    futures |= {pool.submit(_make, make, item, folder): item for item in islice(waiting, 1)}
                    yield done
        except (KeyboardInterrupt, SystemExit, GeneratorExit):  # the last: the caller takes no more items
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
    gc.freeze()  # what is there is not looked at again


def _make(make: Callable, item, folder: Path):
    """Call ``make(item, folder)`` and leave little memory behind: the objects of a run refer to each other in circles,
    few of them, so that Python would keep the data of many runs until it looks for those that nothing else refers to.
    To look takes several times as long as a short run, so only when much has come together."""
    global _memory
    try:
        return make(item, folder)
    finally:
        if _memory is None or memory() > _memory + MOST_LEFT:
            gc.collect()
            _memory = memory()


_memory: int | None = None
"""Bytes of this process after the last collection."""


def memory() -> int:
    """Return how many bytes of memory this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
