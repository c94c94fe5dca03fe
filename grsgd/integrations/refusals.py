"""Conversion of usage errors in the loops of other libraries: one printed line for all ranks, and exit code 2."""

from contextlib import contextmanager

from grsgd.errors import SetupError, UsageError
from grsgd.job import launch
from grsgd.own_loop.ranks import world


@contextmanager
def refused_alike():
    """Turn a UsageError in the block into a SetupError, as `grsgd.distribute` does. All ranks must raise the same
    UsageError.

    If the script does not catch the SetupError, rank 0 prints the message as one line, and all ranks end with exit code
    2.
    """
    mpi = world()
    launch.abort_on_error(mpi)
    try:
        yield
    except SetupError:
        raise
    except UsageError as error:
        raise SetupError(str(error), is_printed=mpi.rank == 0) from None
