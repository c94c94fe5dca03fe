"""Measures how late the thread that moves messages is: by exchanges of short messages while all ranks compute."""

import time
from collections.abc import Callable

import numpy as np

from grsgd.comm import tags
from grsgd.simulate.calibration.computing import computing_of
from grsgd.simulate.calibration.messages import EXCHANGES, SMALL

BATCHES_BESIDE, EXCHANGES_BESIDE = 15, 20
"""Batches of short messages, and how many each has, that each rank sends to the next one, one after the other, while
all ranks compute, where a thread moves them."""


def exchanges_beside(driver, comm, step: Callable[[], None]) -> np.ndarray:
    """Return how much longer it takes this rank to send a short message to the next one and to get one from the rank
    before while all ranks take steps than while they wait, in seconds: the means of batches, float64 of shape
    [`BATCHES_BESIDE`]. Some exchanges follow each other at once, and then one waits for the next period of a quota.

    All ranks call it at once, and send at once, as in a ring all-reduce: each exchange waits for the slower of two.
    """
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    message, incoming = np.zeros(SMALL, np.uint8), np.zeros(SMALL, np.uint8)

    def exchanges(seconds):
        for number in range(len(seconds)):
            begin = time.perf_counter()
            receiving = comm.Irecv(incoming, before, tags.CALIBRATION)
            yield [receiving, comm.Isend(message, after, tags.CALIBRATION)]
            seconds[number] = time.perf_counter() - begin

    waiting, beside = np.zeros(EXCHANGES), np.zeros(BATCHES_BESIDE * EXCHANGES_BESIDE)
    driver.run(exchanges(waiting))
    exchanging = driver.start(exchanges(beside))
    while not exchanging.Test():
        driver.run(computing_of(step))
    return beside.reshape(BATCHES_BESIDE, EXCHANGES_BESIDE).mean(1) - np.median(waiting)
