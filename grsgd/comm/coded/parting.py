"""How ranks agree in the end which of them are silent and are left behind: all that go on must know the same ones."""

from __future__ import annotations

import math

from grsgd.comm.coded.errors import SilentRanks
from grsgd.comm.coded.queues import Queues
from grsgd.comm.coded.streams import HeaderKind, Streams, header
from grsgd.comm.pollables import Delay, Until
from grsgd.text import ranks_in_words


class Parting:
    """One rank's part in the agreement, after its last step.

    The lowest rank that has finished, as far as a rank knows, is its arbiter. When all have finished, or ``patience``
    seconds after its own last step, an arbiter proposes to go on without those that have not. A rank agrees to one
    proposal at a time, an arbiter to its own; a proposal to which all agree that it keeps is the decision. So no rank
    is in two decisions, and whoever comes back after the decision finds itself left behind.

    There may be two arbiters: a lower rank comes back when a higher one has proposed to end without it. Some ranks then
    hear of one proposal first, some of the other, and neither gets the agreement of all. So an undecided arbiter that
    hears of a lower finished rank withdraws its proposal, for good. Ranks that had agreed to it may agree again.
    """

    def __init__(self, queues: Queues, streams: Streams, driver, silent: int, patience: float):
        self.queues, self.streams, self.driver = queues, streams, driver
        self.silent, self.patience = silent, patience
        self.rank, self.ranks = queues.comm.rank, set(range(queues.comm.size))
        self.proposed: frozenset[int] | None = None
        """The ranks that this one proposes to leave behind; None before it proposes, and when it has withdrawn that."""
        self.agreed_to: int | None = None
        """The rank to whose proposal this one has agreed."""
        self.alarm = None
        """The activity that ends when silent ranks are not waited for any more."""

    def agree(self):
        """Schedule: returns the ranks that are left behind, this one perhaps among them. Raises SilentRanks."""
        began = self.driver.clock()
        if self.patience < math.inf:
            self.alarm = self.driver.start(self.watch_the_clock())
        self.tell(HeaderKind.FINISHED, self.ranks)
        while True:
            heard, was_patient = self.streams.heard, not self.is_impatient()  # before the look at what was said
            if (decision := self.decision()) is not None:
                return decision
            later = self.driver.clock() + self.driver.timeout / 2  # a wait must be shorter than comm.timeout
            yield Until(
                lambda heard=heard, was_patient=was_patient, later=later: self.streams.heard != heard
                or (was_patient and self.is_impatient())
                or self.driver.clock() > later,
                "the end of the others' training",
            )
            waited = self.driver.clock() - began
            if self.is_impatient() and waited > 2 * self.patience + self.driver.timeout:
                raise SilentRanks(f"rank {self.rank} waited {waited:.3g} s for {self.awaited}")

    def give_up(self):
        """Schedule, on a rank that is left behind: say so, and wait until the others have ended, however long."""
        self.tell(HeaderKind.GONE, self.ranks)
        while not self.streams.said[HeaderKind.DECISION]:
            later = self.driver.clock() + self.driver.timeout / 2
            yield Until(
                lambda later=later: bool(self.streams.said[HeaderKind.DECISION]) or self.driver.clock() > later,
                "the end of the others' training",
            )

    def watch_the_clock(self):
        """Background schedule: the time for which silent ranks are waited for."""
        yield Delay(self.patience)

    def is_impatient(self) -> bool:
        """Whether silent ranks are not waited for any more."""
        return self.alarm is not None and self.alarm.Test()

    @property
    def finished(self) -> set[int]:
        return {self.rank, *self.streams.said[HeaderKind.FINISHED]}

    @property
    def disagreeing(self) -> set[int]:
        """Those that have not agreed to what this rank has proposed."""
        return self.ranks - self.proposed - {self.rank} - self.streams.said[HeaderKind.AGREED].keys()

    @property
    def awaited(self) -> str:
        """Whom this rank waits for, and for what."""
        if self.proposed is not None:
            return f"{ranks_in_words(sorted(self.disagreeing))} to agree who goes on"
        arbiter = min(self.finished) if self.agreed_to is None else self.agreed_to
        return f"rank {arbiter} to say who goes on"

    @property
    def lost_already(self) -> set[int]:
        """Ranks for which nobody has to wait."""
        lost = self.queues.left_behind | self.streams.dead | self.streams.said[HeaderKind.GONE].keys()
        return lost - self.finished

    def decision(self) -> frozenset[int] | None:
        """Say what is to be said now; returns the ranks that are left behind, None while that is not decided."""
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
        """Agree to the proposal of the lowest rank, or propose if this rank is the arbiter.

        Does nothing after an agreement to a proposal that is not withdrawn.
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
                        f"silent at the end of the training: {silent}; {self.silent} may be (algorithm.silent)"
                    )
                self.proposed = frozenset(missing)
                self.tell(HeaderKind.PROPOSAL, self.ranks - missing, self.proposed)

    def tell(self, word: HeaderKind, ranks: set[int], lost: frozenset[int] = frozenset()):
        values = [rank in lost for rank in sorted(self.ranks)]
        self.queues.tell(header(self.streams.values, word, values=values), sorted(ranks - {self.rank}))


def named(values) -> frozenset[int]:
    """Return the ranks that a header names."""
    return frozenset(values.nonzero()[0].tolist())
