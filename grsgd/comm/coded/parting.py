"""`Parting`, the protocol by which ranks agree, at the end of a run, which silent ranks (ranks that send no messages)
they leave behind. All ranks that finish the run together must leave the same silent ranks behind.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from __future__ import annotations

import math

from grsgd.comm.coded.errors import SilentRanks
from grsgd.comm.coded.queues import Queues
from grsgd.comm.coded.streams import HeaderKind, Streams, header
from grsgd.comm.pollables import Delay, Until
from grsgd.text import ranks_in_words


class Parting:
    """One rank's state in the protocol by which ranks agree which silent ranks they leave behind. A rank begins the
    protocol after its last training step.

    Each rank considers one rank the arbiter: the lowest rank of which it knows that it has finished its last training
    step. The arbiter proposes to end the run without the ranks that have not finished their last step. The arbiter
    makes its proposal when all other ranks have finished or are lost, or ``patience`` seconds after its own last step.
    A rank agrees to only one proposal at a time, and an arbiter agrees to its own proposal. A proposal becomes the
    decision when all ranks that the proposal does not leave behind have agreed to it. Because a rank agrees to only one
    proposal at a time, no rank takes part in two decisions. If a silent rank sends messages again after the decision,
    it learns that it is left behind.

    There can be two arbiters, if a lower rank finishes after a higher rank has proposed to end the run without the
    lower rank. If there are two arbiters, some ranks may agree to one proposal and other ranks to the other proposal,
    so that neither proposal gets the agreement of all ranks. Therefore an arbiter withdraws its proposal if it learns,
    before the decision, that a lower rank has finished. An arbiter that has withdrawn its proposal makes no second
    proposal. Ranks that had agreed to the withdrawn proposal may then agree to the proposal of the lower arbiter.
    """

    def __init__(self, queues: Queues, streams: Streams, driver, silent: int, patience: float):
        self.queues, self.streams, self.driver = queues, streams, driver
        self.silent, self.patience = silent, patience
        self.rank, self.ranks = queues.comm.rank, set(range(queues.comm.size))
        self.proposed: frozenset[int] | None = None
        """The ranks that this rank, as the arbiter, proposes to leave behind. The value is None if this rank has made
        no proposal or has withdrawn its proposal."""
        self.agreed_to: int | None = None
        """The rank to whose proposal this rank has agreed, or None if this rank has agreed to no proposal."""
        self.alarm = None
        """Handle of a background schedule that ends ``patience`` seconds after this rank's last step. The handle is
        None if ``patience`` is infinite."""

    def agree(self):
        """Generator (schedule) that waits for the ranks' decision, and returns the ranks that are left behind, perhaps
        with this rank among them. Raises SilentRanks if more ranks are silent than the option ``algorithm.silent``
        allows."""
        began = self.driver.clock()
        if self.patience < math.inf:
            self.alarm = self.driver.start(self.watch_the_clock())
        self.tell(HeaderKind.FINISHED, self.ranks)
        while True:
            # read `heard` before `decision` reads the other ranks' headers, so that the wait notices each later header
            heard, was_patient = self.streams.heard, not self.is_impatient()
            if (decision := self.decision()) is not None:
                return decision
            # each wait must be shorter than the option comm.timeout
            later = self.driver.clock() + self.driver.timeout / 2
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
        """Generator (schedule) that a rank runs if the other ranks have left it behind. The schedule tells the other
        ranks that this rank gives up, and waits, for any length of time, until they have decided to end the run."""
        self.tell(HeaderKind.GONE, self.ranks)
        while not self.streams.said[HeaderKind.DECISION]:
            later = self.driver.clock() + self.driver.timeout / 2
            yield Until(
                lambda later=later: bool(self.streams.said[HeaderKind.DECISION]) or self.driver.clock() > later,
                "the end of the other ranks' training",
            )

    def watch_the_clock(self):
        """Generator (schedule), run in the background, that ends after ``patience`` seconds."""
        yield Delay(self.patience)

    def is_impatient(self) -> bool:
        """Return True if ``patience`` seconds have passed, so that this rank no longer waits for silent ranks."""
        return self.alarm is not None and self.alarm.Test()

    @property
    def finished(self) -> set[int]:
        return {self.rank, *self.streams.said[HeaderKind.FINISHED]}

    @property
    def disagreeing(self) -> set[int]:
        """Return the ranks that this rank's proposal does not leave behind and that have not agreed to the proposal."""
        return self.ranks - self.proposed - {self.rank} - self.streams.said[HeaderKind.AGREED].keys()

    @property
    def awaited(self) -> str:
        """Return a text for error messages: the ranks for which this rank waits, and the message that they must
        send."""
        if self.proposed is not None:
            return f"{ranks_in_words(sorted(self.disagreeing))} to agree which ranks go on"
        arbiter = min(self.finished) if self.agreed_to is None else self.agreed_to
        return f"rank {arbiter} to decide which ranks go on"

    @property
    def lost_already(self) -> set[int]:
        """Return the unfinished ranks for which this rank need not wait, because they are left behind, have died, or
        have given up."""
        lost = self.queues.left_behind | self.streams.dead | self.streams.said[HeaderKind.GONE].keys()
        return lost - self.finished

    def decision(self) -> frozenset[int] | None:
        """Send the messages of the protocol that this rank must send now. Return the ranks that are left behind, or
        None if the ranks have not yet decided."""
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
        """Agree to another rank's proposal, or make a proposal. If other ranks have made proposals, this rank agrees to
        the proposal of the lowest of these ranks. If no rank has made a proposal and this rank is the arbiter, this
        rank makes a proposal as soon as the rules in the docstring of `Parting` allow it. If this rank has agreed to a
        proposal that has not been withdrawn, this method does nothing. Raises SilentRanks if this rank would propose to
        leave behind more ranks than the option ``algorithm.silent`` allows.
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
    """Return the ranks that a header names in its ``values``: the positions of the values that are not 0."""
    return frozenset(values.nonzero()[0].tolist())
