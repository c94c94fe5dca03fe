"""Participation: the fraction of the steps of living ranks that entered the run's model.

A step of a rank enters the model if the step's gradient, local update or coded message affects the run's model:

- Algorithms in which all ranks take each step together: a rank that joins after a death has no gradient of its own in
  its first step if the other ranks repeat an interrupted step. This first step of the new rank does not enter the
  model. A step that a death interrupts is not counted, because the ranks take the step again.
- Gossip: all models are averaged at the end, so all steps of living ranks enter the model.
- ``lasgd`` with ``merge = "overwrite"``: a step that a rank takes while an average is under way does not enter the
  model.
- Parameter servers: a gradient that the server drops as too old does not enter the model.
- Coded algorithms that go on without silent ranks: a late rank may take a step only from other ranks' messages,
  without computing. This step of the late rank does not enter the model.

A rank is living if a process holds the rank at the end of the run, and if the other ranks have not gone on without this
rank. The fraction leaves out steps of dead processes, and of spare processes that hold no rank. Steps that are lost
between a checkpoint and a restart lower the goodput (the share of all work that is in the final model), but not the
participation. With several parameter servers, only gradients that the first server drops count as steps that did not
enter the model.
"""

from collections.abc import Collection, Sequence


def left_out(trainer) -> int:
    """Return the number of steps that did not enter the run's model, as far as ``trainer`` knows. The counted steps are
    steps of the trainer's rank or, on a parameter server, steps of the workers."""
    totals = trainer.totals
    return totals.steps - totals.samples // trainer.config.data.batch_size + trainer.algorithm.left_out


def participation(records: Sequence, lost: Collection[int] = ()) -> float | None:
    """Return the fraction, from 0 to 1, of the steps of living ranks that entered the model. Return None if no living
    rank has taken a step.

    ``records`` are the measurements of all ranks by ascending rank. ``lost`` are the ranks that are not living, because
    they have no process at the end or were left behind.
    """
    living = [record for rank, record in enumerate(records) if rank not in lost]
    steps = sum(record.measured["steps"] for record in living)
    return max(1 - sum(record.left_out for record in living) / steps, 0.0) if steps else None
