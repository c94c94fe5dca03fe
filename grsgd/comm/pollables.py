"""Pollables: the objects that a schedule may yield to wait for an event. A pollable has a method ``Test() -> bool``,
whose result changes once from False to True.

All communication of the project uses pollables. Messages (`grsgd.comm.communicator.Message`) and background schedules
(`grsgd.comm.engine.Handle`) are pollables, too. A schedule (a generator) never sleeps and never blocks. A schedule
yields the pollable for which it waits, and the driver decides how to wait. So one schedule can run in the foreground,
during a backward pass, and in simulated time.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol


class Pollable(Protocol):
    """An event for which a schedule can wait. ``str()`` of a pollable describes the event in the error messages of
    time-outs."""

    def Test(self) -> bool:
        """Return whether the event has happened. After the first True, every call must return True. An implementation
        must not block, and raises an error if the event has failed."""


class Delay:
    """A pollable whose ``Test()`` returns True from ``seconds`` seconds after its creation on. `Delay` is used for the
    delay of an injected straggler, and for pauses between two attempts."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._deadline = perf_counter() + seconds

    def Test(self) -> bool:
        return perf_counter() >= self._deadline

    def __str__(self):
        return f"a delay of {self.seconds:g} s"


class Compute:
    """A pollable for a computation, which the driver runs.

    The driver calls ``work()``, sets ``value`` to the result, and sets ``seconds`` to the duration in real or simulated
    seconds.

    ``amount``: size of the computation, where 1 is the size of a gradient of ``data.batch_size`` samples. The simulated
    duration is proportional to ``amount``.

    ``stages``: pairs (share of the duration, function), in ascending order of the shares. If the computation takes
    longer or shorter than ``work()`` (``Driver.calls_stages``), the driver calls each function when the function's
    share of the duration is over. If the computation takes as long as ``work()``, ``work()`` calls the functions
    itself.
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
    """A pollable whose ``Test()`` is ``condition``, a function. The condition depends on data of this rank that another
    schedule of the rank changes.

    ``meaning``: text that describes the condition in error messages. ``in_background``: whether only background
    schedules change the condition. If a thread resumes the background schedules, a driver that waits in the foreground
    need not poll.
    """

    def __init__(self, condition: Callable[[], bool], meaning: str, in_background: bool = False):
        self.Test = condition
        self.meaning = meaning
        self.in_background = in_background

    def __str__(self):
        return self.meaning


class Signal:
    """A flag that one schedule of a rank sets, and for which another schedule of the rank waits."""

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
