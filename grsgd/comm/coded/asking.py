"""Whom a rank asks for what it lacks of a packet: the sender, and where that is slow others that hold the same block.

A packet brings a receiver a part of one block, which r ranks hold: the sender is one of them, and each of the others
can send that part, too.
"""

from collections.abc import Callable

ANSWER_SECONDS = 0.25
"""After so long without an answer the next one is asked, where the answer is short."""
SILENT_SECONDS = 1.0
"""So much longer than a rank sends in an exchange a sender may be silent that has not sent all: then others are asked
for its packets."""
SLOW_ROUNDS = 16
"""For so many exchanges a sender that was slow is asked last."""


class SlowRanks:
    """The ranks that did not answer in time of late."""

    def __init__(self):
        self._noted: dict[int, int] = {}

    def note(self, rank: int, number_of_round: int):
        self._noted[rank] = number_of_round

    def order(self, sender: int, others: list[int], first: int, number_of_round: int) -> list[int]:
        """Return in which order the sender and others are asked. ``first``: a number, other on other ranks, which
        decides who of the others comes first, so that not all ask the same one."""
        turn = first % len(others) if others else 0
        others = others[turn:] + others[:turn]
        is_slow = number_of_round - self._noted.get(sender, -SLOW_ROUNDS) < SLOW_ROUNDS
        return [*others, sender] if is_slow else [sender, *others]


class Asking:
    """Those that are asked for the rest of one packet, each once and one after the other, until it is there.

    ``order``: whom; ``patience``: seconds that each is waited for; ``clock``: tells them; ``has_left(rank)``: whether
    that one does not answer any more.
    """

    def __init__(
        self, order: list[int], patience: float, clock: Callable[[], float], has_left: Callable[[int], bool]
    ):
        self.to_ask, self.patience, self.clock, self.has_left = order, patience, clock, has_left
        self.asked: list[int] = []
        self.until = clock()
        """When the next one is asked."""

    def next(self) -> int | None:
        """Return whom to ask now; None while the last one is waited for, and when nobody is left."""
        self.to_ask = [rank for rank in self.to_ask if not self.has_left(rank)]
        is_waiting = self.clock() < self.until and not (self.asked and self.has_left(self.asked[-1]))
        if not self.to_ask or is_waiting:
            return None
        self.until = self.clock() + self.patience
        self.asked.append(self.to_ask.pop(0))
        return self.asked[-1]

    def has_answered(self, rank: int):
        """Note that a rank has given all it can: if it was the last one that was asked, the next one need not wait."""
        if self.asked and rank == self.asked[-1]:
            self.until = self.clock()
