"""Wrappers that record the timeline of a rank: one wraps the rank's main schedule and records computations and waits,
and one wraps the rank's backend and records messages.

The wrappers of this module are used only if the user has requested a timeline.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from grsgd.comm.backend import ANY_RANK, Backend, Request
from grsgd.comm.engine import Schedule, as_list
from grsgd.comm.pollables import Compute, Delay
from grsgd.runs.timeline import COMPUTE, MERGE, RECEIVE, SEND, WAIT, Timeline

TRAINERS_OWN = "compute"
"""Name of the schedule that yields the computation of a gradient. On a timeline, the time before the computation of a
gradient is named after the schedule that ran before."""
MAX_NAMED = 3
"""Largest number of pollables (objects waited for) that the name of a wait on the timeline lists."""


def observed(schedule: Schedule, timeline: Timeline):
    """Generator (schedule) that runs ``schedule``, and records its computations and waits on ``timeline``.

    The time between computations and waits, in which ``schedule`` merges models, is also recorded. In a simulation, the
    merging of models takes no time.
    """
    clock, error = timeline.clock, None
    resumed, inside = clock(), schedule.__name__
    while True:
        try:
            pending = next(schedule) if error is None else schedule.throw(error)
        except StopIteration as end:
            timeline.add(MERGE, inside, resumed, clock())
            return end.value
        waiting, error, begin = as_list(pending), None, clock()
        before, inside = inside, innermost(schedule)
        timeline.add(MERGE, inside if inside != TRAINERS_OWN else before, resumed, begin)
        try:
            yield waiting
        # remember the error, to raise it inside `schedule`, at its yield, so that the schedule can clean up
        except Exception as caught:
            error = caught
        resumed = clock()
        note(timeline, waiting, begin, resumed)


def note(timeline: Timeline, waiting: list, begin: float, end: float):
    """Record on ``timeline`` the time from ``begin`` to ``end``, in which a schedule waited for the pollables
    ``waiting``. The computations and delays among ``waiting`` are recorded one after the other, followed by the wait
    for all other pollables."""
    others = []
    for pollable in waiting:
        if isinstance(pollable, Compute | Delay):
            computed = end if len(waiting) == 1 else min(begin + (pollable.seconds or 0.0), end)
            timeline.add(COMPUTE, "gradient" if isinstance(pollable, Compute) else "delay", begin, computed)
            begin = computed
        else:
            others.append(pollable)
    if others:
        more = f", and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        timeline.add(WAIT, "; ".join(str(pollable) for pollable in others[:MAX_NAMED]) + more, begin, end)


def innermost(schedule: Schedule) -> str:
    """Return the name of the innermost generator to which ``schedule`` has delegated by ``yield from``."""
    while hasattr(inner := schedule.gi_yieldfrom, "gi_yieldfrom"):
        schedule = inner
    return schedule.__name__


class TimelineRequest:
    """A request of a message that records the message on a timeline. On the timeline, the message ends when ``Test()``
    on this rank first returns True.

    ``post()``: function that starts the message and returns the backend's request of the message. ``peer``, ``nbytes``,
    ``tag``, ``message``: fields of the message in `grsgd.runs.timeline.Span`.
    """

    def __init__(
        self, backend: "TimelineBackend", post: Callable[[], Request], track: str, name: str, peer, nbytes, tag, message
    ):
        self.backend, self.track, self.name = backend, track, name
        self.peer, self.nbytes, self.tag, self.message = peer, nbytes, tag, message
        # read the time before `post` is called, because the message may arrive before `post` returns
        self.begin = backend.timeline.clock()
        self.request = post()
        self._is_over = False

    def __getattr__(self, name):
        return getattr(self.request, name)

    def Test(self) -> bool:
        done = self.request.Test()
        if done and not self._is_over:
            self._is_over = True
            self.note()
        return done

    def note(self):
        timeline = self.backend.timeline
        end = timeline.clock()
        timeline.add(self.track, self.name, self.begin, end, self.peer, self.nbytes, self.tag, self.message)


class FromAny(TimelineRequest):
    """A request of a receive from any rank that records the received message on a timeline. The sender is recorded when
    the message has arrived, if the backend's request reports the sender."""

    def __init__(self, backend, post, nbytes: int, tag: int):
        super().__init__(backend, post, RECEIVE, "receive", None, nbytes, tag, None)
        self._status = status_for(self.request)

    def Test(self) -> bool:
        if self._status is None or self._is_over:
            return super().Test()
        done = self.request.Test(self._status)
        if done and not self._is_over:
            self._is_over = True
            self.note()
        return done

    def note(self):
        source = self._status.Get_source() if self._status is not None else getattr(self.request, "source", None)
        if source is not None and 0 <= source < self.backend.size:
            self.peer = self.backend.members[source]
            self.message = self.backend.message(source, self.backend.rank, self.tag)
        super().note()


