"""Choice of a rank's recovery object for a run that takes checkpoints, or that goes on when processes die. The choice
depends on the algorithm's traits."""

from collections.abc import Callable

from grsgd.algorithms.base import Algorithm, Traits
from grsgd.algorithms.central import keeps_step
from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.comm.elastic.meeting import Meeting
from grsgd.comm.elastic.membership import Membership
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.checkpoints import Checkpoints, Every
from grsgd.training.loose_checkpoints import LooseCheckpoints
from grsgd.training.memory_checkpoints import MemoryCheckpoints
from grsgd.training.recovery import Recovery
from grsgd.training.regroup import Regrouping
from grsgd.training.succession import Succession
from grsgd.training.surviving import Surviving


def recovery_from_deaths(
    traits: Traits, context: RankContext, states: Communicator, beside: Driver, checkpoints: Recovery | None = None
) -> Surviving:
    """Return the recovery object with which a rank goes on when processes die, for an algorithm with ``traits``.

    ``states`` is a communicator of all processes, over which new processes receive models. ``beside`` is the driver
    that runs schedules (generators) in the background. The object ``checkpoints`` takes the checkpoints of the run.
    """
    if traits.survives_deaths == "together":
        return Regrouping(context, checkpoints)
    return Succession(context.membership, states, beside, checkpoints)


def recovery_by_checkpoints(
    algorithm: type[Algorithm],
    options,
    writer: CheckpointWriter,
    every: Every,
    comm: Communicator,
    driver: Driver,
    membership: Membership | None,
    go_on: Callable,
    memory: MemoryCheckpoints | None = None,
) -> Checkpoints | LooseCheckpoints:
    """Return the object that takes the checkpoints of a rank in a run of ``algorithm`` with ``options``.

    ``comm`` is a communicator of all ranks that carries only messages about checkpoints. ``membership`` has the process
    of each rank if the run goes on when processes die, else None. ``go_on(trainer)`` is called before the first step,
    as in `Recovery`. The object ``memory`` takes further checkpoints in the memory of hosts. ``memory`` is None if
    ``membership`` is given.
    """
    traits = algorithm.traits_of(options)
    if membership is not None and traits.survives_deaths != "together":
        return LooseCheckpoints(writer, every, comm, membership, go_on)
    meeting = Meeting(comm, driver, keeps_step(algorithm, options, comm.size))
    return Checkpoints(writer, every, meeting, traits.rests_between_steps, go_on, memory)
