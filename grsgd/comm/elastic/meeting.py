"""Meetings of all ranks between two steps, at the request of any rank.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, NamedTuple

import numpy as np

from grsgd.comm import records, tags
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import ANY_RANK, Communicator, receive_if_come
from grsgd.comm.pollables import Until
from grsgd.comm.records import Int64
from grsgd.runs.ending import ASKED_TO_END

GO_ON = ""
ASKED = ASKED_TO_END
"""Reason that `Meeting.over` returns if another rank has asked to end the run for a reason that this rank does not
know."""


class MeetingCall(NamedTuple):
    """Message by which a rank asks the other ranks for a meeting.

    ``number``: number of the meeting. ``reason``: reason to end the run after the meeting, as text that is cut to fit;
    empty if the run goes on.
    """

    number: Int64
    reason: Annotated[bytes, "S248"]


class Meeting:
    """Meetings of all ranks. Any rank may `ask` for a meeting at any moment.

    Ranks that run freely meet before their next step. Ranks in lockstep meet before the first step that no rank has
    begun. To find this step, a rank that hears of a request tells all ranks its number of steps. Until it knows the
    numbers of all ranks, the rank takes at most one more step. So no rank has begun the step after the largest of these
    numbers, and all ranks meet before that step. All ranks can reach that step, because they need no message from a
    rank that already waits before it.

    ``comm``: a communicator on which no other messages have the tags of meetings (`grsgd.comm.tags`).
    """

    def __init__(self, comm: Communicator, driver, in_lockstep: bool):
        self.comm, self.driver, self.in_lockstep = comm, driver, in_lockstep
        self.number = 0
        """Number of the next meeting; the same on all ranks outside a meeting."""
        self.reason: str | None = None
        """The reason to end the run after the meeting under way, as far as this rank knows; GO_ON if the run goes on.

        None if no meeting is under way.
        """
        self.is_held = False
        """Whether this rank has stopped taking steps for the meeting under way, and ignores other meetings until this
        meeting is over."""
        self._asked: deque[str] = deque()
        """Reasons of the requests of this process that the other ranks do not know yet."""
        self._taken = 0
        self._said: np.ndarray | None = None
        """Number of steps that each rank has told; the last element is the number of ranks that want the run to end."""
        self._exchange = None
        self._sending = []
        self._told = self._heard_of = 0
        """`_told`: number of requests that this rank has sent to all other ranks. `_heard_of`: number of requests that
        it has received."""

    def ask(self, reason: str = GO_ON):
        """Ask all ranks to meet, and to end the run after the meeting if ``reason`` is not empty; any thread may call
        this."""
        self._asked.append(reason)

    def unmet(self) -> list[str]:
        """Return the reasons of all requests for a meeting that has not taken place."""
        return [*([] if self.reason is None else [self.reason]), *self._requests()]

    def watch(self, steps: int):
        """Look for another rank's request to meet. This method is called before each step and while this rank waits.
        ``steps``: number of steps of this rank so far."""
        if self.reason is not None or self.is_held:
            return
        reason = None
        if asked := self._requests():
            reason = next(filter(None, asked), GO_ON)
            self._tell(reason)
        else:
            reason = self._heard()
        if reason is not None:
            self._arrange(reason, steps)

    def before_step(self, step: int):
        """Schedule, called before each step, that returns whether the ranks meet now."""
        self.watch(step)
        if self.reason is None or not self.in_lockstep:
            return self.reason is not None
        if step > self._taken:  # a further step might lead past the step at which all ranks can meet
            yield self._exchange
        return self._exchange.Test() and step > self._said[:-1].max()

    def arranged(self):
        """Schedule that waits until the exchange of step numbers has ended, if such an exchange is under way."""
        if self._exchange is not None:
            yield self._exchange

    def over(self, reasons: float | None = None) -> str:
        """Record that the meeting is over; return the reason to end the run, or GO_ON. Call this method on all ranks.

        The meeting has answered all requests without a reason that this rank has made before it is over.

        ``reasons``: number of ranks that know a reason; None in lockstep, where the ranks have exchanged this number
        with their numbers of steps.
        """
        known, reasons = self.reason, self._said[-1] if reasons is None else reasons
        self.reason, self._exchange, self.is_held = None, None, False
        self.number += 1
        self._asked.extend(filter(None, self._requests()))
        return (known or ASKED) if reasons else GO_ON

    def end(self):
        """Schedule, called after the last step, that waits until all ranks have called `end` and no message of a
        meeting is under way.

        Before all ranks have called `end`, other ranks may ask to meet at a step that no rank takes any more. MPI
        libraries use the numbers of freed communicators again. So a message that is left in a freed communicator could
        be received in a later communicator.
        """
        yield from halving_doubling_allreduce(self.comm, np.zeros(1), tags.MEETING_END)
        self.is_held = True
        told = np.array([float(self._told)])
        yield from halving_doubling_allreduce(self.comm, told, tags.MEETING_END)
        while self._heard_of < told[0] - self._told:
            yield Until(lambda: self.comm.Iprobe(ANY_RANK, tags.MEETING), "requests to meet that are under way")
            reason = self._heard()
            if reason is not None and self.reason is None:
                self._arrange(reason, self._taken)
        if self._exchange is not None:
            yield self._exchange

    def _requests(self) -> list[str]:
        """Remove and return the reasons of all requests that this rank has not told; another thread may add a request
        meanwhile."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def _arrange(self, reason: str, steps: int):
        self.reason = reason
        if self.in_lockstep:
            self._taken = steps
            self._exchange = self.driver.start(self._exchange_steps())

    def _exchange_steps(self):
        """Schedule, run in the background, that learns each rank's number of steps, and whether any rank has a reason
        to end."""
        self._said = np.zeros(self.comm.size + 1)
        self._said[self.comm.rank], self._said[-1] = self._taken, bool(self.reason)
        yield from halving_doubling_allreduce(self.comm, self._said, tags.MEETING_STEPS)

    def _tell(self, reason: str):
        message = records.pack(MeetingCall(self.number, reason.encode()))
        others = (rank for rank in range(self.comm.size) if rank != self.comm.rank)
        self._sending = [sending for sending in self._sending if not sending.Test()]
        self._sending += [self.comm.Isend(message, rank, tags.MEETING) for rank in others]
        self._told += 1

    def _heard(self) -> str | None:
        """Return the reason in another rank's request to meet; None if there is no request.

        Requests for a meeting that is over are ignored, because several ranks may have asked for the same meeting.
        """
        size = records.empty(MeetingCall).size
        while self.comm.size > 1 and (come := receive_if_come(self.comm, tags.MEETING, size)) is not None:
            if (reason := self._read(come)) is not None:
                return reason
        return None

    def _read(self, message: np.ndarray) -> str | None:
        self._heard_of += 1
        call = records.unpack(MeetingCall, message)
        return None if call.number < self.number else call.reason.decode(errors="replace").strip()
