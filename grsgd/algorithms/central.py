"""Algorithms with a central model, on ranks that may not train."""

from collections.abc import Callable, Generator

from grsgd.algorithms.base import Algorithm


class Excluded(Exception):
    """The others go on without this rank."""


class CentralAlgorithm(Algorithm, name=None):
    """An algorithm with a central model, which is the model of the run, and workers that train.

    It knows how many gradients are in the model, and so how far the run is: it calls ``progress.note_steps``. Its
    `step` raises `Excluded` where the others go on without this rank.
    """

    _decides_who_computes = True

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.progress = context.progress
        self.is_worker = self.comm.rank < self.workers(options, self.comm.size)
        """Whether this rank trains; else it runs `serve`."""
        self.lost: frozenset[int] = frozenset()
        """After training, ranks that do not answer any more and were left behind."""

    @classmethod
    def workers(cls, options, ranks: int) -> int:
        """Return how many of the ranks train: the first ones."""
        return ranks

    @classmethod
    def keeps_step(cls, options, ranks: int) -> bool:
        """Return whether no worker begins a step before all workers have ended the previous step."""
        return cls.traits_of(options).synchronous

    @property
    def bound_gradients(self) -> int | None:
        """How many gradients' least possible time reports hold a run against; None: there is nothing to hold."""
        return None

    def rest(self):
        """Schedule, in place of `drain` where the run goes on after a checkpoint; then comes `begin`."""
        return self.drain()

    def serve(self) -> Generator:
        """Schedule, over and over on a rank that does not train: returns whether all others have ended."""
        raise NotImplementedError(f"{self.name} has ranks that do not train and no serve()")

    def broadcast_model(self, comm) -> Generator:
        """Schedule, on all ranks of ``comm`` at once: turn what snapshots have kept into what is to be evaluated."""
        raise NotImplementedError(f"{self.name} has a central model and no broadcast_model()")


def workers_of(algorithm: type[Algorithm], options, ranks: int) -> int:
    """Return how many of the ranks train with this algorithm: the first ones."""
    return algorithm.workers(options, ranks) if issubclass(algorithm, CentralAlgorithm) else ranks


def keeps_step(algorithm: type[Algorithm], options, ranks: int) -> bool:
    """Return whether no rank begins a step before all ranks that train have ended the previous step.

    If so, all ranks can rest before the same step.
    """
    if issubclass(algorithm, CentralAlgorithm):
        return algorithm.keeps_step(options, ranks)
    return algorithm.traits_of(options).synchronous


def rest_of(algorithm: Algorithm) -> Callable:
    """Return the hook that ends all activities where the run goes on after a checkpoint; then comes `begin`."""
    return algorithm.rest if isinstance(algorithm, CentralAlgorithm) else algorithm.drain
