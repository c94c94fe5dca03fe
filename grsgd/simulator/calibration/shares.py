"""Fraction (share) by which other work, such as sending messages, prolongs a computation. The share is computed from
elapsed time (by the clock) and from processor time.

Under a quota of processor time, the elapsed time of equal computations varies by some milliseconds. A measurement uses
the share by processor time if the standard error of the share by the clock is not below `PRECISION`.
"""

import math
import statistics
import time

import numpy as np

from grsgd.comm.engine import ENGINE

MIN_ROUNDS = 4
"""Smallest number of measured shares whose mean may count as known."""
PRECISION = 5e-3
"""Limit for the standard error of the mean of the measured shares. If the standard error is below `PRECISION`, the mean
counts as known."""


def seconds_now() -> np.ndarray:
    """Return three times in seconds: the clock, the processor time of this process, and the processor time of the
    thread that moves messages. The result is a float64 array of shape [3].

    The processor time of the process includes the processor time of the thread.
    """
    return np.array([time.perf_counter(), time.process_time(), ENGINE.thread_cpu_seconds])


def prolonged(without: np.ndarray, beside: np.ndarray, by_thread: bool) -> np.ndarray:
    """Return the fraction (share) by which other work prolongs a computation: one share by the clock and one by
    processor time, float64 of shape [2].

    If no thread moves messages, each share is a fraction of the time that the computation takes without the other work.

    ``without`` has the times, as from `seconds_now`, of a computation without other work. ``beside`` has the times of a
    computation with the other work. ``by_thread`` says whether a separate thread moves the messages. If a thread moves
    messages, the share by processor time is the thread's processor time divided by the processor time of all other
    threads. The processor time of the other threads is not compared between the computations, because it varies with
    caches and clock rates by more than the measured effect.
    """
    clock, process = beside[:2] / without[:2] - 1
    if by_thread:
        process = beside[2] / (beside[1] - beside[2]) - without[2] / (without[1] - without[2])
    return np.array([clock, process])


def is_known(shares: list[np.ndarray]) -> bool:
    """Return True if the standard error of the mean of the shares by the clock is below `PRECISION`."""
    if len(shares) < MIN_ROUNDS:
        return False
    return statistics.stdev(share[0] for share in shares) / math.sqrt(len(shares)) < PRECISION


def trusted(shares: list[np.ndarray]) -> list[float]:
    """Return the shares by the clock if their mean is known (`is_known`), else the shares by processor time."""
    which = 0 if is_known(shares) else 1
    return [float(share[which]) for share in shares]
