"""Record of the sends, receives and waits of a communication schedule, such as an all-reduce, on all ranks. The order
of sends, receives and waits does not depend on times, so no simulated clock is needed for the record."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import as_list
from grsgd.models.shape_only import ShapeOnlyArray

SEND, RECEIVE, WAIT_UNTIL_SENT, WAIT_UNTIL_RECEIVED = range(4)
"""Codes of the recorded steps of a rank: post a message, post a receive, wait until a message is sent, and wait until a
message is received."""


class Recorded:
    """Object that a recorded schedule gets in place of a message. The schedule can wait for a `Recorded` object as it
    would for a message."""

    def __init__(self, step: int, message: list[int]):
        self.step, self.message = step, message


class ProgramBackend:
    """A `grsgd.comm.backend.Backend` that records the steps of one rank of ``size`` ranks.

    ``between`` has two lists for each key (sender, receiver, tag): the sent messages and the posted receives. A message
    is a list of one number: the message's bytes while recording, and the message's index after recording.
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
        """Number of messages that are not empty, and their total number of bytes, for each receiver."""

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
    """The recorded steps (sends, receives and waits) of all ranks in a communication schedule. The steps of rank ``r``
    are the entries ``first[r]`` to ``first[r + 1] - 1`` of the arrays `kinds` and `messages`."""

    first: np.ndarray
    kinds: np.ndarray
    messages: np.ndarray
    """Index of the message that each step posts or waits for."""
    nbytes: np.ndarray
    """Number of bytes of each message, by the message's index."""
    connection: np.ndarray
    """Index of each message's connection (pair of sender and receiver) in the array `ends`."""
    ends: np.ndarray
    """Sender and receiver of each connection: an array of two columns."""
    sent: list[dict[int, list[int]]]
    """Number of messages and their total bytes, for each sender and receiver. In `sent`, the list's index is the
    sender, and the dictionary's key is the receiver."""

    def bytes_of_connections(self) -> list[int]:
        """Return the number of bytes that the schedule sends over each connection."""
        return np.bincount(self.connection, self.nbytes, len(self.ends)).astype(np.int64).tolist()


def record(schedule, size: int, elements: int, dtype, options: dict) -> Program:
    """Record the sends, receives and waits of ``schedule(comm, x, **options)`` on ``size`` ranks. ``x`` is an array of
    ``elements`` elements.

    Raises TypeError if the schedule waits for an object that is no message. Raises ValueError if a sent message is not
    received.
    """
    between = defaultdict(lambda: ([], []))
    recorders = [ProgramBackend(rank, size, between) for rank in range(size)]
    for recorder in recorders:
        for pending in schedule(Communicator(recorder), ShapeOnlyArray(elements, dtype), **options):
            for message in reversed(as_list(pending)):  # a driver waits for a list's last message first
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
