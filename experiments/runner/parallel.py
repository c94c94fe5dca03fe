"""Parallel making of an experiment's missing runs."""

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

MAX_LEFT = 2**29
"""Number of bytes of garbage that runs may leave in a process before the process collects it."""


class Unfinished(RuntimeError):
    """An error: a run failed or was ended before its end."""


def is_finished(stopped: str) -> bool:
    """Return whether a run need not be repeated, because it trained to its end, or diverged."""
    return how_ended(stopped) in FINISHED


def make_in_parallel(make: Callable, items: Iterable, folder: Path, workers: int) -> Iterator:
    """Call ``make(item, folder)`` for all items in ``workers`` processes; yield each item when it is done.

    An item is taken from ``items`` only when a process is free for it. The processes end with this process, and at once
    if a signal ends this process. If a process is killed, for example because memory is short, the items in progress
    are lost. The remaining items are then made in new processes, and BrokenProcessPool is raised at the end.
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
        try:  # a signal may come as soon as the first process exists
            futures = {pool.submit(_make, make, item, folder): item for item in islice(waiting, workers)}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    done = futures.pop(future)
                    future.result()
                    futures |= {pool.submit(_make, make, item, folder): item for item in islice(waiting, 1)}
                    yield done
        except (KeyboardInterrupt, SystemExit, GeneratorExit):  # GeneratorExit: the caller takes no more items
            for process in multiprocessing.active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C the remaining items must not begin


def _begin(end_with_parent: Callable[[], None]):
    """Prepare a new process, which has inherited this process's signal handlers."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    gc.freeze()  # garbage collections skip all objects that exist now


def _make(make: Callable, item, folder: Path):
    """Call ``make(item, folder)``, and collect garbage if much memory has accumulated.

    The objects of a run refer to each other in circles, so that they live until Python's next garbage collection.
    Because the objects of a run are few, Python would first keep the data of many runs. A collection takes several
    times as long as a short run, so there is none after each run.
    """
    global _memory
    try:
        return make(item, folder)
    finally:
        if _memory is None or memory() > _memory + MAX_LEFT:
            gc.collect()
            _memory = memory()


_memory: int | None = None
"""Number of bytes of this process after its last garbage collection; None before the first collection."""


def memory() -> int:
    """Return the number of bytes of memory that this process uses."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # this system is not Linux, and reports only the greatest number of bytes so far
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
