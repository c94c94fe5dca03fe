"""All ranks are to do something together, between two steps, because any of them has asked for it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from grsgd.comm import records, tags
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import ANY_RANK, Communicator, receive_if_come
from grsgd.comm.records import Int64
from grsgd.runs.ending import ASKED_TO_END

GO_ON = ""
ASKED = ASKED_TO_END
"""The reason on a rank that does not know which other one has asked, and why."""


class MeetingCall(NamedTuple):
    """A rank's message to the others with which it asks for a meeting.

    number: of the meeting. reason: why the run is to end after it, as text, cut off; without text it is to go on.
    """

    number: Int64
    reason: Annotated[bytes, "S248"]


class Meeting:
    """Any rank may `ask` all to meet, at any moment.

    Ranks that run free meet each before its next step. Those in lockstep meet before the first step that none of them
    has begun: a rank that hears of it says how many steps it has taken, and takes one more at most until it knows of
    all others. So none has begun the step after the largest of these numbers, and all can get there: they need no
    message of a rank that waits here.

    ``comm``: a communicator on which no other messages have these tags.
    """

    def __init__(self, comm: Communicator, driver, in_lockstep: bool):
        self.comm, self.driver, self.in_lockstep = comm, driver, in_lockstep
        self.number = 0
        """Of the next meeting; the same on all ranks that are not in one."""
        self.reason: str | None = None
        """Why the run is to end after the meeting that is being arranged, as far as this rank knows; GO_ON if it is not
        to end, None if there is no meeting."""
        self.is_held = False
        """Whether this rank has stopped to step, and hears of no other meeting before this one is over."""
        self._asked: str | None = None
        self._taken = 0
        self._said: np.ndarray | None = None
        """Steps taken, by rank, and how many ranks want the run to end."""
        self._exchange = None
        self._sending = []
        self._told = self._heard_of = 0
        """How many times this rank has told all others, and how many messages of others it has received."""

    def ask(self, reason: str = GO_ON):
        """Ask all ranks to meet, and to end the run then if there is a reason; from any thread."""
        self._asked = self._asked or reason

    def watch(self, steps: int):
        """Look whether somebody has asked; ``steps``: how many this rank has taken. Called before each step, and while
        this rank waits."""
        if self.reason is not None or self.is_held:
            return
        reason, self._asked = self._asked, None
        if reason is not None:
            self._tell(reason)
        else:
            reason = self._heard()
        if reason is not None:
            self._arrange(reason, steps)

    def before_step(self, step: int):
        """Schedule, before each step: returns whether to meet now."""
        self.watch(step)
        if self.reason is None or not self.in_lockstep:
            return self.reason is not None
        if step > self._taken:  # another one might be past where all can meet
            yield self._exchange
        return self._exchange.Test() and step > self._said[:-1].max()

    def arranged(self):
        """Schedule, on a rank that others meet: end what arranges the meeting, if this rank has not yet."""
        if self._exchange is not None:
            yield self._exchange

    def over(self, reasons: float | None = None) -> str:
        """Note, on all ranks, that they have met; returns why the run is to end, or GO_ON.

        reasons: how many ranks know of a reason; None where they have told each other before.
        """
        known, reasons = self.reason, self._said[-1] if reasons is None else reasons
        self.reason, self._exchange, self.is_held = None, None, False
        self.number += 1
        return (known or ASKED) if reasons else GO_ON

    def end(self):
        """Schedule, after the last step: ends when all ranks are here, and no message of a meeting is under way.

        Until then others may ask to meet at a step that nobody takes any more. What is left of a communicator when it
        is freed, a later one of the same process may receive: MPI libraries use the numbers of communicators again.
        """
        yield from halving_doubling_allreduce(self.comm, np.zeros(1), tags.MEETING_END)
        self.is_held = True
        told = np.array([float(self._told)])
        yield from halving_doubling_allreduce(self.comm, told, tags.MEETING_END)
        while self._heard_of < told[0] - self._told:
            message = records.empty(MeetingCall)
            yield self.comm.Irecv(message, ANY_RANK, tags.MEETING)
            reason = self._read(message)
            if reason is not None and self.reason is None:
                self._arrange(reason, self._taken)
        if self._exchange is not None:
            yield self._exchange

    def _arrange(self, reason: str, steps: int):
        self.reason = reason
        if self.in_lockstep:
            self._taken = steps
            self._exchange = self.driver.start(self._exchange_steps())

    def _exchange_steps(self):
        """Background schedule: learn how many steps each rank has taken, and whether one has a reason to end."""
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
        """Return what another rank has asked for; of a meeting that is over, None: several may ask for the same."""
        size = records.empty(MeetingCall).size
        while self.comm.size > 1 and (come := receive_if_come(self.comm, tags.MEETING, size)) is not None:
            if (reason := self._read(come)) is not None:
                return reason
        return None

    def _read(self, message: np.ndarray) -> str | None:
        self._heard_of += 1
        call = records.unpack(MeetingCall, message)
        return None if call.number < self.number else call.reason.decode(errors="replace").strip()
