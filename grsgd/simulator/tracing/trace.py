"""Recording (trace) of a simulated run as a GOAL file: each rank's operations, and the dependencies between them.

A *course* is the record of the dependencies of a schedule (generator): its last operation, and the events for which it
has waited since. The schedule's next operation begins when the last operation has begun and the awaited events have
ended. When a schedule starts another schedule, the new schedule begins with the dependencies of the starting schedule.
When a schedule has waited for the end of another schedule, it takes over the dependencies of the ended schedule. If
several schedules share a flag (`Signal`, `Until`), the trace does not know which schedule has set the flag. A schedule
that has waited for a flag therefore takes over the dependencies of all schedules of its rank.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

from grsgd.comm.communicator import Message
from grsgd.comm.engine import Schedule, as_list
from grsgd.comm.pollables import Compute, Delay
from grsgd.errors import ConfigError
from grsgd.simulator.driver import Activity, SimulatedDriver
from grsgd.simulator.tracing import goal

BOOKKEEPING, SYNCHRONOUS, FROM_ANY = 1 << 30, 1 << 29, 1 << 28
"""Bits that the trace adds to the tag of a message in the GOAL file.

`BOOKKEEPING` marks a message outside the counted traffic, `SYNCHRONOUS` a message of `Issend`, and `FROM_ANY` a receive
from any rank. The bits mark properties that GOAL cannot express, and `grsgd.simulator.tracing.replay` reads them.
"""
SHORT_BOOKKEEPING, LONG_BOOKKEEPING = 1, 2
"""Sizes in bytes that the trace gives a short message and a long message outside the counted traffic. The size of a
message outside the counted traffic does not change its simulated time."""
END = "end"
"""Label of the operation, in the GOAL file, that ends the training of a rank."""


class TracedOperation:
    """An operation (send, receive or computation) of a recorded run. ``begin``, ``seconds``: in simulated seconds.

    after: the earlier operations of the same rank on which this operation depends. The value in ``after`` is True if
    the earlier operation only had to begin, and False if it had to end. partner: the receive that belongs to a send, or
    the send that belongs to a receive; None until the message has been received.
    """

    __slots__ = ("rank", "kind", "begin", "seconds", "after", "nbytes", "peer", "tag", "short", "partner", "place")

    def __init__(self, rank: int, kind: str, begin: float, after: dict[TracedOperation, bool]):
        self.rank, self.kind, self.begin, self.after = rank, kind, begin, after
        self.seconds: float = 0.0
        self.nbytes, self.peer, self.tag, self.short = 0, None, 0, True
        self.partner: TracedOperation | None = None
        self.place = 0
        """Index of the operation in the rank's list of written operations; 0 until this list exists."""


class Dependencies:
    """The course of one schedule: the events on which the schedule's next operation depends."""

    __slots__ = ("rank", "last", "waited", "version", "seen")

    def __init__(self, rank: int):
        self.rank = rank
        self.last: TracedOperation | None = None
        self.waited: dict[TracedOperation, bool] = {}
        """Events awaited since the operation ``last``, each with True if the event only has to begin."""
        self.version = 0
        self.seen: dict[Dependencies, int] = {}
        """`version` of each other course when this course last joined the other course."""

    def after(self) -> dict[TracedOperation, bool]:
        """Return the events on which the next operation depends, each with True if the event only has to begin."""
        return {self.last: True} | self.waited if self.last is not None else dict(self.waited)

    def add(self, event: TracedOperation, only_begun: bool = False):
        """Let the schedule's next operation wait for the end of ``event`` or, if ``only_begun``, for its beginning."""
        self.waited[event] = only_begun and self.waited.get(event, True)
        self.version += 1

    def join(self, other: Dependencies):
        """Let the next operation begin after all events on which the course ``other`` depends."""
        if self.seen.get(other) != other.version:
            for event, only_begun in other.after().items():
                self.add(event, only_begun)

    def join_all(self, others: list[Dependencies]):
        """Join this course with the courses ``others`` of all schedules of the rank that have not ended."""
        for other in others:
            if other is not self:
                self.join(other)
        self.seen = {other: other.version for other in others if other is not self}


