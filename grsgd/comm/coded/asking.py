"""The choice of the rank from which a receiver requests missing parts of a packet: the packet's sender or, if the
sender is slow, another rank that holds the packet's block.

Each receiver of a packet gets some elements of one block. Each block is held by r ranks, so the receiver can get these
elements from r-1 ranks besides the packet's sender.
"""

from collections.abc import Callable

ANSWER_SECONDS = 0.25
"""Number of seconds without an answer after which a receiver asks the next rank for missing parts. The time that it
takes to send the answer is added to `ANSWER_SECONDS`."""
SILENT_SECONDS = 1.0
"""Number of seconds without a datagram of a packet's sender after which a receiver asks other ranks for missing parts.
The time for which a rank sends datagrams in an exchange is added to `SILENT_SECONDS`.

`SILENT_SECONDS` applies only to a sender that has not sent all datagrams of its packet.
"""
SLOW_ROUNDS = 16
"""Number of exchanges for which a slow sender is asked for missing parts only after all other ranks that hold the
block."""


class SlowRanks:
    """The ranks that did not answer a request for missing parts in time, in one of the last `SLOW_ROUNDS` exchanges."""

    def __init__(self):
        self._noted: dict[int, int] = {}

    def note(self, rank: int, number_of_round: int):
        self._noted[rank] = number_of_round

    def order(self, sender: int, others: list[int], first: int, number_of_round: int) -> list[int]:
        """Return the order in which ``sender`` and ``others``, the other ranks that hold the block, are asked for
        missing parts.

        ``first``: a number that determines which of ``others`` is asked first. Each asking rank should pass a different
        number, so that not all ranks ask one rank.
        """
        turn = first % len(others) if others else 0
        others = others[turn:] + others[:turn]
        is_slow = number_of_round - self._noted.get(sender, -SLOW_ROUNDS) < SLOW_ROUNDS
        return [*others, sender] if is_slow else [sender, *others]


class Asking:
    """The list of ranks that a receiver asks for the missing parts of one packet, one after the other, until the packet
    is complete.

    ``order``: the ranks in the order of asking, each rank once. ``patience``: seconds for which the receiver waits for
    the answer of each rank. ``clock``: function that returns the time in seconds. ``has_left(rank)`` returns whether
    ``rank`` has finished the exchange and no longer answers.
    """

    def __init__(
        self, order: list[int], patience: float, clock: Callable[[], float], has_left: Callable[[int], bool]
    ):
        self.to_ask, self.patience, self.clock, self.has_left = order, patience, clock, has_left
        self.asked: list[int] = []
        self.until = clock()
        """Time in seconds (by ``clock``) at which the next rank is asked."""

    def next(self) -> int | None:
        """Return the rank that must be asked now. Return None if the rank that was asked last may still answer, or if
        all ranks were asked."""
        self.to_ask = [rank for rank in self.to_ask if not self.has_left(rank)]
        is_waiting = self.clock() < self.until and not (self.asked and self.has_left(self.asked[-1]))
        if not self.to_ask or is_waiting:
            return None
        self.until = self.clock() + self.patience
        self.asked.append(self.to_ask.pop(0))
        return self.asked[-1]

    def has_answered(self, rank: int):
        """Record that ``rank`` has answered. If ``rank`` was the last rank that was asked, the next call of `next`
        returns the next rank at once."""
        if self.asked and rank == self.asked[-1]:
            self.until = self.clock()
