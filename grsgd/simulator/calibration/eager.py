"""Measurement of eager messages: a search for the longest message that leaves its sender before the receiver has posted
the receive."""

import time

import numpy as np

from grsgd.comm import tags
from grsgd.comm.pollables import Until

EAGER_BYTES = [2**power for power in range(10, 23)]
"""Sizes in bytes of the messages that are sent to find the longest eager message. An eager message leaves its sender
before the receiver has posted the receive."""
PATIENCE = 0.05
"""Seconds after which a message that has not left its sender counts as not eager. The
time limit for a message is `PATIENCE` plus three times the message's transfer time."""


def eager_bytes(driver, comm, other: int, sends: bool, seconds_per_byte: float) -> int:
    """Return the number of bytes of the longest tested message that leaves its sender before the receiver has posted
    the receive.

    Two ranks call this function. On each rank, ``other`` is the number of the partner, and ``sends`` is True on only
    one of the two ranks. The rank with ``sends = False`` receives the messages and returns 0. The sending rank returns
    0 if no tested message leaves before its receive is posted.

    seconds_per_byte: seconds that a byte needs on the link between the two ranks.
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
    """Wait until ``message`` is complete, or until `time.perf_counter` has reached ``deadline``. This function is a
    generator that yields the objects it waits for."""
    yield Until(lambda: message.Test() or time.perf_counter() > deadline, "a message that may leave at once")
