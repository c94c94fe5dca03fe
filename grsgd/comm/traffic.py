"""Counts the bytes and messages that one rank sends, where they leave and nowhere else."""

from collections.abc import Iterable

import numpy as np


class Traffic:
    """The counters of one rank in a group of ``size`` ranks; all arrays are int64 of shape [size], by receiver."""

    def __init__(self, size: int):
        self.sent = np.zeros(size, np.int64)
        """Payload, in bytes."""
        self.headers = np.zeros(size, np.int64)
        """Bookkeeping that is sent with the payload, in bytes."""
        self.messages = np.zeros(size, np.int64)
        """The number of messages with a payload."""
        self.sent_once = 0
        """Payload in bytes, of which a multicast counts once, not once per receiver; without multicast the sum of
        `sent`."""

    def count(self, receivers: Iterable[int], nbytes: int, header: int = 0):
        """Count one packet of ``nbytes`` bytes, ``header`` of them bookkeeping, to each of ``receivers``."""
        for receiver in receivers:
            self.sent[receiver] += nbytes - header
            self.headers[receiver] += header
            self.messages[receiver] += nbytes > header
        self.sent_once += nbytes - header

    def count_messages(self, receiver: int, messages: int, nbytes: int):
        """Count so many messages of payload alone to one receiver, of ``nbytes`` bytes together."""
        self.sent[receiver] += nbytes
        self.messages[receiver] += messages
        self.sent_once += nbytes