class TracedSchedule:
    """A generator that runs ``schedule`` and records the operations of ``schedule`` in a trace."""

    def __init__(self, trace: Trace, schedule: Schedule, rank: int, is_main: bool):
        self.trace, self.schedule, self.is_main, self.__name__ = trace, schedule, is_main, schedule.__name__
        self.course = trace.new_course(rank)
        self._pending: list[tuple] = []
        """Pollables for which the schedule waits, each with its operation (None unless it computes or delays)."""

    def __next__(self):
        for pollable, event in self._pending:
            self.trace.has_waited(self.course, pollable, event, alone=len(self._pending) == 1)
        return self._advance(None)

    def throw(self, error):
        for _, event in self._pending:
            if event is not None:  # an interrupted computation or delay ends now
                event.seconds = self.trace.now - event.begin
        return self._advance(error)

    def _advance(self, error: BaseException | None):
        trace, course = self.trace, self.course
        trace.running.append(course)
        try:
            pending = next(self.schedule) if error is None else self.schedule.throw(error)
            waiting = as_list(pending)
            self._pending = [(pollable, trace.calculation(pollable)) for pollable in waiting]
        except BaseException:
            if self.is_main:
                trace.add(goal.CALC, course.rank).tag = END
            trace.courses[course.rank].remove(course)
            raise
        finally:
            trace.running.pop()
            trace.changed[course.rank] = course
        return pending if type(pending) is Message else waiting


class TracedDriver(SimulatedDriver):
    """A `SimulatedDriver` that records its schedules in a trace."""

    def __init__(self, trace: Trace, *arguments):
        super().__init__(*arguments)
        self.trace = trace

    def start(self, schedule):
        return super().start(TracedSchedule(self.trace, schedule, self.rank, is_main=False))

    def start_foreground(self, schedule):
        return super().start_foreground(TracedSchedule(self.trace, schedule, self.rank, is_main=self.trace.is_on))


