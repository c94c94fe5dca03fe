"""Events for SimPy (the library that keeps simulated time) whose only effect is to call a function. An event of this
module takes less computing time than an event of SimPy's own classes. The computing time matters, because a simulation
creates several events for each message."""

import heapq
from collections.abc import Callable

import simpy
from simpy.events import NORMAL


class Call:
    """A SimPy event whose simulated time is fixed when the event is created. At the event's simulated time, SimPy calls
    the functions in ``callbacks``."""

    __slots__ = ("callbacks",)

    _ok = True
    """Flag that SimPy reads to see whether an event has failed without being handled. The flag is always True, because
    this event cannot fail."""

    def __init__(self, call: Callable):
        self.callbacks: tuple[Callable, ...] | None = (call,)

    def cancel(self):
        """Cancel the event: it will call no function. The event stays in SimPy's queue, because SimPy cannot remove an
        event."""
        self.callbacks = ()


def call_at(env: simpy.Environment, moment: float, call: Callable, priority: int = NORMAL) -> Call:
    """Let SimPy call ``call(event)`` at exactly the simulated time ``moment``. SimPy's own classes expect a delay from
    the present time, and adding a delay could round the time differently."""
    event = Call(call)
    heapq.heappush(env._queue, (moment, priority, next(env._eid), event))
    return event


def call_after(env: simpy.Environment, seconds: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` after ``seconds`` of simulated time."""
    return call_at(env, env._now + seconds, call, priority)


def run_until_complete(env: simpy.Environment, waitable):
    """Let simulated time pass until the object ``waitable`` is complete. Raises simpy.core.EmptySchedule if SimPy has
    no further event and ``waitable`` is not complete.

    The loop in this function has the same effect as repeated calls of `simpy.Environment.step`, and is faster.
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
