"""The choice of the rank that is asked for missing parts of a packet: the packet's sender or, if the sender is slow,
another rank that holds the block.

A packet brings each receiver a piece of one block. r ranks hold this block: the packet's sender, and other ranks that
can send the piece, too.
"""

from collections.abc import Callable

ANSWER_SECONDS = 0.25
"""Number of seconds without an answer after which the next rank is asked. The time that sending the answer takes is
added to this number."""
SILENT_SECONDS = 1.0
"""Seconds without a datagram of a sender after which other ranks are asked. The time for which the sender sends
datagrams in an exchange is added to this number.

This limit applies to a sender that has not sent all datagrams of its packet.
"""
SLOW_ROUNDS = 16
"""Number of exchanges for which a packet's sender that was slow is asked after all other holders of the block."""


class SlowRanks:
    """The ranks that did not answer in time in one of the last `SLOW_ROUNDS` exchanges."""

    def __init__(self):
        self._noted: dict[int, int] = {}

    def note(self, rank: int, number_of_round: int):
        self._noted[rank] = number_of_round

    def order(self, sender: int, others: list[int], first: int, number_of_round: int) -> list[int]:
        """Return the order in which ``sender`` and the other holders, ``others``, are asked.

        ``first``: a number that chooses which of ``others`` is asked first. Give another number on each rank, so that
        not all ranks ask the same rank.
        """
        turn = first % len(others) if others else 0
        others = others[turn:] + others[:turn]
        is_slow = number_of_round - self._noted.get(sender, -SLOW_ROUNDS) < SLOW_ROUNDS
        return [*others, sender] if is_slow else [sender, *others]


class Asking:
    """The ranks that are asked for the missing parts of one packet, one after the other, until the packet is complete.

    ``order``: the ranks in the order of asking, each once. ``patience``: seconds to wait for the answer of each rank.
    ``clock``: function that returns the time in seconds. ``has_left(rank)`` returns whether ``rank`` has finished the
    exchange and no longer answers.
    """

    def __init__(
        self, order: list[int], patience: float, clock: Callable[[], float], has_left: Callable[[int], bool]
    ):
        self.to_ask, self.patience, self.clock, self.has_left = order, patience, clock, has_left
        self.asked: list[int] = []
        self.until = clock()
        """Time at which the next rank is asked."""

    def next(self) -> int | None:
        """Return the rank to ask now. Return None if the rank that was asked last may still answer, or if all ranks
        were asked."""
        self.to_ask = [rank for rank in self.to_ask if not self.has_left(rank)]
        is_waiting = self.clock() < self.until and not (self.asked and self.has_left(self.asked[-1]))
        if not self.to_ask or is_waiting:
            return None
        self.until = self.clock() + self.patience
        self.asked.append(self.to_ask.pop(0))
        return self.asked[-1]

    def has_answered(self, rank: int):
        """Record that ``rank`` has answered with all parts that it can send. If no rank was asked after ``rank``, the
        next rank is asked at once."""
        if self.asked and rank == self.asked[-1]:
            self.until = self.clock()
