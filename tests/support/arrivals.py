"""Function for tests that sends messages between simulated ranks and returns the messages' arrival times."""

import numpy as np

from grsgd.comm.pollables import Delay
from grsgd.models.shape_only import ShapeOnlyArray


def array(nbytes):
    return ShapeOnlyArray(nbytes // 4, np.float32)


def arrivals(ranks, *messages):
    """Return the arrival times, in seconds, of ``messages``, which are tuples (source, dest, bytes[, time of the
    send]). All receives are posted at time 0."""
    seen = [0.0] * len(messages)

    def receive(number, source, dest, nbytes, *_):
        yield ranks.comms[dest].Irecv(array(nbytes), source, number)
        seen[number] = ranks.env.now

    def send(number, source, dest, nbytes, begin=0.0):
        yield Delay(begin)
        yield ranks.comms[source].Isend(array(nbytes), dest, number)

    for number, message in enumerate(messages):
        ranks.drivers[message[1]].start(receive(number, *message))
        ranks.drivers[message[0]].start(send(number, *message))
    ranks.settle()
    return seen
