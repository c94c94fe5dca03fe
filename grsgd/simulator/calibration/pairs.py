"""Measurement of latency and bandwidth between two ranks, by round trips of messages.

A schedule is a generator that yields each object it waits for.
"""

import statistics
import time
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags

LARGE_BYTES = 4 * 1024 * 1024
"""Size in bytes of the messages that measure the bandwidth between two ranks."""
MAX_ROUNDS, MIN_ROUNDS = {8: 1000, LARGE_BYTES: 30}, 5
"""Largest number of round trips for each size of message in bytes (``MAX_ROUNDS``). Smallest number of round trips
(``MIN_ROUNDS``), even if these round trips take longer than `SECONDS`."""
SECONDS = 0.5


class Pair(NamedTuple):
    """Measured latency in seconds, and bandwidth in bytes/s, between two ranks."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


class Effort(NamedTuple):
    """Number and duration of the round trips of messages that measure latency and bandwidth between two ranks. Round
    trips of short messages measure the latency, and round trips of long messages the bandwidth."""

    most_rounds: dict[int, int]
    """Largest number of round trips for each size of message in bytes. The first key in `most_rounds` is the size of
    the short messages."""
    least_rounds: int
    """Smallest number of round trips, 2 or more, even if they take longer than ``seconds``."""
    seconds: float
    """Seconds after which the round trips with messages of one size end."""
    least_share: float = 0.01
    """Smallest fraction of a long message's seconds that counts as the transfer of its bytes, even if the latency seems
    to take up a larger fraction."""


def usual_effort() -> Effort:
    """Return the number and duration of round trips with which ``grsgd calibrate`` measures a pair of ranks."""
    return Effort(MAX_ROUNDS, MIN_ROUNDS, SECONDS)


def measure_pairs(comm, hosts: list[str]):
    """Measure latency and bandwidth of the pairs of ranks (i, i + 1), one pair after the other. Return a list with the
    `Pair` (rank, rank + 1) of this rank. This function is a generator that yields the objects it waits for.

    hosts: name of the host of each rank. Between ranks on one host, the bandwidth is measured with messages in both
    directions at once. The reason is that processors and memory, which limit the bandwidth within a host, copy the
    messages of both directions.

    A rank begins to measure its pair when the measurement of the previous pair has ended, so that no other message is
    under way. The first byte of each message says whether another round trip follows. For the pair (i, i + 1), rank i
    decides by its clock whether another round trip follows.
    """
    n, rank, effort = comm.size, comm.rank, usual_effort()
    before, after = (rank - 1) % n, (rank + 1) % n
    pairs = []
    first = rank == 0
    if first:
        pairs.append((yield from measure_pair(comm, after, hosts[rank] == hosts[after], effort)))
    if not first or n > 2:  # with two ranks, the pair (1, 0) would only repeat the measurement of the pair (0, 1)
        yield from answer_pair(comm, before, hosts[rank] == hosts[before], effort)
    if not first and n > 2:
        pairs.append((yield from measure_pair(comm, after, hosts[rank] == hosts[after], effort)))
    return pairs


def measure_pair(comm, other: int, one_host: bool, effort: Effort):
    """Measure the pair of this rank and rank ``other``, which runs `answer_pair`, and return the `Pair`. Both ranks add
    received messages to a sum, as all-reduces do. This function is a generator that yields the objects it waits for.

    one_host: whether both ranks are on one host. If both ranks are on one host, long messages are sent in both
    directions at once.
    """
    short, large = effort.most_rounds
    one_way = {}
    for nbytes, most in effort.most_rounds.items():
        outgoing, incoming = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        total = np.zeros(nbytes // 4, np.float32)
        seconds: list[float] = []
        began = time.perf_counter()
        go_on = True
        while go_on:
            begin = time.perf_counter()
            late = begin - began > effort.seconds and len(seconds) >= effort.least_rounds
            go_on = outgoing[0] = not (late or len(seconds) == most)
            receiving = comm.Irecv(incoming, other, tags.CALIBRATION)
            yield [receiving, comm.Isend(outgoing, other, tags.CALIBRATION)]
            total += incoming.view(np.float32)
            seconds.append(time.perf_counter() - begin)
        # the median excludes the first round trip, in which caches are cold and the partner rank sleeps
        one_way[nbytes] = statistics.median(seconds[1:])
        if not (one_host and nbytes == large):
            one_way[nbytes] /= 2
    latency, transfer = one_way[short], one_way[large]
    return Pair((comm.rank, other), latency, large / max(transfer - latency, effort.least_share * transfer))


def answer_pair(comm, other: int, one_host: bool, effort: Effort):
    """Answer all messages of rank ``other``, which runs `measure_pair` with the same ``one_host`` and ``effort``. This
    function is a generator that yields the objects it waits for."""
    large = max(effort.most_rounds)
    for nbytes in effort.most_rounds:
        yield from answer(comm, other, nbytes, one_host and nbytes == large)


def answer(comm, other: int, nbytes: int, at_once: bool):
    """Answer each message of ``nbytes`` bytes from rank ``other`` by a message of this size. This function is a
    generator that yields the objects it waits for. If ``at_once``, each answer is sent without waiting for the message
    from rank ``other``."""
    incoming, outgoing = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    total = np.zeros(nbytes // 4, np.float32)
    incoming[0] = 1
    while incoming[0]:
        receiving = comm.Irecv(incoming, other, tags.CALIBRATION)
        if at_once:
            yield [receiving, comm.Isend(outgoing, other, tags.CALIBRATION)]
            total += incoming.view(np.float32)
        else:
            yield receiving
            total += incoming.view(np.float32)
            yield comm.Isend(outgoing, other, tags.CALIBRATION)
