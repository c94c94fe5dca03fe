"""Meetings: points between two training steps at which all ranks stop, at the request of any rank, for example to save
a checkpoint.

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
"""Reason that `Meeting.over` returns if another rank has asked to end the run, and this rank does not know the other
rank's reason."""


class MeetingCall(NamedTuple):
    """Message in which a rank asks all other ranks to meet.

    ``number``: number of the meeting, counted from 0. ``reason``: reason to end the run after the meeting, as text of
    at most 248 bytes, empty if the run goes on after the meeting.
    """

    number: Int64
    reason: Annotated[bytes, "S248"]


class Meeting:
    """One rank's part in meetings of all ranks. Any rank may `ask` for a meeting at any moment.

    Ranks that do not wait for each other meet before their next steps. Ranks in lockstep (ranks that wait for each
    other in every step) meet before the first step that no rank has begun. To find the first step that no rank has
    begun, a rank that receives a request to meet tells all ranks how many steps it has taken. A rank takes at most one
    more step before it knows the numbers of steps of all ranks. So no rank has begun the step after the largest number
    of steps, and all ranks meet before that step. All ranks can reach the step of the meeting, because no rank needs a
    message from a rank that already waits for the meeting.

    ``comm``: a communicator on which no other messages have the tags of meetings (`grsgd.comm.tags`).
    """

    def __init__(self, comm: Communicator, driver, in_lockstep: bool):
        self.comm, self.driver, self.in_lockstep = comm, driver, in_lockstep
        self.number = 0
        """Number of the next meeting, counted from 0. Outside a meeting, all ranks have the same number."""
        self.reason: str | None = None
        """Reason to end the run after the present meeting, as far as this rank knows. The reason is GO_ON if the run
        goes on after the meeting.

        ``reason`` is None if no meeting was requested or all requested meetings are over.
        """
        self.is_held = False
        """Whether this rank has stopped training for the present meeting. The rank ignores requests for other meetings
        until the present meeting is over."""
        self._asked: deque[str] = deque()
        """Reasons in the requests to meet that this process has made and not sent to the other ranks yet."""
        self._taken = 0
        self._said: np.ndarray | None = None
        """Number of steps that each rank has taken, as the rank has told. The last element is the number of ranks that
        want the run to end."""
        self._exchange = None
        self._sending = []
        self._told = self._heard_of = 0
        """`_told`: number of requests to meet that this rank has sent to all other ranks. `_heard_of`: number of
        requests to meet that this rank has received."""

    def ask(self, reason: str = GO_ON):
        """Ask all ranks to meet, and to end the run after the meeting if ``reason`` is not empty. Any thread may call
        this method."""
        self._asked.append(reason)

    def unmet(self) -> list[str]:
        """Return the reasons in all requests to meet of which this rank knows and after which no meeting has taken
        place."""
        return [*([] if self.reason is None else [self.reason]), *self._requests()]

    def watch(self, steps: int):
        """Send this rank's new requests to meet, and receive the requests of other ranks. This method is called before
        each step and while this rank waits. ``steps``: number of steps that this rank has taken."""
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
        """Schedule that this rank runs before each step, and that returns whether the ranks meet now."""
        self.watch(step)
        if self.reason is None or not self.in_lockstep:
            return self.reason is not None
        if step > self._taken:  # after another step, this rank might be past the step before which all ranks can meet
            yield self._exchange
        return self._exchange.Test() and step > self._said[:-1].max()

    def arranged(self):
        """Schedule that waits until the ranks have exchanged their numbers of steps, if they have begun this
        exchange."""
        if self._exchange is not None:
            yield self._exchange

    def over(self, reasons: float | None = None) -> str:
        """Record that the present meeting is over. Return the reason to end the run, or GO_ON if the run goes on. All
        ranks must call this method.

        This method drops all requests without a reason that this rank has made and not sent, because the meeting has
        answered these requests.

        ``reasons``: number of ranks that know a reason to end the run. Ranks in lockstep pass None, because they have
        exchanged this number together with their numbers of steps.
        """
        known, reasons = self.reason, self._said[-1] if reasons is None else reasons
        self.reason, self._exchange, self.is_held = None, None, False
        self.number += 1
        self._asked.extend(filter(None, self._requests()))
        return (known or ASKED) if reasons else GO_ON

    def end(self):
        """Schedule that this rank runs after the last step. The schedule waits until all ranks run `end` and no message
        of a meeting is under way.

        Before all ranks run `end`, another rank may ask to meet at a step that no rank takes any more. MPI libraries
        use the numbers of freed communicators again. So a message that is never received on a freed communicator could
        be received on a later communicator.
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
        """Remove and return the reasons in all requests to meet that this rank has not sent to the other ranks. Another
        thread may add a request during this call."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def _arrange(self, reason: str, steps: int):
        self.reason = reason
        if self.in_lockstep:
            self._taken = steps
            self._exchange = self.driver.start(self._exchange_steps())

    def _exchange_steps(self):
        """Background schedule in which all ranks exchange how many steps each rank has taken, and how many ranks have a
        reason to end the run."""
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
        """Receive other ranks' requests to meet. Return the reason in a request for a meeting that is not over, or None
        if no such request has arrived.

        This method ignores requests for a meeting that is over, because several ranks may have asked for one meeting.
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
