"""The way in which a user's own loop calls the hooks of its algorithm."""

from collections.abc import Callable

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.lifecycle import Lifecycle


class Loop:
    """Calls of the hooks of one algorithm, in a loop that ends when the first process dies.

    `grsgd.own_loop.survival.SurvivingLoop` is the loop that goes on.
    """

    survives = False
    """Whether the loop goes on without processes that die."""
    is_overtaken = False
    """Whether the other ranks have taken this rank's last step without it, and this rank has their model."""

    def __init__(self, lifecycle: Lifecycle):
        self.lifecycle = lifecycle

    @property
    def algorithm(self) -> Algorithm:
        return self.lifecycle.algorithm

    @property
    def left_out(self) -> int:
        """Number of steps that this rank knows not to have entered the model (`grsgd.training.participation`)."""
        return self.algorithm.left_out

    def begin(self):
        """Schedule that begins background activities, unless they have begun."""
        yield from self.lifecycle.begin()

    def hook(self, name: str) -> Callable:
        """Return the algorithm's hook called ``name``, as a function that may return a schedule."""
        return getattr(self.algorithm, name)

    def check(self):
        """Raise RuntimeError if no step may be taken now."""

    def collected(self):
        """Record that all gradients of this rank's step lie in the array that is sent."""

    def stepped(self):
        """Record that this rank has ended a step."""

    def watch(self):
        """Look for messages of other ranks while this rank waits."""

    def warnings(self) -> list[str]:
        """Return warnings about checkpoints for the run file, one sentence each."""
        return []

    def refuse(self, call: str, remedy: str = ""):
        """Raise RuntimeError if the loop cannot make the collective call named ``call``. ``remedy`` says what to do
        instead of the call; by default, to make the call after ``finish()``."""