class Trace:
    """Recording of all operations of a simulated run's ranks, from the call of `begin` on.

    The trace observes the messages of the fabrics (`grsgd.simulator.tracing.fabric_events.FabricObserver`).
    """

    def __init__(self, env, ranks: int):
        self.env = env
        self.is_on = False
        self.began = 0.0
        self.events: list[list[TracedOperation]] = [[] for _ in range(ranks)]
        self.courses: list[list[Dependencies]] = [[] for _ in range(ranks)]
        """Courses of the schedules that have not ended: one list per rank."""
        self.running: list[Dependencies] = []
        """Stack of courses. The last course in `running` belongs to the schedule that runs at present, and earlier
        courses to schedules that it has interrupted."""
        self.changed: list[Dependencies | TracedOperation | None] = [None] * ranks
        """Last change on each rank: the course of the schedule that ran last, or the operation of the message that was
        completed last."""
        self.bookkeeping = None
        """`MessageFabric` of the messages outside the counted traffic."""
        self.with_multicast = False
        """Whether the network carries one copy of a message to several receivers."""

    @property
    def now(self) -> float:
        return self.env.now

    def begin(self):
        self.is_on, self.began = True, self.now

    def new_course(self, rank: int) -> Dependencies:
        """Return the course of a new schedule on ``rank``, joined with the course of the running schedule."""
        course = Dependencies(rank)
        if self.running and self.running[-1].rank == rank:
            course.join(self.running[-1])
        self.courses[rank].append(course)
        return course

    def add(self, kind: str, rank: int) -> TracedOperation:
        """Create an operation of ``rank`` that begins now, record it for the running schedule, and return it."""
        course = self.running[-1] if self.running and self.running[-1].rank == rank else None
        event = TracedOperation(rank, kind, self.now, course.after() if course else {})
        self.events[rank].append(event)
        if course:
            course.last, course.waited = event, {}
            course.version += 1
        return event

    def calculation(self, pollable) -> TracedOperation | None:
        """If ``pollable`` is a computation or a delay, record and return its operation, else return None."""
        if self.is_on and isinstance(pollable, Compute | Delay):
            return self.add(goal.CALC, self.running[-1].rank)
        return None

    def has_waited(self, course: Dependencies, pollable, event: TracedOperation | None, alone: bool):
        """Record that a schedule has waited for ``pollable``. ``alone``: whether it waited for nothing else."""
        if not self.is_on:
            return
        if event is not None:
            event.seconds = self.now - event.begin if alone else pollable.seconds or 0.0
            course.add(event)
            return
        waitable = pollable.request if isinstance(pollable, Message) else pollable
        if isinstance(waitable, Activity):
            course.join(waitable.schedule.course)
        elif hasattr(waitable, "ops"):
            for operation in waitable.ops:
                course.add(operation)
        else:
            self._flag_seen(course)

    def _flag_seen(self, course: Dependencies):
        changed = self.changed[course.rank]
        if isinstance(changed, TracedOperation):
            course.add(changed)
        elif changed is not None and changed is not course:
            course.join(changed)
        course.join_all(self.courses[course.rank])

    # ---- methods that a `FabricObserver` must have

    def sent(self, sending):
        if not self.is_on:
            return
        if self.with_multicast and sending.group[-1:] == ("broadcast",):
            raise ConfigError(
                "--trace: this algorithm broadcasts on a network with multicast, which GOAL cannot express; allowed: a "
                "network without multicast, or an algorithm that sends to each rank separately"
            )
        event = self.add(goal.SEND, sending.source)
        event.peer, event.short = sending.dest, sending.short
        is_uncounted = getattr(sending, "fabric", None) is self.bookkeeping
        event.nbytes = sending.nbytes
        if is_uncounted:
            event.nbytes = SHORT_BOOKKEEPING if sending.short else LONG_BOOKKEEPING
        event.tag = is_uncounted, sending.group, sending.tag, sending.synchronous, False
        sending.ops = (event,)

    def posted(self, receiving):
        if self.is_on and self.running:
            receiving.ops = (self.add(goal.RECV, self.running[-1].rank),)

    def left(self, sending):
        """Do nothing, because the trace records the wait for the message when the wait ends."""

    def received(self, sending):
        for send, receive in zip(sending.ops, sending.receiving.ops, strict=False):
            if sending.receiving.from_any:
                send.tag = (*send.tag[:-1], True)
            send.partner, receive.partner = receive, send
            receive.peer, receive.nbytes, receive.tag = send.rank, send.nbytes, send.tag

    def completed(self, waitable):
        for event in waitable.ops:
            self.changed[event.rank] = event

    # ---- the file

    def write(self, path: str | os.PathLike, comments: list[str]):
        """Write the recorded operations to the GOAL file ``path``; raises RunFileError."""
        tags = Tags()
        goal.write(path, self.operations(tags), [*comments, *NOTES, *tags.described()])

    def operations(self, tags: Tags) -> list[list[goal.Operation]]:
        """Return the recorded operations of each rank, in the order in which they began."""
        unreceived = defaultdict(list)
        kept = []
        for events in self.events:
            kept.append([event for event in events if is_kept(event)])
            for event in kept[-1]:
                if event.kind == goal.SEND and event.partner is None:
                    unreceived[event.peer].append(event)
        ranks = []
        for rank, events in enumerate(kept):
            for place, event in enumerate(events):
                event.place = place
            processors = Processors(self.now)
            operations = [operation_of(event, tags, processors) for event in events]
            for event in unreceived[rank]:  # GOAL needs a receive for every message that is sent
                operations.append(receive_of(event, tags.number(event), operations))
            ranks.append(operations)
        set_apart(ranks)
        return ranks


NOTES = (
    "calc is in ns. Bit 2^30 of a tag marks a message outside the counted traffic, written with 1 byte, or 2 if long,",
    "on a cpu and a nic of its own. Bit 2^29 marks a synchronous send, and bit 2^28 a receive from any rank.",
)


