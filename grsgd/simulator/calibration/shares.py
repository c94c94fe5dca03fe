"""Fraction (share) by which other work, such as messages, prolongs a computation. The fraction is measured by the clock
and by processor time.

Under a quota of processor time, the clock's time varies by some milliseconds from one computation to the next. If the
share by the clock is not known to `PRECISION`, a measurement uses the share by processor time.
"""

import math
import statistics
import time

import numpy as np

from grsgd.comm.engine import ENGINE

MIN_ROUNDS = 4
"""Least number of measured shares from which their mean may count as known."""
PRECISION = 5e-3
"""Upper bound of the standard error of the mean of the measured shares. Below this bound the mean counts as known."""


def seconds_now() -> np.ndarray:
    """Return the clock's time, the processor time of this process, and the processor time of the thread that moves
    messages. All times are seconds, in a float64 array of shape [3].

    The processor time of the process includes the thread's.
    """
    return np.array([time.perf_counter(), time.process_time(), ENGINE.thread_cpu_seconds])


def prolonged(without: np.ndarray, beside: np.ndarray, by_thread: bool) -> np.ndarray:
    """Return the share by which other work prolongs a computation, by the clock and by processor time: float64 of shape
    [2].

    Without a thread, each share is a fraction of the time of the computation alone.

    ``without`` has the times of `seconds_now` that a computation took alone, and ``beside`` the times with the other
    work. ``by_thread`` says whether a thread moves the messages. If a thread moves messages, the share by processor
    time is this thread's processor time, divided by the processor time of the other threads. The reason is that the
    time of the other threads varies with caches and clock rates by more than the measured effect.
    """
    clock, process = beside[:2] / without[:2] - 1
    if by_thread:
        process = beside[2] / (beside[1] - beside[2]) - without[2] / (without[1] - without[2])
    return np.array([clock, process])


def is_known(shares: list[np.ndarray]) -> bool:
    """Return whether the shares by the clock have a mean whose standard error is below `PRECISION`."""
    if len(shares) < MIN_ROUNDS:
        return False
    return statistics.stdev(share[0] for share in shares) / math.sqrt(len(shares)) < PRECISION


def trusted(shares: list[np.ndarray]) -> list[float]:
    """Return the shares by the clock if their mean is known (`is_known`), else the shares by processor time."""
    which = 0 if is_known(shares) else 1
    return [float(share[which]) for share in shares]
