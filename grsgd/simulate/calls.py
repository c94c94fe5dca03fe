"""Events of SimPy's kernel that call one function, and nothing else: a simulation makes several for each message."""

import heapq
from collections.abc import Callable

import simpy
from simpy.events import NORMAL


class Call:
    """An event at a time that is known when it is made; ``callbacks`` is what the kernel calls."""

    __slots__ = ("callbacks",)

    _ok = True
    """Which the kernel asks of an event: it does not fail."""

    def __init__(self, call: Callable):
        self.callbacks: tuple[Callable, ...] | None = (call,)

    def cancel(self):
        """Call nothing: SimPy cannot take an event back."""
        self.callbacks = ()


def call_at(env: simpy.Environment, moment: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` at ``moment``, to the last bit, which a difference to now may lose."""
    event = Call(call)
    heapq.heappush(env._queue, (moment, priority, next(env._eid), event))
    return event


def call_after(env: simpy.Environment, seconds: float, call: Callable, priority: int = NORMAL) -> Call:
    """Call ``call(event)`` in ``seconds`` from now."""
    return call_at(env, env._now + seconds, call, priority)


def run_until_complete(env: simpy.Environment, waitable):
    """Let time pass until ``waitable.complete``: what `simpy.Environment.step` does, again and again, of events that do
    not fail but for those of processes. Raises simpy.core.EmptySchedule."""
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
