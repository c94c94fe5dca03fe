"""The choice of the rank from which a receiver requests missing parts of a packet: the packet's sender or, if the
sender is slow, another rank that holds the packet's block.

Each receiver of a packet gets some elements of one block from the packet. Each block is held by r ranks, so the
receiver can get these elements from r-1 ranks other than the packet's sender.
"""

from collections.abc import Callable

ANSWER_SECONDS = 0.25
"""Number of seconds for which a receiver waits for a rank's answer before it asks the next rank for the missing parts
of a packet. The receiver waits `ANSWER_SECONDS` in addition to the time for sending the answer."""
SILENT_SECONDS = 1.0
"""Number of seconds for which a receiver waits for the next datagram of a packet's sender before it asks other ranks
for missing parts of the packet. The receiver waits `SILENT_SECONDS` in addition to the time for which a rank sends
datagrams in an exchange.

`SILENT_SECONDS` applies only while the sender has not reported that all datagrams of its packet have been sent.
"""
SLOW_ROUNDS = 16
"""Number of exchanges for which receivers ask a slow sender for missing parts of its packets only after all other ranks
that hold the block."""


class SlowRanks:
    """The ranks that, in one of the last `SLOW_ROUNDS` exchanges, did not answer a request for missing parts in
    time."""

    def __init__(self):
        self._noted: dict[int, int] = {}

    def note(self, rank: int, number_of_round: int):
        self._noted[rank] = number_of_round

    def order(self, sender: int, others: list[int], first: int, number_of_round: int) -> list[int]:
        """Return the order in which a receiver asks ranks for missing parts: ``sender``, and ``others``, the other
        ranks that hold the packet's block.

        ``first``: a number that determines which of the ranks ``others`` is asked first. Each receiver should pass a
        different ``first``, so that not all receivers ask the same rank.
        """
        turn = first % len(others) if others else 0
        others = others[turn:] + others[:turn]
        is_slow = number_of_round - self._noted.get(sender, -SLOW_ROUNDS) < SLOW_ROUNDS
        return [*others, sender] if is_slow else [sender, *others]


class Asking:
    """The ranks that a receiver asks for the missing parts of one packet, one rank after the other, until the packet is
    complete.

    ``order``: the ranks in the order in which they are asked, each rank once. ``patience``: seconds for which the
    receiver waits for the answer of each rank. ``clock``: function that returns the present time in seconds.
    ``has_left(rank)``: function that returns True if ``rank`` has finished the exchange and no longer answers.
    """

    def __init__(
        self, order: list[int], patience: float, clock: Callable[[], float], has_left: Callable[[int], bool]
    ):
        self.to_ask, self.patience, self.clock, self.has_left = order, patience, clock, has_left
        self.asked: list[int] = []
        self.until = clock()
        """Time in seconds (by ``clock``) at which the next rank may be asked."""

    def next(self) -> int | None:
        """Return the rank that must be asked now for the missing parts of the packet. Return None if the rank that was
        asked last may still answer, or if all ranks have been asked."""
        self.to_ask = [rank for rank in self.to_ask if not self.has_left(rank)]
        is_waiting = self.clock() < self.until and not (self.asked and self.has_left(self.asked[-1]))
        if not self.to_ask or is_waiting:
            return None
        self.until = self.clock() + self.patience
        self.asked.append(self.to_ask.pop(0))
        return self.asked[-1]

    def has_answered(self, rank: int):
        """Record that ``rank`` has answered the request for missing parts of the packet. If ``rank`` was asked last,
        the following call of `next` returns the next rank without waiting."""
        if self.asked and rank == self.asked[-1]:
            self.until = self.clock()
