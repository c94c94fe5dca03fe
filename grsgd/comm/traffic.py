"""Counters of the bytes and messages that one rank sends. The sender of a message counts the message, and the receiver
does not."""

from collections.abc import Iterable

import numpy as np

PAYLOAD, HEADERS, MESSAGES = range(3)


class Traffic:
    """Counters of the messages and bytes that one rank has sent in a group of ``size`` ranks.

    Most ranks send to few other ranks, so only ranks to which this rank has sent a message have a counter.
    """

    def __init__(self, size: int):
        self.size = size
        self.sent_once = 0
        """Sent payload in bytes, in which a multicast counts once and not once per receiver. Without multicast,
        `sent_once` is the sum of `sent`."""
        self.repaired = 0
        """Number of bytes that were sent again by MPI because datagrams of IP multicast were lost. The counters of
        payload do not include repaired bytes."""
        self.lost = 0
        """Number of datagrams of IP multicast that did not arrive and that their receiver requested again."""
        self._counters: dict[int, list[int]] = {}
        """Counters per receiver: sent payload in bytes, sent headers in bytes, and number of messages."""

    def count(self, receivers: Iterable[int], nbytes: int, header: int = 0):
        """Count one packet of ``nbytes`` bytes to each of ``receivers``. ``header``: number of bytes of the packet that
        are bookkeeping and no payload."""
        for receiver in receivers:
            self._count(receiver, nbytes, header)
        self.sent_once += nbytes - header

    def count_one(self, receiver: int, nbytes: int, header: int = 0):
        """Count one packet of ``nbytes`` bytes to ``receiver``, of which ``header`` bytes are bookkeeping and no
        payload."""
        self._count(receiver, nbytes, header)
        self.sent_once += nbytes - header

    def count_messages(self, receiver: int, messages: int, nbytes: int):
        """Count ``messages`` messages to ``receiver`` that together have ``nbytes`` bytes of payload and no header."""
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
        """Return the number of bookkeeping bytes sent to each rank with the payload: int64 of shape [size]."""
        return self._all(HEADERS)

    @property
    def messages(self) -> np.ndarray:
        """Return the number of messages with a payload sent to each rank: int64 of shape [size]."""
        return self._all(MESSAGES)

    def rows(self) -> np.ndarray:
        """Return the counters of all ranks to which this rank has sent messages: int64 of shape [receivers, 4].

        A row of the array holds the receiver's rank, payload in bytes, headers in bytes, and number of messages.
        """
        found = [(receiver, *counters) for receiver, counters in list(self._counters.items())]
        return np.array(found, np.int64).reshape(-1, 4)

    def state(self, members: Iterable[int]) -> dict:
        """Return the counters of this rank for a checkpoint, in the form that `restore` expects: arrays by receiver,
        and sums over all receivers.

        The arrays have one element per rank in ``members``, in the order of ``members``.
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
        """Set the counters to ``state``, a dict that the method `state` has returned."""
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
        for receiver, counters in list(self._counters.items()):  # a copy, as another thread may add counters meanwhile
            array[receiver] = counters[which]
        return array
