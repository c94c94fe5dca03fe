"""`Parting`, the protocol by which ranks agree, at the end of a run, which silent ranks they leave behind. All ranks
that end together must leave the same ranks behind.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import math

from grsgd.comm.coded.errors import SilentRanks
from grsgd.comm.coded.queues import Queues
from grsgd.comm.coded.streams import HeaderKind, Streams, header
from grsgd.comm.pollables import Delay, Until
from grsgd.text import ranks_in_words


class Parting:
    """One rank's part in the protocol by which ranks agree which ranks are left behind. The protocol begins after the
    rank's last step.

    For each rank, the arbiter is the lowest rank that has finished its last step, as far as the rank knows. The arbiter
    proposes to end the run without the unfinished ranks. The arbiter makes the proposal when all other ranks have
    finished or are lost, or ``patience`` seconds after the arbiter's own last step. A rank agrees to one proposal at a
    time, and an arbiter agrees to its own proposal. A proposal becomes the decision when all remaining ranks have
    agreed to the proposal. So no rank takes part in two decisions. A rank that sends messages again after the decision
    learns that it is left behind.

    Two arbiters are possible, if a lower rank finishes after a higher rank has proposed to end without the lower rank.
    Some ranks may agree to the higher rank's proposal, and other ranks to the lower rank's proposal, so that neither
    proposal gets the agreement of all ranks. Therefore an arbiter withdraws its proposal if the arbiter hears of a
    lower finished rank before the decision. The arbiter makes no second proposal. Ranks that had agreed to the
    withdrawn proposal may agree to the lower rank's proposal.
    """

    def __init__(self, queues: Queues, streams: Streams, driver, silent: int, patience: float):
        self.queues, self.streams, self.driver = queues, streams, driver
        self.silent, self.patience = silent, patience
        self.rank, self.ranks = queues.comm.rank, set(range(queues.comm.size))
        self.proposed: frozenset[int] | None = None
        """The ranks that this rank proposes to leave behind. None if this rank has made no proposal or has withdrawn
        its proposal."""
        self.agreed_to: int | None = None
        """The rank to whose proposal this rank has agreed, or None if this rank has agreed to no proposal."""
        self.alarm = None
        """Handle of a background schedule that ends ``patience`` seconds after this rank's last step. None if
        ``patience`` is infinite."""

    def agree(self):
        """Schedule that waits for the decision and returns the ranks that are left behind, perhaps with this rank among
        them. Raises SilentRanks if more ranks are missing than the option ``algorithm.silent`` allows."""
        began = self.driver.clock()
        if self.patience < math.inf:
            self.alarm = self.driver.start(self.watch_the_clock())
        self.tell(HeaderKind.FINISHED, self.ranks)
        while True:
            # `heard` is read before `decision` reads other ranks' headers, so that no later header is missed
            heard, was_patient = self.streams.heard, not self.is_impatient()
            if (decision := self.decision()) is not None:
                return decision
            later = self.driver.clock() + self.driver.timeout / 2  # the wait below must be shorter than comm.timeout
            yield Until(
                lambda heard=heard, was_patient=was_patient, later=later: self.streams.heard != heard
                or (was_patient and self.is_impatient())
                or self.driver.clock() > later,
                "the end of the other ranks' training",
            )
            waited = self.driver.clock() - began
            if self.is_impatient() and waited > 2 * self.patience + self.driver.timeout:
                raise SilentRanks(f"rank {self.rank} waited {waited:.3g} s for {self.awaited}")

    def give_up(self):
        """Schedule that a rank runs if it is left behind. The schedule tells the other ranks that this rank gives up,
        and waits without a time limit until the other ranks have decided to end the run."""
        self.tell(HeaderKind.GONE, self.ranks)
        while not self.streams.said[HeaderKind.DECISION]:
            later = self.driver.clock() + self.driver.timeout / 2
            yield Until(
                lambda later=later: bool(self.streams.said[HeaderKind.DECISION]) or self.driver.clock() > later,
                "the end of the other ranks' training",
            )

    def watch_the_clock(self):
        """Background schedule that ends after ``patience`` seconds."""
        yield Delay(self.patience)

    def is_impatient(self) -> bool:
        """Return whether ``patience`` seconds have passed, so that this rank no longer waits for silent ranks."""
        return self.alarm is not None and self.alarm.Test()

    @property
    def finished(self) -> set[int]:
        return {self.rank, *self.streams.said[HeaderKind.FINISHED]}

    @property
    def disagreeing(self) -> set[int]:
        """Return the remaining ranks that have not agreed to this rank's proposal."""
        return self.ranks - self.proposed - {self.rank} - self.streams.said[HeaderKind.AGREED].keys()

    @property
    def awaited(self) -> str:
        """Return a text for error messages that names the ranks for which this rank waits, and the awaited message."""
        if self.proposed is not None:
            return f"{ranks_in_words(sorted(self.disagreeing))} to agree which ranks go on"
        arbiter = min(self.finished) if self.agreed_to is None else self.agreed_to
        return f"rank {arbiter} to decide which ranks go on"

    @property
    def lost_already(self) -> set[int]:
        """Return the unfinished ranks that are left behind, have died, or have given up, so that this rank need not
        wait for them."""
        lost = self.queues.left_behind | self.streams.dead | self.streams.said[HeaderKind.GONE].keys()
        return lost - self.finished

    def decision(self) -> frozenset[int] | None:
        """Send this rank's next messages of the protocol, if any. Return the ranks that are left behind, or None before
        the decision."""
        decisions = self.streams.said[HeaderKind.DECISION]
        if decisions:
            return named(next(iter(decisions.values())))
        if self.proposed is None:
            self.agree_or_propose()
        if self.proposed is not None and not self.disagreeing:
            self.tell(HeaderKind.DECISION, self.ranks, self.proposed)
            return self.proposed
        if self.proposed is not None and self.rank != min(self.finished):
            self.tell(HeaderKind.WITHDRAWN, self.ranks - self.proposed)
            self.proposed = None
            self.agree_or_propose()
        return None

    def agree_or_propose(self):
        """Agree to another rank's proposal, or make a proposal. If proposals of other ranks exist, this rank agrees to
        the proposal of the lowest of these ranks. If there are no proposals and this rank is the arbiter, this rank
        makes a proposal as soon as the class's rules allow. If this rank has agreed to a proposal that is not
        withdrawn, this method does nothing. Raises SilentRanks if the proposal would leave behind too many ranks.
        """
        withdrawn = self.streams.said[HeaderKind.WITHDRAWN]
        proposals = self.streams.said[HeaderKind.PROPOSAL].keys() - withdrawn.keys()
        if self.agreed_to is not None and self.agreed_to not in withdrawn:
            return
        self.agreed_to = None
        if proposals:
            self.agreed_to = min(proposals)
            self.tell(HeaderKind.AGREED, {min(proposals)})
        elif self.rank == min(self.finished):
            missing = self.ranks - self.finished
            if missing <= self.lost_already or self.is_impatient():
                if len(missing) > self.silent:
                    silent = ranks_in_words(sorted(missing))
                    raise SilentRanks(
                        f"silent at the end of the training: {silent}; at most {self.silent} may be silent "
                        "(algorithm.silent)"
                    )
                self.proposed = frozenset(missing)
                self.tell(HeaderKind.PROPOSAL, self.ranks - missing, self.proposed)

    def tell(self, word: HeaderKind, ranks: set[int], lost: frozenset[int] = frozenset()):
        values = [rank in lost for rank in sorted(self.ranks)]
        self.queues.tell(header(self.streams.values, word, values=values), sorted(ranks - {self.rank}))


def named(values) -> frozenset[int]:
    """Return the ranks that the ``values`` of a header name: the positions of the values that are not 0."""
    return frozenset(values.nonzero()[0].tolist())
