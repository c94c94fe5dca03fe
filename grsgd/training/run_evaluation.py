"""Evaluation of a run's snapshots and of its final model on test data, after training. Each function of this module is
a schedule (a generator that the rank's driver runs)."""

from collections.abc import Callable

import torch

from grsgd.comm.communicator import Communicator
from grsgd.training.evaluation import Quality, quality
from grsgd.training.trainer import Trainer, ignore


def evaluate(
    trainer: Trainer,
    comm: Communicator,
    marks: list[int],
    on_each: Callable[[int], None] = ignore,
    evaluated: Callable[[torch.nn.Module, Quality], None] = ignore,
):
    """Return a list with the `Quality` (test result) of the snapshot at each of ``marks``, and the `Quality` of the
    final model. This function is a generator (schedule) that all ranks run at once.

    ``comm`` must carry only messages of this function. The communicators of training are not used, because messages of
    a run that was ended early can still be under way. After each snapshot, ``on_each`` is called with the number of
    evaluated snapshots. ``evaluated`` is called with each averaged model and its `Quality`. When this function returns,
    the replica holds the final model.
    """
    final = [tensor.clone() for tensor in trainer.recovery.model()]
    qualities = yield from evaluate_snapshots(trainer, comm, marks, on_each, evaluated)
    trainer.replica.params.tensor.copy_(final[0])
    trainer.replica.buffers.tensor.copy_(final[1])
    of_final = yield from quality_of_replicas(trainer, comm, trainer.algorithm.weight)
    evaluated(trainer.replica.model, of_final)
    return qualities, of_final


def evaluate_snapshots(trainer: Trainer, comm: Communicator, marks: list[int], on_each=ignore, evaluated=ignore):
    """Return a list with the `Quality` (test result) of the snapshot at each of ``marks``. This function is a generator
    (schedule) that the rank's driver (event loop) runs. `evaluate` describes the arguments. When this function returns,
    the replica holds the average of the ranks' last snapshots."""
    qualities: list[Quality] = []
    for mark in marks:
        known = trainer.snapshots.restore(mark)
        qualities.append((yield from quality_of_replicas(trainer, comm, trainer.snapshots.weights[mark], known)))
        evaluated(trainer.replica.model, qualities[-1])
        on_each(len(qualities))
    return qualities


def quality_of_replicas(trainer: Trainer, comm: Communicator, weight: float, known: bool = True):
    """Return the `Quality` (test result) of the models that the ranks' replicas hold now. This function is a generator
    (schedule) that all ranks run at once."""
    if trainer.is_central:
        yield from trainer.algorithm.broadcast_model(comm)
    replicas = trainer.config.train.evaluate_replicas
    return (yield from quality(comm, trainer.replica, trainer.data.test, trainer.task, replicas, weight, known))