class Tags:
    """Tags in the GOAL file: one number for each combination of a communicator and a message's tag."""

    def __init__(self):
        self._groups: dict[tuple, int] = {}
        self._numbers: dict[tuple, int] = {}

    def number(self, event: TracedOperation) -> int:
        is_uncounted, group, tag, synchronous, from_any = event.tag
        communicator = self._groups.setdefault((is_uncounted, group), len(self._groups))
        source = (event.rank if event.kind == goal.SEND else event.peer) if from_any else None
        number = self._numbers.setdefault((communicator, tag, source), len(self._numbers))
        return number + BOOKKEEPING * is_uncounted + SYNCHRONOUS * synchronous + FROM_ANY * from_any

    def described(self) -> Iterator[str]:
        """Yield lines of comments that explain the numbers that stand for tags in the GOAL file."""
        for (communicator, tag, source), number in self._numbers.items():
            sender = "" if source is None else f", from rank {source}"
            yield f"tag {number}: tag {tag} of communicator {communicator}{sender}"


class Processors:
    """Choice of cpus for one rank of a GOAL file. Computations and delays that overlap in time get different cpus.

    Rounding errors in nanoseconds do not add up on a cpu. ``now``: simulated time at which the recording ends.
    """

    def __init__(self, now: float):
        self.now = now
        self._free: list[float] = []
        self._owed: list[float] = []

    def assign(self, event: TracedOperation) -> tuple[int, int]:
        """Return the cpu and the nanoseconds of the computation or delay ``event``. The caller must pass events in the
        order in which they began."""
        slack = 1e-12 * self.now
        cpu = next((cpu for cpu, free in enumerate(self._free) if free <= event.begin + slack), len(self._free))
        if cpu == len(self._free):
            self._free.append(0.0)
            self._owed.append(0.0)
        self._free[cpu] = event.begin + event.seconds
        exact = 1e9 * event.seconds + self._owed[cpu]
        ns = max(round(exact), 0)
        self._owed[cpu] = exact - ns
        return cpu, ns


def set_apart(ranks: list[list[goal.Operation]]):
    """Give messages outside the counted traffic a cpu and a network card (nic) of their own, the same on all ranks.

    Messages of the algorithm therefore never wait for a cpu or network card that other messages use.
    """
    operations = [operation for rank in ranks for operation in rank]
    cpu = 1 + max((operation.cpu for operation in operations), default=0)
    for operation in operations:
        if operation.kind != goal.CALC and operation.tag & BOOKKEEPING:
            operation.cpu, operation.nic = cpu, 1


def is_kept(event: TracedOperation) -> bool:
    """Return False if the trace omits ``event``, a receive without a message or a long message without a receive."""
    if event.kind == goal.CALC or event.partner is not None:
        return True
    return event.kind == goal.SEND and event.short


def operation_of(event: TracedOperation, tags: Tags, processors: Processors) -> goal.Operation:
    if event.kind == goal.CALC:
        if event.tag == END:
            operation = goal.Operation(goal.CALC, 0, label=END)
        else:
            cpu, ns = processors.assign(event)
            operation = goal.Operation(goal.CALC, ns, cpu=cpu)
    else:
        operation = goal.Operation(event.kind, event.nbytes, event.peer, tags.number(event))
    after = kept_only(event.after)
    operation.requires = sorted(other.place for other, only_begun in after.items() if not only_begun)
    operation.irequires = sorted(other.place for other, only_begun in after.items() if only_begun)
    return operation


def kept_only(after: dict[TracedOperation, bool]) -> dict[TracedOperation, bool]:
    """Return ``after`` with each omitted operation replaced by the operations on which the omitted one depends."""
    found: dict[TracedOperation, bool] = {}
    seen, waiting = set(), list(after.items())
    while waiting:
        event, only_begun = waiting.pop()
        if is_kept(event):
            found[event] = only_begun and found.get(event, True)
        elif event not in seen:
            seen.add(event)
            waiting += event.after.items()
    return found


def receive_of(send: TracedOperation, tag: int, operations: list[goal.Operation]) -> goal.Operation:
    """Return a receive operation for the send ``send``, whose message no rank has received.

    The receive begins when the last receive in ``operations`` from the same sender with the tag ``tag`` has begun.
    """
    kind = goal.RECV, send.rank, tag
    same = (place for place, other in enumerate(operations) if (other.kind, other.peer, other.tag) == kind)
    last = list(same)[-1:]
    return goal.Operation(goal.RECV, send.nbytes, send.rank, tag, irequires=last)
