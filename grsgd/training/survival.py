"""Choice of the recovery of a rank whose run goes on when processes die; the algorithm's traits decide."""

from grsgd.algorithms.base import Traits
from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.training.regroup import Regrouping
from grsgd.training.succession import Succession
from grsgd.training.surviving import Surviving


def recovery_from_deaths(traits: Traits, context: RankContext, states: Communicator, beside: Driver) -> Surviving:
    """Return the recovery of a rank for an algorithm with ``traits``.

    ``states`` is a communicator of all processes, for the models that a new process of a rank asks for. ``beside`` is
    the driver of background schedules.
    """
    if traits.survives_deaths == "together":
        return Regrouping(context)
    return Succession(context.membership, states, beside)
