"""Participation: the share of the steps of living ranks that entered the model.

A step of a rank enters the model if its gradient, its local update or its coded message is part of the run's model:

- Algorithms whose ranks step together: a rank that joins after a death takes its first step without a gradient of its
  own if the other ranks repeat an interrupted step. Such a step does not enter. A step that a death interrupts is not
  counted: it is taken again.
- Gossip: all models are averaged at the end, so all steps of living ranks enter.
- ``lasgd`` with ``merge = "overwrite"``: steps that are taken while an average is under way do not enter.
- Servers: gradients that the server drops as too old do not enter.
- Coded steps without silent ranks: a step that a late rank takes from other ranks' messages alone, without computing,
  does not enter.

A rank lives if its process holds a rank at the end, and if the other ranks have not gone on without it. Steps of dead
processes do not count, and neither do spares that hold no rank. Steps that are lost between a checkpoint and a restart
do not count here: they are missing in the goodput. With several servers, the first server's drops count.
"""

from collections.abc import Collection, Sequence


def left_out(trainer) -> int:
    """Return the number of steps that ``trainer`` knows not to have entered the model: steps of its own rank, and on a
    server steps of its workers."""
    totals = trainer.totals
    return totals.steps - totals.samples // trainer.config.data.batch_size + trainer.algorithm.left_out


def participation(records: Sequence, lost: Collection[int] = ()) -> float | None:
    """Return the share, from 0 to 1, of the steps of living ranks that entered the model; None if no living rank has
    taken a step.

    ``records`` are the measurements of all ranks by ascending rank, and ``lost`` are the ranks that do not live.
    """
    living = [record for rank, record in enumerate(records) if rank not in lost]
    steps = sum(record.measured["steps"] for record in living)
    return max(1 - sum(record.left_out for record in living) / steps, 0.0) if steps else None
