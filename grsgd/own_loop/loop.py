"""Base class of the objects with which a user's own loop calls the hooks of its algorithm."""

from collections.abc import Callable

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.lifecycle import Lifecycle


class Loop:
    """Calls of the hooks of one algorithm, in a user's own loop that ends when the first process dies.

    A loop that goes on after a death uses `grsgd.own_loop.survival.SurvivingLoop`.
    """

    survives = False
    """Whether the loop goes on after the death of a process."""
    is_overtaken = False
    """Whether the other ranks have taken the present step without this rank, and this rank has taken over their
    model."""

    def __init__(self, lifecycle: Lifecycle):
        self.lifecycle = lifecycle

    @property
    def algorithm(self) -> Algorithm:
        return self.lifecycle.algorithm

    @property
    def left_out(self) -> int:
        """Number of steps that, as far as this rank knows, did not enter the model (`grsgd.training.participation`)."""
        return self.algorithm.left_out

    def begin(self):
        """Schedule (a generator that a driver runs) that begins the algorithm's background activities, unless they have
        begun."""
        yield from self.lifecycle.begin()

    def hook(self, name: str) -> Callable:
        """Return the algorithm's hook called ``name``: a function that may return a schedule."""
        return getattr(self.algorithm, name)

    def check(self):
        """Raise RuntimeError if the script may not take a step now."""

    def collected(self):
        """Record that all gradients of this rank's present step are in the array that is sent."""

    def stepped(self):
        """Record that this rank has ended a step."""

    def watch(self):
        """Receive messages of other ranks while this rank waits."""

    def warnings(self) -> list[str]:
        """Return warnings about checkpoints for the run file, one sentence each."""
        return []

    def refuse(self, call: str, remedy: str = ""):
        """Raise RuntimeError if this loop cannot make the collective call named ``call``. ``remedy`` tells the user
        what to do instead; by default, to make the call after ``finish()``."""
