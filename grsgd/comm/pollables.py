"""Pollables: what a schedule may yield, objects with ``Test() -> bool`` that turn true once and stay true.

They are the concept on which all communication rests. Messages (`grsgd.comm.communicator.Message`) and background
schedules (`grsgd.comm.engine.Handle`) are pollables too. Schedules never sleep and never block: they yield what they
wait for, and the driver decides how to wait. That is why the same schedule runs in the foreground, behind a backward
pass, and in simulated time.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol


class Pollable(Protocol):
    """An event that a schedule waits for; ``str()`` of it names it in time-outs."""

    def Test(self) -> bool:
        """Whether it has happened. Once true, always true; raises what went wrong. Must not block."""


class Delay:
    """True ``seconds`` after it was made: an injected straggler, or a time-out between two attempts."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._deadline = perf_counter() + seconds

    def Test(self) -> bool:
        return perf_counter() >= self._deadline

    def __str__(self):
        return f"a delay of {self.seconds:g} s"


class Compute:
    """A computation: the driver calls ``work()``, sets ``value`` to what it returns, and ``seconds`` to how long it
    took, in real or in simulated time. ``amount``: how much work it is, where 1 is a gradient of ``data.batch_size``
    samples; simulated time is proportional to it.

    ``stages``: pairs of a share of the time, in order, and what is to be called when that is over. A driver calls them
    where a computation takes another time than its work (``Driver.calls_stages``); else the work itself does."""

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
    """True when ``condition()`` is: a state of this rank that another of its activities changes. ``in_background``:
    nothing but schedules in the background do, so a foreground that waits need not look where a thread moves these."""

    def __init__(self, condition: Callable[[], bool], meaning: str, in_background: bool = False):
        self.Test = condition
        self.meaning = meaning
        self.in_background = in_background

    def __str__(self):
        return self.meaning


class Signal:
    """A flag that one activity of a rank sets and another waits for."""

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
