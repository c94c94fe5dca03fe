"""Counters of the bytes and messages that one rank sends. Only the sender of a message counts the message, and the
receiver does not count it."""

from collections.abc import Iterable

import numpy as np

PAYLOAD, HEADERS, MESSAGES = range(3)


class Traffic:
    """Counters of the messages and bytes that one rank has sent to the other ranks of a group of ``size`` ranks.

    Because most ranks send to few other ranks, a counter exists only for ranks to which this rank has sent a message.
    """

    def __init__(self, size: int):
        self.size = size
        self.sent_once = 0
        """Number of payload bytes sent, in which a multicast counts once, and not once per receiver. If there are no
        multicasts, `sent_once` is the sum of the elements of `sent`."""
        self.repaired = 0
        """Number of bytes that were sent a second time, by MPI, because datagrams of IP multicast were lost. Counters
        of payload bytes do not include the bytes that were sent a second time."""
        self.lost = 0
        """Number of datagrams of IP multicast that did not arrive at this rank, so that this rank requested their
        content again."""
        self._counters: dict[int, list[int]] = {}
        """Three counters for each receiver: payload bytes sent, header bytes sent, and number of messages sent."""

    def count(self, receivers: Iterable[int], nbytes: int, header: int = 0):
        """Count one message of ``nbytes`` bytes to each rank in ``receivers`` as sent. ``header``: number of bytes of
        the message that are header, and not payload."""
        for receiver in receivers:
            self._count(receiver, nbytes, header)
        self.sent_once += nbytes - header

    def count_one(self, receiver: int, nbytes: int, header: int = 0):
        """Count one message of ``nbytes`` bytes to ``receiver`` as sent, of which ``header`` bytes are header, and not
        payload."""
        self._count(receiver, nbytes, header)
        self.sent_once += nbytes - header

    def count_messages(self, receiver: int, messages: int, nbytes: int):
        """Count ``messages`` messages to ``receiver`` as sent, with ``nbytes`` bytes of payload in total and no
        headers."""
        counters = self._of(receiver)
        counters[PAYLOAD] += nbytes
        counters[MESSAGES] += messages
        self.sent_once += nbytes

    @property
    def sent(self) -> np.ndarray:
        """Return the number of payload bytes sent to each rank: int64 of shape [size]."""
        return self._all(PAYLOAD)

    @property
    def headers(self) -> np.ndarray:
        """Return the number of header bytes sent to each rank: int64 of shape [size]."""
        return self._all(HEADERS)

    @property
    def messages(self) -> np.ndarray:
        """Return the number of messages with payload sent to each rank: int64 of shape [size]."""
        return self._all(MESSAGES)

    def rows(self) -> np.ndarray:
        """Return the counters for all ranks to which this rank has sent messages: int64 of shape [receivers, 4].

        Each row of the array contains the receiver's rank, payload bytes, header bytes, and number of messages.
        """
        found = [(receiver, *counters) for receiver, counters in list(self._counters.items())]
        return np.array(found, np.int64).reshape(-1, 4)

    def state(self, members: Iterable[int]) -> dict:
        """Return the counters of this rank for a checkpoint, as a dictionary that `restore` accepts: arrays by
        receiver, and sums over all receivers.

        Each array has one element per rank in ``members``, in the order of ``members``.
        """
        members = list(members)
        return {
            "sent": self.sent[members],
            "headers": self.headers[members],
            "messages": self.messages[members],
            "sent_once": self.sent_once,
            "repaired": self.repaired,
            "lost": self.lost,
        }

    def restore(self, state: dict):
        """Set the counters to ``state``, a dictionary that `state` has returned."""
        columns = zip(*(np.asarray(state[name]).tolist() for name in ("sent", "headers", "messages")), strict=True)
        self._counters = {receiver: list(counters) for receiver, counters in enumerate(columns) if any(counters)}
        self.sent_once = int(state["sent_once"])
        self.repaired, self.lost = int(state.get("repaired", 0)), int(state.get("lost", 0))

    def _count(self, receiver: int, nbytes: int, header: int):
        counters = self._of(receiver)
        counters[PAYLOAD] += nbytes - header
        counters[HEADERS] += header
        counters[MESSAGES] += nbytes > header

    def _of(self, receiver: int) -> list[int]:
        counters = self._counters.get(receiver)
        if counters is None:
            counters = self._counters[receiver] = [0, 0, 0]
        return counters

    def _all(self, which: int) -> np.ndarray:
        array = np.zeros(self.size, np.int64)
        # loop over a copy, because another thread may add counters meanwhile
        for receiver, counters in list(self._counters.items()):
            array[receiver] = counters[which]
        return array
