"""Makes the missing runs of an experiment in parallel processes."""

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
"""Number of bytes of garbage that finished runs may leave in a process before the process collects its garbage."""


class Unfinished(RuntimeError):
    """Error: a run failed, or was ended before its last step."""


def is_finished(stopped: str) -> bool:
    """Return True if a run need not be repeated, because it has trained to its end or has diverged."""
    return how_ended(stopped) in FINISHED


def make_in_parallel(make: Callable, items: Iterable, folder: Path, workers: int) -> Iterator:
    """Call ``make(item, folder)`` for all items in ``workers`` processes; yield each item when its call has returned.

    The next item is taken from ``items`` only when a process is free for it. The worker processes end when this
    process ends, and they end at once if a signal ends this process. If a worker process is killed, for example
    because memory is short, the items in progress are lost. After the death of a worker process, the remaining items
    are made in new processes, and BrokenProcessPool is raised at the end.
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
        try:  # a signal may arrive as soon as the pool has started its first process
            futures = {pool.submit(_make, make, item, folder): item for item in islice(waiting, workers)}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    done = futures.pop(future)
                    future.result()
                    futures |= {pool.submit(_make, make, item, folder): item for item in islice(waiting, 1)}
                    yield done
        except (KeyboardInterrupt, SystemExit, GeneratorExit):  # GeneratorExit if the caller stops taking items
            for process in multiprocessing.active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, no further item may begin


def _begin(end_with_parent: Callable[[], None]):
    """Prepare a new worker process, which has inherited the signal handlers of the parent process."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    gc.freeze()  # garbage collections skip all objects that exist at this moment


def _make(make: Callable, item, folder: Path):
    """Call ``make(item, folder)`` in a worker process, and collect garbage if much memory has accumulated.

    The objects of a finished run refer to each other in circles, so that they live until Python's next garbage
    collection. The objects of a finished run are large but few, so Python alone would collect them only after many
    runs. A garbage collection takes several times as long as a short run, so that not every run is followed by one.
    """
    global _memory
    try:
        return make(item, folder)
    finally:
        if _memory is None or memory() > _memory + MAX_LEFT:
            gc.collect()
            _memory = memory()


_memory: int | None = None
"""Number of bytes that this process used after its last garbage collection; None before the first collection."""


def memory() -> int:
    """Return the number of bytes of memory that this process uses."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # a system without /proc reports only the greatest number of bytes that the process has used
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
