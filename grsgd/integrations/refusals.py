"""Conversion of usage errors in the loops of other libraries: one printed line for all ranks, and exit code 2."""

from collections.abc import Sequence
from contextlib import contextmanager

from grsgd.errors import ConfigError, SetupError, UsageError
from grsgd.job import launch
from grsgd.own_loop.distributed_optimizer import unfinished
from grsgd.own_loop.ranks import world


class RefusedAlike(SetupError, ConfigError):
    """ConfigError that all ranks raise."""


@contextmanager
def refused_alike():
    """Turn a UsageError in the block into a `RefusedAlike`, as `grsgd.distribute` does. All ranks must raise the same
    UsageError.

    If the script does not catch the `RefusedAlike`, rank 0 prints the message as one line, and all ranks end with exit
    code 2. During a training the UsageError stays as it is, because a single rank may have raised it: the rank then
    prints the message and ends the job with exit code 1.
    """
    mpi = world()
    launch.abort_on_error(mpi)
    try:
        yield
    except SetupError:
        raise
    except UsageError as error:
        if unfinished:
            raise
        raise RefusedAlike(str(error), is_printed=mpi.rank == 0) from None


@refused_alike()
def check_is_distributed(distributed: Sequence, call: str):
    """Raise ConfigError if the job has several ranks, but grsgd trains no model, so that each rank trains alone.

    ``distributed`` are the distributed optimizers. ``call`` is the call that distributes a model with its optimizers.
    """
    if not distributed and world().size > 1:
        raise ConfigError(f"each rank trains alone: give {call} the model with its optimizers in one call")
