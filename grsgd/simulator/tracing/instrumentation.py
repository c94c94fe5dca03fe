"""Recordings of a simulated run that users may request in addition to the run file: a timeline, and a trace in GOAL
format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from grsgd.comm.engine import Schedule
from grsgd.comm.timeline_probe import observed
from grsgd.errors import ConfigError
from grsgd.runs.run_file import check_writable
from grsgd.runs.timeline import RECEIVE, SEND, Timeline, limit_of, write
from grsgd.simulator.driver import SimulatedDriver
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.flows import Network
from grsgd.simulator.network import NetworkSpec
from grsgd.simulator.processor import Processor
from grsgd.simulator.tracing.fabric_events import ObservedFabric
from grsgd.simulator.tracing.trace import Trace, TracedDriver

PROCESSOR_HINT = (
    "not on a network whose messages take processor time: in GOAL a message is no operation of a processor; leave "
    "[processor] out of {}"
)


class Instrumentation:
    """The recordings that the user has requested of one simulated run: the file ``timeline``, and the GOAL file
    ``trace``. ``timeline`` or ``trace`` is None if the user has not requested the file.

    If neither file is requested, the run uses the usual drivers and fabrics, which record nothing.
    """

    def __init__(self, timeline: Path | None = None, trace: Path | None = None):
        self.timeline, self.trace = timeline, trace
        self.timelines: list[Timeline] = []
        self.traced: Trace | None = None

    def check(self, out: Path, can_die: bool, spec: NetworkSpec, sends_early: bool = False):
        """Check, before training begins, that the requested files of timeline and trace can be written.

        ``can_die`` says whether processes may die. ``sends_early`` says whether ranks send parts of a
        gradient while they compute the rest of the gradient. Raises ConfigError and RunFileError.
        """
        taken = {os.path.realpath(out): "--out"}
        for option, path in (("--timeline", self.timeline), ("--trace", self.trace)):
            if path is None:
                continue
            if other := taken.get(os.path.realpath(path)):
                raise ConfigError(f"{option} {path}: is the file of {other}, too: each option needs a file of its own")
            taken[os.path.realpath(path)] = option
            check_writable(path)
        if self.trace is not None and can_die:
            raise ConfigError("--trace: not with [faults] or --spares: GOAL cannot express the death of a rank")
        if self.trace is not None and sends_early:
            raise ConfigError("--trace: not with algorithm.buckets: GOAL cannot express a message during a computation")
        if self.trace is not None and spec.processor is not None:
            raise ConfigError(f"--trace: {PROCESSOR_HINT.format(spec.name)}")

    def drivers(self, env, processes: int, *arguments) -> list[SimulatedDriver]:
        """Create one driver for each of ``processes`` processes, and return the list of the drivers. ``arguments`` are
        the arguments of `SimulatedDriver` after the rank."""
        if self.timeline is not None:
            self.timelines = [Timeline(rank, lambda: env.now, limit_of(processes)) for rank in range(processes)]
        if self.trace is None:
            return [SimulatedDriver(env, rank, *arguments) for rank in range(processes)]
        self.traced = Trace(env, processes)
        return [TracedDriver(self.traced, env, rank, *arguments) for rank in range(processes)]

    @property
    def is_on(self) -> bool:
        """Return whether a timeline or a trace is recorded."""
        return self.timeline is not None or self.trace is not None

    def fabric(
        self,
        network: Network,
        drivers: list[SimulatedDriver],
        processors: list[Processor] | None = None,
        is_counted: bool = True,
    ) -> MessageFabric:
        """Create and return a `MessageFabric`, which carries the messages between the processes. If ``processors`` is
        not None, messages take processor time.

        is_counted: True if the messages belong to the algorithm, False if they belong to the bookkeeping of the run.
        """
        observers = [self.traced] if self.traced is not None else []
        if self.timelines and is_counted:
            observers.append(MessagesOn(self.timelines))
        if not observers:
            return MessageFabric(network, drivers, processors)
        fabric = ObservedFabric(network, drivers, processors, observers)
        if self.traced is not None and is_counted:
            self.traced.with_multicast = network.has_multicast
        elif self.traced is not None:
            self.traced.bookkeeping = fabric
        return fabric

    def observed(self, process: int, schedule: Schedule) -> Schedule:
        """Return ``schedule``, the generator that trains on process number ``process``. If the run records a timeline,
        the returned generator runs ``schedule`` and adds its computations and waits to the timeline.
        """
        return observed(schedule, self.timelines[process]) if self.timelines else schedule

    def begin(self, now: float):
        """Record that training begins at the moment ``now``."""
        for timeline in self.timelines:
            timeline.begin(now)
        if self.traced is not None:
            self.traced.begin()

    def end(self):
        """Record that training has ended, so that later events are not part of the trace."""
        if self.traced is not None:
            self.traced.is_on = False

    def write(self, comments: Callable[[], list[str]]) -> list[str]:
        """Write the requested files of timeline and trace. The GOAL file begins with the lines ``comments()``. Return a
        list of lines to print for the user, about missing parts of the timeline. Raises RunFileError if a file cannot
        be written."""
        lines = []
        if self.timeline is not None:
            lines = write(self.timeline, (timeline.kept() for timeline in self.timelines), "simulated")
        if self.traced is not None:
            self.traced.write(self.trace, comments())
        return lines


NO_INSTRUMENTATION = Instrumentation()
"""An `Instrumentation` for runs without a timeline or a trace, which records nothing."""


class MessagesOn:
    """An observer of a `MessageFabric` that adds each message to the timelines of its sender and receiver."""

    def __init__(self, timelines: list[Timeline]):
        self.timelines = timelines

    def sent(self, sending):
        """Do nothing, because `left` adds a message to the timeline when the message has left."""

    def posted(self, receiving):
        """Do nothing, because `received` adds a receive to the timeline when its message has arrived."""

    def completed(self, waitable):
        """Do nothing, because a send ends on the timeline when the message's last byte has left."""

    def left(self, sending):
        timeline = self.timelines[sending.source]
        name = "synchronous send" if sending.synchronous else "send"
        message = sending.dest, sending.nbytes, sending.tag, sending.number
        timeline.add(SEND, name, sending.posted, timeline.clock(), *message)

    def received(self, sending):
        timeline = self.timelines[sending.dest]
        message = sending.source, sending.nbytes, sending.tag, sending.number
        timeline.add(RECEIVE, "receive", sending.receiving.posted, timeline.clock(), *message)
