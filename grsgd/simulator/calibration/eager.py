"""Measurement of eager sending: a search for the longest message that leaves a rank before its receive is posted."""

import time

import numpy as np

from grsgd.comm import tags
from grsgd.comm.pollables import Until

EAGER_BYTES = [2**power for power in range(10, 23)]
"""Sizes in bytes of the messages that test eager sending. An eager message leaves before its receive is posted."""
PATIENCE = 0.05
"""Seconds after which a message that has not left counts as not eager. Three times the message's transfer time is added
to `PATIENCE`."""


def eager_bytes(driver, comm, other: int, sends: bool, seconds_per_byte: float) -> int:
    """Return the bytes of the longest tested message that leaves a rank before its receive is posted.

    Two ranks call this function with each other's number as ``other``, and one of the two ranks ``sends``. The
    receiving rank returns 0. The sending rank returns 0 if no tested message leaves before its receive is posted.

    seconds_per_byte: seconds per byte on the wire between the two ranks.
    """
    longest, signal = 0, np.zeros(1, np.uint8)
    for nbytes in EAGER_BYTES:
        message = np.zeros(nbytes, np.uint8)
        if sends:
            sending = comm.Isend(message, other, tags.CALIBRATION)
            deadline = time.perf_counter() + PATIENCE + 3 * nbytes * seconds_per_byte
            driver.run(passed(sending, deadline))
            longest = nbytes if sending.Test() else longest
            driver.run(ended(comm.Isend(signal, other, tags.CALIBRATION_SIGNAL)))
            driver.run(ended(sending))
        else:
            driver.run(ended(comm.Irecv(signal, other, tags.CALIBRATION_SIGNAL)))
            driver.run(ended(comm.Irecv(message, other, tags.CALIBRATION)))
    return longest


def ended(pollable):
    """Wait until ``pollable`` is complete. This function is a schedule (a generator that yields the objects it waits
    for)."""
    yield pollable


def passed(message, deadline: float):
    """Wait until ``message`` is complete, but at most until ``deadline`` by `time.perf_counter`. This function is a
    generator that a driver runs."""
    yield Until(lambda: message.Test() or time.perf_counter() > deadline, "a message that may leave at once")
