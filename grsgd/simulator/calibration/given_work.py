"""Artificial work for a rank of ``grsgd calibrate`` that has no training step to compute. The artificial work takes a
given number of processor seconds."""

import time
from collections.abc import Callable

from grsgd.comm.driver import BUSY

POLL_EVERY = 100
"""Number of matrix products between two calls of the rank's poll function, which moves messages."""


def work_of(seconds: float, poll: Callable[[], None]) -> Callable[[], None]:
    """Return a function that takes about ``seconds`` seconds of processor time, and does the same work at each call.

    The returned function calls ``poll()``, which moves messages, after every `POLL_EVERY` matrix products. The backward
    pass of a real training calls ``poll()`` regularly, too.
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
