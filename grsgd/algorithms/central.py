"""Base class of algorithms with a central model. Some ranks of an algorithm with a central model may serve the central
model and not train.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Callable, Generator

from grsgd.algorithms.base import Algorithm


class Excluded(Exception):
    """Error raised on a rank that the other ranks have excluded from the run. The other ranks go on without the
    excluded rank."""


class CentralAlgorithm(Algorithm, name=None):
    """Algorithm with a central model, which is the model of the run, and with workers, which are ranks that train.

    The algorithm counts the gradients that the central model contains. The count of gradients is the run's progress,
    which the algorithm reports by ``progress.note_steps``. On a rank that the other ranks have excluded, `step` raises
    `Excluded`.
    """

    _decides_who_computes = True

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.progress = context.progress
        self.is_worker = self.comm.rank < self.workers(options, self.comm.size)
        """Whether this rank trains; a rank that does not train runs `serve`."""
        self.lost: frozenset[int] = frozenset()
        """Ranks that stopped sending messages and without which the run went on. The set ``lost`` is filled after
        training."""

    @classmethod
    def workers(cls, options, ranks: int) -> int:
        """Return the number of ranks that train, which are the ranks with the lowest numbers."""
        return ranks

    @classmethod
    def keeps_step(cls, options, ranks: int) -> bool:
        """Return whether no worker begins a step before all workers have ended the previous step."""
        return cls.traits_of(options).synchronous

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        """Return the numbers of `Algorithm.arrays_in_32_bits` for a server that sums its part of the workers' gradients
        in float32."""
        return 0, (1 / getattr(options, "servers", 1) if cls.traits.sends_gradients else 0)

    @property
    def bound_gradients(self) -> int | None:
        """Number of gradients per update of the central model. Reports compare the run's time with the least possible
        time for ``bound_gradients``. If ``bound_gradients`` is None, no least possible time is known."""
        return None

    def rest(self):
        """Schedule that is run in place of `drain` before a checkpoint, if the run goes on after the checkpoint. After
        the checkpoint `begin` is called."""
        return self.drain()

    def tell_settings(self, settings: list[dict]) -> Generator:
        """Schedule, called on a worker of a user's own loop, that applies ``settings`` to this rank's later gradients.

        The settings, such as learning rates, are values of each parameter group of the optimizer. `tell_settings` is
        called only if the algorithm's traits have ``sends_gradients``, before the first step and after each change of a
        setting.
        """
        raise NotImplementedError(f"{self.name}: algorithms whose workers send gradients must define tell_settings()")

    def stuck(self, absent: set[int]) -> set[int]:
        """Return the workers that would wait for ever for an answer of this rank's server if the ranks ``absent`` take
        no step. By default no worker would wait for ever."""
        return set()

    def serve(self) -> Generator:
        """Schedule, called repeatedly on a rank that does not train, that serves the central model, and returns whether
        all workers have ended."""
        raise NotImplementedError(f"{self.name}: algorithms with ranks that do not train must define serve()")

    def broadcast_model(self, comm) -> Generator:
        """Schedule, called on all ranks of ``comm`` at once, that replaces the content of each rank's snapshot by the
        central model, which is evaluated."""
        raise NotImplementedError(f"{self.name}: algorithms with a central model must define broadcast_model()")


def workers_of(algorithm: type[Algorithm], options, ranks: int) -> int:
    """Return how many of ``ranks`` ranks train with ``algorithm``. The ranks that train are the ranks with the lowest
    numbers."""
    return algorithm.workers(options, ranks) if issubclass(algorithm, CentralAlgorithm) else ranks


def keeps_step(algorithm: type[Algorithm], options, ranks: int) -> bool:
    """Return whether no rank begins a step before all ranks that train have ended the previous step.

    If `keeps_step` returns True, all ranks can pause for a checkpoint before the same step.
    """
    if issubclass(algorithm, CentralAlgorithm):
        return algorithm.keeps_step(options, ranks)
    return algorithm.traits_of(options).synchronous


def rest_of(algorithm: Algorithm) -> Callable:
    """Return the hook that ends all activities before a checkpoint, if the run goes on after the checkpoint."""
    return algorithm.rest if isinstance(algorithm, CentralAlgorithm) else algorithm.drain
