"""Measurement of the delay with which a rank's communication thread sends and receives messages while the rank
computes. All ranks compute, and exchange short messages at the same time."""

import time
from collections.abc import Callable

import numpy as np

from grsgd.comm import tags
from grsgd.simulator.calibration.computing import computing_of
from grsgd.simulator.calibration.messages import EXCHANGES, SMALL

BATCHES_BESIDE, EXCHANGES_BESIDE = 15, 20
"""Number of batches of exchanges (``BATCHES_BESIDE``), and number of exchanges per batch (``EXCHANGES_BESIDE``), while
all ranks compute training steps.

In an exchange each rank sends one short message to the next rank and receives one from the previous rank. The exchanges
run one after the other, and only if a communication thread sends and receives messages.
"""


def exchanges_beside(driver, comm, step: Callable[[], None]) -> np.ndarray:
    """Return the additional seconds that an exchange of short messages takes while the ranks compute, in comparison
    with ranks that only wait.

    In an exchange each rank sends a message to the next rank and receives a message from the previous rank. The result
    has one mean per batch of exchanges, as a float64 array of shape [`BATCHES_BESIDE`]. An exchange begins when the
    previous exchange of its batch has ended. Some exchanges therefore wait until a rank's quota of processor time is
    renewed.

    All ranks call this function at the same time. As in a ring all-reduce, an exchange ends when the slower one of
    two neighbouring ranks has taken part.
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
