"""Events of SimPy's kernel that only call one function; a simulation makes several of them for each message."""

import heapq
from collections.abc import Callable

import simpy
from simpy.events import NORMAL


class Call:
    """An event whose time is known when it is made; the kernel calls the functions in ``callbacks``."""

    __slots__ = ("callbacks",)

    _ok = True
    """The flag that the kernel reads: true, because this event never fails."""

    def __init__(self, call: Callable):
        self.callbacks: tuple[Callable, ...] | None = (call,)

    def cancel(self):
        """Let the event call nothing; SimPy cannot remove an event from its queue."""
        self.callbacks = ()


def call_at(env: simpy.Environment, moment: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` at exactly ``moment``: a delay from now could change the last bits of the time."""
    event = Call(call)
    heapq.heappush(env._queue, (moment, priority, next(env._eid), event))
    return event


def call_after(env: simpy.Environment, seconds: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` after ``seconds``."""
    return call_at(env, env._now + seconds, call, priority)


def run_until_complete(env: simpy.Environment, waitable):
    """Let time pass until ``waitable.complete``; raise simpy.core.EmptySchedule if no event is left before.

    The loop does the work of `simpy.Environment.step` for events that do not fail; events of processes may fail.
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
