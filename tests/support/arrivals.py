"""Messages between simulated ranks, and their arrival times."""

import numpy as np

from grsgd.comm.pollables import Delay
from grsgd.models.shape_only import ShapeOnlyArray


def array(nbytes):
    return ShapeOnlyArray(nbytes // 4, np.float32)


def arrivals(ranks, *messages):
    """Return the arrival times in seconds of messages (source, dest, bytes[, beginning]); receives are posted at
    once."""
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
