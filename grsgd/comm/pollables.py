"""Pollables: the objects that a schedule may yield. A pollable has a method ``Test() -> bool``, whose result changes
once from False to True.

All communication of the project rests on pollables. Messages (`grsgd.comm.communicator.Message`) and background
schedules (`grsgd.comm.engine.Handle`) are pollables, too. A schedule never sleeps and never blocks: it yields the
pollable that it waits for, and the driver decides how to wait. So the same schedule runs in the foreground, behind a
backward pass, and in simulated time.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol


class Pollable(Protocol):
    """An event that a schedule waits for; ``str()`` of the event names it in time-outs."""

    def Test(self) -> bool:
        """Return whether the event has happened; after the first True the result is always True. An implementation must
        not block, and raises the error of a failed event."""


class Delay:
    """A pollable that is true ``seconds`` seconds after it was made. Its uses are the delay of an injected straggler,
    and a pause between two attempts."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._deadline = perf_counter() + seconds

    def Test(self) -> bool:
        return perf_counter() >= self._deadline

    def __str__(self):
        return f"a delay of {self.seconds:g} s"


class Compute:
    """A computation, which the driver runs.

    The driver calls ``work()``, sets ``value`` to the result, and sets ``seconds`` to the duration in real or simulated
    seconds.

    ``amount``: size of the computation, where 1 is a gradient of ``data.batch_size`` samples; simulated time is
    proportional to ``amount``.

    ``stages``: pairs of a share of the duration and a function, in order of the shares. If the computation's duration
    is not the duration of ``work()`` (``Driver.calls_stages``), the driver calls each function when its share of the
    duration is over. Otherwise ``work()`` calls the functions itself.
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
    """A pollable that is true when ``condition()`` is true. The condition is a state of this rank that another schedule
    of the rank changes.

    ``in_background``: only background schedules change the condition. If a thread moves those schedules, a waiting
    foreground need not poll.
    """

    def __init__(self, condition: Callable[[], bool], meaning: str, in_background: bool = False):
        self.Test = condition
        self.meaning = meaning
        self.in_background = in_background

    def __str__(self):
        return self.meaning


class Signal:
    """A flag that one schedule of a rank sets and another schedule of the same rank waits for."""

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
