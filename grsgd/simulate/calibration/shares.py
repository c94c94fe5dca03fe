"""By which share computing takes longer beside something else, by the clock or by the processor.

Under a quota the clock jumps by some milliseconds from turn to turn. Where it cannot tell a share of the time to
`PRECISION`, seconds of the processor do.
"""

import math
import statistics
import time

import numpy as np

from grsgd.comm.engine import ENGINE

LEAST_ROUNDS = 4
"""Number of measured shares from which on their mean may be known."""
PRECISION = 5e-3
"""Greatest standard error of the mean of the shares that counts as known."""


def seconds_now() -> np.ndarray:
    """Return those by the clock, and those that this process, and in it the thread that moves messages, have had of the
    processor: float64 of shape [3]."""
    return np.array([time.perf_counter(), time.process_time(), ENGINE.thread_cpu_seconds])


def prolonged(without: np.ndarray, beside: np.ndarray, by_thread: bool) -> np.ndarray:
    """Return by which share computing takes longer, of the seconds that it took without and beside something: by the
    clock, and by the processor. float64 of shape [2].

    by_thread: whether a thread moves the messages. Then what it had counts, as a share of what the rest had, which
    varies with caches and clock rates by more than what is looked for.
    """
    clock, process = beside[:2] / without[:2] - 1
    if by_thread:
        process = beside[2] / (beside[1] - beside[2]) - without[2] / (without[1] - without[2])
    return np.array([clock, process])


def is_known(shares: list[np.ndarray]) -> bool:
    """Whether the mean of the shares by the clock is known to `PRECISION`."""
    if len(shares) < LEAST_ROUNDS:
        return False
    return statistics.stdev(share[0] for share in shares) / math.sqrt(len(shares)) < PRECISION


def trusted(shares: list[np.ndarray]) -> list[float]:
    """Return the shares by the clock if their mean is known, else those of the processor."""
    which = 0 if is_known(shares) else 1
    return [float(share[which]) for share in shares]
