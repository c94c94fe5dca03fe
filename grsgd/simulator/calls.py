"""Events for SimPy's kernel that only call a function. Such an event costs less time than SimPy's own events. Its cost
matters, because a simulation creates several events for each message."""

import heapq
from collections.abc import Callable

import simpy
from simpy.events import NORMAL


class Call:
    """An event whose time is known when the event is created. At this time SimPy's kernel calls the functions in
    ``callbacks``."""

    __slots__ = ("callbacks",)

    _ok = True
    """Flag that SimPy's kernel reads to see whether an event has failed; always True, because this event cannot
    fail."""

    def __init__(self, call: Callable):
        self.callbacks: tuple[Callable, ...] | None = (call,)

    def cancel(self):
        """Let the event call no function. The event stays in SimPy's queue, because SimPy cannot remove an event."""
        self.callbacks = ()


def call_at(env: simpy.Environment, moment: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` at exactly the simulated time ``moment``. SimPy itself expects a delay from now, whose
    rounding could change the last bits of the time."""
    event = Call(call)
    heapq.heappush(env._queue, (moment, priority, next(env._eid), event))
    return event


def call_after(env: simpy.Environment, seconds: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` after ``seconds`` of simulated time."""
    return call_at(env, env._now + seconds, call, priority)


def run_until_complete(env: simpy.Environment, waitable):
    """Let simulated time pass until ``waitable.complete`` is true. Raise simpy.core.EmptySchedule if no event is left
    before ``waitable`` is complete.

    The loop of this function does the same as repeated calls of `simpy.Environment.step`, in less time.
    """
    queue, pop = env._queue, heapq.heappop
    while not waitable.complete:
        if not queue:
            raise simpy.core.EmptySchedule
        env._now, _, _, event = pop(queue)
        callbacks, event.callbacks = event.callbacks, None
        for callback in callbacks:
            callback(event)
        if not (event._ok or hasattr(event, "_defused")):
            raise event._value
