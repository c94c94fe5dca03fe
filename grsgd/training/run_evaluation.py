"""Evaluation of the snapshots and of the final model, after training. Each function is a schedule (a generator that
yields each object it waits for)."""

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
    """Return a list with the `Quality` of the snapshot at each of ``marks``, and the `Quality` of the final model; a
    schedule, run on all ranks at once.

    ``comm`` must carry no other messages. The training's communicators are not used, because after an early end they
    can still have messages under way. ``on_each`` is called after each snapshot with the number of evaluated snapshots.
    ``evaluated`` is called with each averaged model, including the final model. The final model is left in the replica.
    """
    final = [tensor.clone() for tensor in trainer.recovery.model()]
    qualities = yield from evaluate_snapshots(trainer, comm, marks, on_each, evaluated)
    trainer.replica.params.tensor.copy_(final[0])
    trainer.replica.buffers.tensor.copy_(final[1])
    of_final = yield from quality_of_replicas(trainer, comm, trainer.algorithm.weight)
    evaluated(trainer.replica.model, of_final)
    return qualities, of_final


def evaluate_snapshots(trainer: Trainer, comm: Communicator, marks: list[int], on_each=ignore, evaluated=ignore):
    """Evaluate the snapshots as `evaluate` does, without the final model; a schedule. The average of the last snapshots
    stays in the replica."""
    qualities: list[Quality] = []
    for mark in marks:
        known = trainer.snapshots.restore(mark)
        qualities.append((yield from quality_of_replicas(trainer, comm, trainer.snapshots.weights[mark], known)))
        evaluated(trainer.replica.model, qualities[-1])
        on_each(len(qualities))
    return qualities


def quality_of_replicas(trainer: Trainer, comm: Communicator, weight: float, known: bool = True):
    """Return the `Quality` of the models that are in the replicas; a schedule, run on all ranks at once."""
    if trainer.is_central:
        yield from trainer.algorithm.broadcast_model(comm)
    replicas = trainer.config.train.evaluate_replicas
    return (yield from quality(comm, trainer.replica, trainer.data.test, trainer.task, replicas, weight, known))
