"""Measurements before training: the seconds that an action, such as an all-reduce, takes if all ranks begin the action
together."""

import statistics
from collections.abc import Callable

import numpy as np

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator

WARM_UP, REPEATS = 2, 7
LEAST, ENOUGH_SECONDS = 3, 5.0
"""The first value is the least number of repeats of an action, and the second the number of seconds after which `LEAST`
repeats are enough."""
VIRTUAL = "virtual"
"""Value of ``progress_mode`` of a driver in simulated time, in which measured times do not vary."""


def times(action: Callable, comm: Communicator, driver, warm_up: int = WARM_UP, repeats: int = REPEATS):
    """Generator, called on all ranks at once, that measures the seconds of each rank for ``action()`` in each repeat.
    Returns float64 of shape [repeats, ranks], the same on all ranks. ``action()`` returns a new generator, which yields
    each object it waits for. The first ``warm_up`` calls are not returned. If all calls take more than
    `ENOUGH_SECONDS` seconds, the repeats end early, but not before `LEAST` repeats.
    """
    seconds = []
    for _ in range(warm_up + repeats):
        seconds.append((yield from each_rank_once(action, comm, driver)))
        if len(seconds) >= warm_up + LEAST and np.sum(np.max(seconds, axis=1)) > ENOUGH_SECONDS:
            break
    return np.array(seconds[warm_up:])


def time(action: Callable, comm: Communicator, driver, warm_up: int = WARM_UP, repeats: int = REPEATS):
    """Generator, called on all ranks at once, that returns the median over the repeats of the seconds until the last
    rank has ended ``action``."""
    return statistics.median((yield from times(action, comm, driver, warm_up, repeats)).max(1).tolist())


def time_once(action: Callable, comm: Communicator, driver):
    """Generator, called on all ranks at once, that runs ``action`` once and returns the seconds until the last rank has
    ended it."""
    return (yield from each_rank_once(action, comm, driver)).max()


def each_rank_once(action: Callable, comm: Communicator, driver):
    """Generator, called on all ranks at once, that runs ``action`` once and returns the seconds of each rank, float64
    of shape [ranks]."""
    if comm.size > 1:
        yield from halving_doubling_allreduce(comm, np.zeros(1))  # the all-reduce serves as a barrier
    begin = driver.clock()
    yield from action()
    each = np.zeros(comm.size)
    each[comm.rank] = driver.clock() - begin
    return (yield from from_each_rank(comm, each))


def from_each_rank(comm: Communicator, mine: np.ndarray):
    """Generator, called on all ranks at once, that returns the sum of the arrays ``mine`` of all ranks. Each rank has
    filled its own elements of ``mine``; the elements of other ranks are 0."""
    if comm.size > 1:
        yield from halving_doubling_allreduce(comm, mine)
    return mine
