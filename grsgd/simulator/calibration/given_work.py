"""Artificial work for a rank of ``grsgd calibrate`` that has no training step to compute. The work takes a given number
of processor seconds."""

import time
from collections.abc import Callable

from grsgd.comm.driver import BUSY

POLL_EVERY = 100
"""Number of small matrix products between two polls of the rank."""


def work_of(seconds: float, poll: Callable[[], None]) -> Callable[[], None]:
    """Return a function that takes about ``seconds`` seconds of processor time, and does the same work at each call.

    The returned function calls ``poll()`` after every `POLL_EVERY` matrix products. A backward pass calls ``poll()``
    regularly, too.
    """

    def work(times: int):
        for number in range(times):
            BUSY @ BUSY
            if number % POLL_EVERY == 0:
                poll()

    begin = time.perf_counter()
    work(1000)
    times = max(1, round(1000 * seconds / (time.perf_counter() - begin)))
    return lambda: work(times)
