"""Measurement of the delay with which a thread moves messages. The ranks exchange short messages while all ranks
compute."""

import time
from collections.abc import Callable

import numpy as np

from grsgd.comm import tags
from grsgd.simulator.calibration.computing import computing_of
from grsgd.simulator.calibration.messages import EXCHANGES, SMALL

BATCHES_BESIDE, EXCHANGES_BESIDE = 15, 20
"""Number of batches of exchanges (``BATCHES_BESIDE``), and number of exchanges per batch (``EXCHANGES_BESIDE``), while
all ranks compute.

In an exchange each rank sends one short message to the next rank. Exchanges follow each other, and take place only if a
thread moves messages.
"""


def exchanges_beside(driver, comm, step: Callable[[], None]) -> np.ndarray:
    """Return the seconds by which an exchange of short messages takes longer between computing ranks than between
    waiting ranks.

    In an exchange each rank sends a message to the next rank and receives a message from the previous rank. The result
    has one mean per batch of exchanges, float64 of shape [`BATCHES_BESIDE`]. The exchanges of a batch follow each other
    at once, so some exchanges wait for the next period of a quota.

    All ranks call this function at the same time. As in a ring all-reduce, each exchange waits for the slower of two
    ranks.
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
