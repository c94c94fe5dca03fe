"""Choice of the recovery, by the algorithm's traits, in a run that goes on when processes die."""

from grsgd.algorithms.base import Traits
from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.training.recovery import Recovery
from grsgd.training.regroup import Regrouping
from grsgd.training.succession import Succession
from grsgd.training.surviving import Surviving


def recovery_from_deaths(
    traits: Traits, context: RankContext, states: Communicator, beside: Driver, checkpoints: Recovery | None = None
) -> Surviving:
    """Return the recovery of a rank for an algorithm with ``traits``.

    ``states`` is a communicator of all processes, over which new processes get models. ``beside`` is the driver that
    runs schedules in the background. ``checkpoints`` takes the checkpoints of the run.
    """
    if traits.survives_deaths == "together":
        return Regrouping(context, checkpoints)
    return Succession(context.membership, states, beside, checkpoints)