def status_for(request: Request):
    """Return an MPI status into which the MPI library writes the sender of a received message, or None if ``request``
    does not come from MPI."""
    from mpi4py import MPI

    return MPI.Status() if isinstance(request, MPI.Request) else None


class TimelineBackend:
    """A `grsgd.comm.backend.Backend` that sends messages through another ``backend``, and records the messages on
    ``timeline``.

    ``members``: the number on the timeline of each rank of ``backend``. ``group``: name of the group of ranks, which
    must be equal on all ranks of the group.
    """

    def __init__(self, backend: Backend, timeline: Timeline, members: Sequence[int] | None = None, group: str = ""):
        self.backend, self.timeline, self.group = backend, timeline, group
        self.members = tuple(range(backend.size) if members is None else members)
        self._numbers: dict[tuple, itertools.count] = defaultdict(itertools.count)

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def message(self, source: int, dest: int, tag: int) -> tuple:
        """Return the tuple that identifies the next message from ``source`` to ``dest`` with ``tag`` on the timeline:
        (group, sender, receiver, tag, number).

        Because messages arrive in the order of sending, the sender and the receiver of a message compute the same
        number by counting their messages.
        """
        key = self.group, self.members[source], self.members[dest], tag
        return *key, next(self._numbers[key])

    def Isend(self, array, dest, tag):
        return self._sent(partial(self.backend.Isend, array, dest, tag), "send", array, dest, tag)

    def Issend(self, array, dest, tag):
        return self._sent(partial(self.backend.Issend, array, dest, tag), "synchronous send", array, dest, tag)

    def Irecv(self, array, source, tag):
        post = partial(self.backend.Irecv, array, source, tag)
        if source == ANY_RANK:
            return FromAny(self, post, array.nbytes, tag)
        message = self.message(source, self.backend.rank, tag)
        return TimelineRequest(self, post, RECEIVE, "receive", self.members[source], array.nbytes, tag, message)

    def Ibcast(self, array, root):
        track, peer = (SEND, None) if self.backend.rank == root else (RECEIVE, self.members[root])
        post = partial(self.backend.Ibcast, array, root)
        return TimelineRequest(self, post, track, "broadcast", peer, array.nbytes, None, None)

    def Iallreduce(self, array):
        post = partial(self.backend.Iallreduce, array)
        return TimelineRequest(self, post, SEND, "all-reduce", None, array.nbytes, None, None)

    def dup(self):
        return TimelineBackend(self.backend.dup(), self.timeline, self.members, self._name("dup"))

    def subset(self, ranks):
        members = tuple(self.members[rank] for rank in ranks)
        return TimelineBackend(self.backend.subset(ranks), self.timeline, members, self._name(str(members)))

    def _name(self, kind: str) -> str:
        return f"{self.group}/{kind}.{next(self._numbers[kind,])}"

    def _sent(self, post: Callable[[], Request], name: str, array, dest: int, tag: int):
        message = self.message(self.backend.rank, dest, tag)
        return TimelineRequest(self, post, SEND, name, self.members[dest], array.nbytes, tag, message)
