"""Recovery of a rank whose run goes on without the processes that die, by the algorithm's traits."""

from grsgd.algorithms.base import Traits
from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.training.regroup import Regrouping
from grsgd.training.succession import Succession
from grsgd.training.surviving import Surviving


def recovery_from_deaths(traits: Traits, context: RankContext, states: Communicator, beside: Driver) -> Surviving:
    """Return the recovery of a rank.

    ``states`` is a communicator of all processes, for models that are handed over. ``beside`` is the driver of
    background schedules.
    """
    if traits.survives_deaths == "together":
        return Regrouping(context)
    return Succession(context.membership, states, beside)
