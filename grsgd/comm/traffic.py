"""Bytes and messages that one rank sends, counted where they leave and nowhere else."""

from collections.abc import Iterable

import numpy as np


class Traffic:
    """Counters of one rank in a group of ``size`` ranks, all int64.

    ``sent[j]`` payload bytes to rank j; ``headers[j]`` bytes of bookkeeping that ride with them; ``messages[j]`` the
    number of messages with a payload. ``sent_once`` counts the payload of a multicast once instead of once per
    receiver; without multicast it equals ``sent.sum()``.
    """

    def __init__(self, size: int):
        self.sent = np.zeros(size, np.int64)
        self.headers = np.zeros(size, np.int64)
        self.messages = np.zeros(size, np.int64)
        self.sent_once = 0

    def count(self, receivers: Iterable[int], nbytes: int, header: int = 0):
        """Count one packet of ``nbytes`` bytes, ``header`` of them bookkeeping, to each of ``receivers``."""
        for receiver in receivers:
            self.sent[receiver] += nbytes - header
            self.headers[receiver] += header
            self.messages[receiver] += nbytes > header
        self.sent_once += nbytes - header
