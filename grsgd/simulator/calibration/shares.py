"""Fraction by which other work, such as messages, prolongs a computation. It is measured by the clock and by processor
time.

Under a quota the time by the clock varies by some milliseconds from one computation to the next. If the share by the
clock is not known to `PRECISION`, the share by processor time is used.
"""

import math
import statistics
import time

import numpy as np

from grsgd.comm.engine import ENGINE

MIN_ROUNDS = 4
"""Least number of measured shares whose mean may count as known."""
PRECISION = 5e-3
"""Upper bound of the standard error of the mean of the shares; below this bound the mean counts as known."""


def seconds_now() -> np.ndarray:
    """Return three numbers of seconds: by the clock, of this process, and of the thread that moves messages; float64 of
    shape [3].

    The second and the third number are processor times; the second number includes the third.
    """
    return np.array([time.perf_counter(), time.process_time(), ENGINE.thread_cpu_seconds])


def prolonged(without: np.ndarray, beside: np.ndarray, by_thread: bool) -> np.ndarray:
    """Return the share by which other work prolongs a computation, measured in two ways: float64 of shape [2].

    The first share is by the clock, the second by processor time.

    without: difference of `seconds_now` over a computation alone. beside: the same difference over a computation during
    the other work. by_thread: whether a thread moves the messages. If so, the second share is the thread's processor
    time, divided by the processor time of the rest of the process. The reason is that the time of the rest varies with
    caches and clock rates by more than the measured effect.
    """
    clock, process = beside[:2] / without[:2] - 1
    if by_thread:
        process = beside[2] / (beside[1] - beside[2]) - without[2] / (without[1] - without[2])
    return np.array([clock, process])


def is_known(shares: list[np.ndarray]) -> bool:
    """Return whether the standard error of the mean of the shares by the clock is below `PRECISION`."""
    if len(shares) < MIN_ROUNDS:
        return False
    return statistics.stdev(share[0] for share in shares) / math.sqrt(len(shares)) < PRECISION


def trusted(shares: list[np.ndarray]) -> list[float]:
    """Return the shares by the clock if their mean is known, else the shares by processor time."""
    which = 0 if is_known(shares) else 1
    return [float(share[which]) for share in shares]
