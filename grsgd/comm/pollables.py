"""Pollables, the objects that a schedule (a generator) yields in order to wait for an event. A pollable has a method
``Test() -> bool`` that returns False before the event and True after the event.

All waits for communication in the project use pollables. For example, messages (`grsgd.comm.communicator.Message`) and
background schedules (`grsgd.comm.engine.Handle`) are pollables. A schedule itself never sleeps and never blocks. A
schedule yields the pollable for which it waits, and the driver that runs the schedule decides how to wait. Therefore
the same schedule can run in the foreground, during a backward pass, and in simulated time.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol


class Pollable(Protocol):
    """Interface of pollables: an event for which a schedule can wait. The string of a pollable describes the event in
    the error that is raised after too long a wait."""

    def Test(self) -> bool:
        """Return True if the event has happened. When a call has returned True, all later calls must return True. An
        implementation of ``Test`` must not block, and raises an error if the event can no longer happen."""


class Delay:
    """A pollable whose ``Test()`` returns True when ``seconds`` seconds have passed since the pollable was made.
    Schedules use `Delay` for the delays of injected stragglers (ranks that are made slow) and for pauses between two
    attempts."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._deadline = perf_counter() + seconds

    def Test(self) -> bool:
        return perf_counter() >= self._deadline

    def __str__(self):
        return f"a delay of {self.seconds:g} s"


class Compute:
    """A pollable for a computation, such as a gradient, which the driver runs.

    The driver calls the function ``work()``, sets ``value`` to its result, and sets ``seconds`` to its duration in real
    or simulated seconds.

    ``amount``: size of the computation, relative to the gradient of ``data.batch_size`` samples. In a simulation, the
    duration of the computation is proportional to ``amount``.

    ``stages``: functions to call during the computation, as pairs (share of the duration, function), in ascending order
    of the shares. If the driver makes the computation take longer or shorter than ``work()`` (``Driver.calls_stages``),
    it calls each function when the function's share of the duration has passed. If the driver does not change the
    duration, ``work()`` calls the functions itself.
    """

    def __init__(
        self,
        work: Callable[[], object],
        amount: float = 1.0,
        stages: Sequence[tuple[float, Callable[[], None]]] = (),
    ):
        self.work = work
        self.amount = amount
        self.stages = stages
        self.value = None
        self.seconds: float | None = None

    def Test(self) -> bool:
        if self.seconds is None:
            begin = perf_counter()
            self.value = self.work()
            self.seconds = perf_counter() - begin
        return True

    def __str__(self):
        return "a computation"


class Until:
    """A pollable whose method ``Test`` is the function ``condition``. The condition must depend on data of this rank
    that another schedule of the rank changes.

    ``meaning``: text that describes the condition in error messages. ``in_background``: True if only background
    schedules change the condition. In this case, if a thread resumes the background schedules, a driver that waits in
    the foreground need not poll.
    """

    def __init__(self, condition: Callable[[], bool], meaning: str, in_background: bool = False):
        self.Test = condition
        self.meaning = meaning
        self.in_background = in_background

    def __str__(self):
        return self.meaning


class Signal:
    """A pollable flag: one schedule of a rank sets the flag, and another schedule of the rank waits for it."""

    def __init__(self, meaning: str):
        self.meaning = meaning
        self._is_set = False

    def set(self):
        self._is_set = True

    def clear(self):
        self._is_set = False

    def Test(self) -> bool:
        return self._is_set

    def __str__(self):
        return self.meaning
