"""Base class of algorithms with a central model, which some of the ranks may serve without training.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Callable, Generator

from grsgd.algorithms.base import Algorithm


class Excluded(Exception):
    """Error raised on a rank that the server has excluded from the run because the rank was silent for too long. The
    run goes on without the excluded rank."""


class CentralAlgorithm(Algorithm, name=None):
    """Base class of algorithms with a central model, which is the model of the run, and with workers, which are the
    ranks that train.

    The algorithm counts the gradients that were applied to the central model. The number of applied gradients is the
    run's progress, which the algorithm reports by ``progress.note_steps``. The method `step` raises `Excluded` on a
    rank that was excluded from the run.
    """

    _decides_who_computes = True

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.progress = context.progress
        self.is_worker = self.comm.rank < self.workers(options, self.comm.size)
        """Whether this rank computes gradients; a rank that does not train runs `serve`."""
        self.lost: frozenset[int] = frozenset()
        """Ranks that stopped sending messages, so that the run went on without them. The set ``lost`` is complete only
        after training."""

    @classmethod
    def workers(cls, options, ranks: int) -> int:
        """Return the number of ranks that train, which are the ranks with the lowest numbers."""
        return ranks

    @classmethod
    def keeps_step(cls, options, ranks: int) -> bool:
        """Return whether all workers end a step before any worker begins the next step."""
        return cls.traits_of(options).synchronous

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        """Return the numbers of arrays that `Algorithm.arrays_in_32_bits` describes, for a server that sums the
        workers' gradients in float32."""
        return 0, (1 / getattr(options, "servers", 1) if cls.traits.sends_gradients else 0)

    @property
    def bound_gradients(self) -> int | None:
        """Number of gradients per update of the central model, from which reports compute the least possible time of a
        run. Reports compare the run's time with the least possible time of a run whose updates need ``bound_gradients``
        gradients each. If ``bound_gradients`` is None, reports have no least possible time."""
        return None

    def rest(self):
        """Generator that is run in place of `drain` before a checkpoint, if the run goes on after the checkpoint. The
        training loop calls `begin` after the checkpoint."""
        return self.drain()

    def tell_settings(self, settings: list[dict]) -> Generator:
        """Generator, called on a worker of a user's own training loop, that tells the server the settings of the
        optimizer for this rank's later gradients.

        The argument ``settings`` has values of each parameter group of the optimizer, such as learning rates.
        `tell_settings` is called only if the algorithm's traits have ``sends_gradients``, before the first step and
        after each change of a setting.
        """
        raise NotImplementedError(f"{self.name}: algorithms whose workers send gradients must define tell_settings()")

    def stuck(self, absent: set[int]) -> set[int]:
        """Return the workers that would wait for ever for an answer of the server on this rank if the ranks ``absent``
        take no step. By default the set is empty, because no worker would wait for ever."""
        return set()

    def serve(self) -> Generator:
        """Generator, called repeatedly on a rank that does not train, that serves the central model, and returns
        whether all workers have ended."""
        raise NotImplementedError(f"{self.name}: algorithms with ranks that do not train must define serve()")

    def broadcast_model(self, comm) -> Generator:
        """Generator, called on all ranks of ``comm`` at once, that replaces the content of each rank's snapshot by the
        central model, so that the central model is evaluated."""
        raise NotImplementedError(f"{self.name}: algorithms with a central model must define broadcast_model()")


def workers_of(algorithm: type[Algorithm], options, ranks: int) -> int:
    """Return how many of ``ranks`` ranks train with ``algorithm``. The ranks that train are the ranks with the lowest
    numbers."""
    return algorithm.workers(options, ranks) if issubclass(algorithm, CentralAlgorithm) else ranks


def keeps_step(algorithm: type[Algorithm], options, ranks: int) -> bool:
    """Return whether all ranks that train end a step before any rank begins the next step.

    If `keeps_step` returns True, all ranks can pause before the same step to write a checkpoint.
    """
    if issubclass(algorithm, CentralAlgorithm):
        return algorithm.keeps_step(options, ranks)
    return algorithm.traits_of(options).synchronous


def rest_of(algorithm: Algorithm) -> Callable:
    """Return the hook of ``algorithm`` that ends all activities before a checkpoint, if the run goes on after the
    checkpoint."""
    return algorithm.rest if isinstance(algorithm, CentralAlgorithm) else algorithm.drain
