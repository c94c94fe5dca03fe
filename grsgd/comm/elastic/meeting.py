"""Meetings, points between two training steps at which all ranks stop because a rank has requested it, for example to
save a checkpoint.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
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
"""Reason that `Meeting.over` returns if another rank has requested the end of the run, and this rank does not know
why."""


class MeetingCall(NamedTuple):
    """Message by which a rank requests a meeting of all ranks.

    ``number``: number of the meeting, counted from 0. ``reason``: reason to end the run after the meeting, as text of
    at most 248 bytes, which is empty if the run continues after the meeting.
    """

    number: Int64
    reason: Annotated[bytes, "S248"]


class Meeting:
    """One rank's state in meetings of all ranks (stops of all ranks between two training steps). Any rank may request a
    meeting at any moment by the method `ask`.

    In algorithms whose ranks do not wait for each other, each rank meets before its next step. In algorithms whose
    ranks wait for each other in every step (in lockstep), all ranks meet before the first step that no rank has begun.
    To find the first step that no rank has begun, each rank that receives a request to meet tells all ranks how many
    steps it has taken. After a rank has received a request to meet, it takes at most one more step before it knows the
    numbers of steps of all ranks. Therefore no rank has begun the step after the largest number of steps, and all ranks
    meet before this step. Every rank can reach the step before which the ranks meet, because it needs no message from a
    rank that already waits for the meeting.

    ``comm``: a communicator on which only meetings use the tags of meetings (`grsgd.comm.tags`).
    """

    def __init__(self, comm: Communicator, driver, in_lockstep: bool):
        self.comm, self.driver, self.in_lockstep = comm, driver, in_lockstep
        self.number = 0
        """Number of the next meeting, counted from 0. While no meeting takes place, the number is equal on all
        ranks."""
        self.reason: str | None = None
        """Reason to end the run after the present meeting, if this rank knows one. If the run continues after the
        meeting, the value is `GO_ON`.

        If no meeting was requested, or if all requested meetings are over, the value is None.
        """
        self.is_held = False
        """Whether this rank has stopped training because a meeting takes place. While `is_held` is True, the rank
        ignores requests for other meetings."""
        self._asked: deque[str] = deque()
        """The reasons of the requests to meet that this process has made and has not yet sent to the other ranks."""
        self._taken = 0
        self._said: np.ndarray | None = None
        """Number of steps that each rank has taken, as the ranks have told each other. The last element of this array
        is the number of ranks that want the run to end."""
        self._exchange = None
        self._sending = []
        self._told = self._heard_of = 0
        """`_told`: number of requests to meet that this rank has sent; each request goes to all other ranks.
        `_heard_of`: number of requests to meet that this rank has received from other ranks."""

    def ask(self, reason: str = GO_ON):
        """Request a meeting of all ranks, and the end of the run after the meeting if ``reason`` is not empty. Any
        thread of the process may call `ask`."""
        self._asked.append(reason)

    def unmet(self) -> list[str]:
        """Return the reasons of all requests to meet that this rank knows and that no meeting has answered yet."""
        return [*([] if self.reason is None else [self.reason]), *self._requests()]

    def watch(self, steps: int):
        """Send this rank's new requests to meet to the other ranks, and receive the other ranks' requests. The training
        loop calls `watch` before each step, and the driver calls it while this rank waits. ``steps``: number of steps
        that this rank has taken."""
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
        """Generator (schedule), run before each step, that returns True if the ranks meet before this step."""
        self.watch(step)
        if self.reason is None or not self.in_lockstep:
            return self.reason is not None
        # wait, because after one more step this rank might be past the step before which all ranks meet
        if step > self._taken:
            yield self._exchange
        return self._exchange.Test() and step > self._said[:-1].max()

    def arranged(self):
        """Generator (schedule) that waits until the ranks have exchanged their numbers of steps, if the exchange has
        begun."""
        if self._exchange is not None:
            yield self._exchange

    def over(self, reasons: float | None = None) -> str:
        """Record that the present meeting is over. Return the reason to end the run, or `GO_ON` if the run continues.
        All ranks must call `over` after each meeting.

        This method drops the requests without a reason that this rank has made and not yet sent, because the meeting
        has answered them.

        ``reasons``: number of ranks that know a reason for ending the run. Ranks that meet in lockstep pass None,
        because they have exchanged this number together with their numbers of steps.
        """
        known, reasons = self.reason, self._said[-1] if reasons is None else reasons
        self.reason, self._exchange, self.is_held = None, None, False
        self.number += 1
        self._asked.extend(filter(None, self._requests()))
        return (known or ASKED) if reasons else GO_ON

    def end(self):
        """Generator (schedule) that a rank runs after its last step. The schedule waits until all ranks run `end`, and
        until no message of a meeting is under way.

        Until all ranks run `end`, a rank may still request a meeting before a step that no rank takes any more. The
        schedule must receive such requests, because MPI libraries reuse the numbers of freed communicators. A message
        that is never received on a freed communicator could therefore be received on a later communicator with the same
        number.
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
        """Remove the requests to meet that this rank has made and not yet sent, and return their reasons. During the
        call, another thread may add a request."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def _arrange(self, reason: str, steps: int):
        self.reason = reason
        if self.in_lockstep:
            self._taken = steps
            self._exchange = self.driver.start(self._exchange_steps())

    def _exchange_steps(self):
        """Generator (schedule), run in the background, in which the ranks exchange how many steps each rank has taken,
        and how many ranks have a reason to end the run."""
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
        """Receive the requests to meet that other ranks have sent. Return the reason in a request for a meeting that is
        not over, or None if no such request has arrived.

        Requests for a meeting that is over are ignored, because several ranks may have requested the same meeting.
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
