"""Trials at the start of a run: how long ranks take for something that they begin together."""

import statistics
from collections.abc import Callable

import numpy as np

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator

WARM_UP, REPEATS = 2, 7
LEAST, ENOUGH_SECONDS = 3, 5.0
"""After so many seconds of a trial, so few repeats are enough."""
VIRTUAL = "virtual"
"""The progress mode of a driver in simulated time, in which what the network does does not vary."""


def times(action: Callable, comm: Communicator, driver, warm_up: int = WARM_UP, repeats: int = REPEATS):
    """Schedule, on all ranks at once: return the seconds that each rank takes for ``action``, a schedule, each time:
    float64 of shape [times, ranks], the same on all ranks. They do it at least `LEAST` times.
    """
    seconds = []
    for _ in range(warm_up + repeats):
        seconds.append((yield from each_rank_once(action, comm, driver)))
        if len(seconds) >= warm_up + LEAST and np.sum(np.max(seconds, axis=1)) > ENOUGH_SECONDS:
            break
    return np.array(seconds[warm_up:])


def time(action: Callable, comm: Communicator, driver, warm_up: int = WARM_UP, repeats: int = REPEATS):
    """Schedule, on all ranks at once: return the median of the seconds until the last rank has done ``action``."""
    return statistics.median((yield from times(action, comm, driver, warm_up, repeats)).max(1).tolist())


def time_once(action: Callable, comm: Communicator, driver):
    """Schedule, on all ranks at once: return the seconds until the last rank has done ``action``."""
    return (yield from each_rank_once(action, comm, driver)).max()


def each_rank_once(action: Callable, comm: Communicator, driver):
    """Schedule, on all ranks at once: return the seconds that each rank takes for ``action``, float64 of shape [ranks].
    """
    if comm.size > 1:
        yield from halving_doubling_allreduce(comm, np.zeros(1))  # a barrier
    begin = driver.clock()
    yield from action()
    each = np.zeros(comm.size)
    each[comm.rank] = driver.clock() - begin
    return (yield from from_each_rank(comm, each))


def from_each_rank(comm: Communicator, mine: np.ndarray):
    """Schedule, on all ranks at once: return what each rank has at its own place of an array that is 0 elsewhere."""
    if comm.size > 1:
        yield from halving_doubling_allreduce(comm, mine)
    return mine
