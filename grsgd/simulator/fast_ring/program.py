"""Record of the messages and waits of a communication schedule, such as an all-reduce, on all ranks. The order of
messages and waits does not depend on times, so the record is created without a clock."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import as_list
from grsgd.models.shape_only import ShapeOnlyArray

SEND, RECEIVE, WAIT_UNTIL_SENT, WAIT_UNTIL_RECEIVED = range(4)
"""Kinds of recorded steps of a rank: post a message, post a receive, wait until a message is sent, and wait until a
message is received."""


class Recorded:
    """Stand-in for a message while a schedule is recorded. The schedule can wait for the stand-in as for a message."""

    def __init__(self, step: int, message: list[int]):
        self.step, self.message = step, message


class ProgramBackend:
    """A `grsgd.comm.backend.Backend` that records the steps of one rank of ``size`` ranks.

    ``between`` has, for each (sender, receiver, tag), the list of sent messages and the list of received messages. A
    message is a list of one number: the message's bytes during the recording, and the message's index afterwards.
    """

    lost = ()
    survives_deaths = False
    shares_memory = False
    has_multicast = False
    hosts = None

    def __init__(self, rank: int, size: int, between: dict):
        self.rank, self.size, self.between = rank, size, between
        self.steps: list[tuple[int, list[int]]] = []
        self.sent: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Number of messages with content, and their total bytes, for each receiver."""

    def Isend(self, array, dest, tag):
        count = self.sent[dest]
        count[0] += array.nbytes > 0
        count[1] += array.nbytes
        return self._note(SEND, WAIT_UNTIL_SENT, self.between[self.rank, dest, tag][0], array)

    def Irecv(self, array, source, tag):
        return self._note(RECEIVE, WAIT_UNTIL_RECEIVED, self.between[source, self.rank, tag][1], array)

    def _note(self, step, wait, messages, array):
        messages.append([array.nbytes])
        self.steps.append((step, messages[-1]))
        return Recorded(wait, messages[-1])


class Program(NamedTuple):
    """The recorded steps of all ranks. The steps of rank r have the indices from ``first[r]`` to ``first[r + 1] -
    1``."""

    first: np.ndarray
    kinds: np.ndarray
    messages: np.ndarray
    """Index of the message that each step posts or waits for."""
    nbytes: np.ndarray
    """Number of bytes of each message."""
    connection: np.ndarray
    """Index of each message's connection, which is the index of the connection's row in `ends`."""
    ends: np.ndarray
    """Sender and receiver of each connection: an array of two columns."""
    sent: list[dict[int, list[int]]]
    """Number of messages and their total bytes, by sending rank and receiver."""

    def bytes_of_connections(self) -> list[int]:
        """Return the number of bytes that the schedule sends over each connection."""
        return np.bincount(self.connection, self.nbytes, len(self.ends)).astype(np.int64).tolist()


def record(schedule, size: int, elements: int, dtype, options: dict) -> Program:
    """Record the steps of ``schedule(comm, x, **options)`` on ``size`` ranks; ``x`` has ``elements`` elements.

    Raises TypeError if the schedule waits for anything but messages, and ValueError if a message is not received.
    """
    between = defaultdict(lambda: ([], []))
    recorders = [ProgramBackend(rank, size, between) for rank in range(size)]
    for recorder in recorders:
        for pending in schedule(Communicator(recorder), ShapeOnlyArray(elements, dtype), **options):
            for message in reversed(as_list(pending)):  # a driver waits for the last message of a yielded list first
                if not isinstance(request := getattr(message, "request", None), Recorded):
                    raise TypeError(f"{schedule} waits for {message}, which is not a message")
                recorder.steps.append((request.step, request.message))
    nbytes, connection, ends, count = [], [], {}, 0
    for (source, dest, tag), (sent, received) in between.items():
        if [message[0] for message in sent] != [message[0] for message in received]:
            raise ValueError(f"rank {source} sends messages with tag {tag} that rank {dest} does not receive")
        number = ends.setdefault((source, dest), len(ends))
        for one, other in zip(sent, received, strict=True):
            nbytes.append(one[0])
            connection.append(number)
            one[0] = other[0] = count
            count += 1
    steps = [step for recorder in recorders for step in recorder.steps]
    return Program(
        np.cumsum([0, *(len(recorder.steps) for recorder in recorders)]),
        np.array([kind for kind, _ in steps], np.int8),
        np.array([message[0] for _, message in steps], np.int64),
        np.array(nbytes, np.float64),
        np.array(connection, np.int64),
        np.array(list(ends), np.int64).reshape(-1, 2),
        [recorder.sent for recorder in recorders],
    )
