"""Last acts of a job whose processes may die, repeated until all living processes have done them."""

from collections.abc import Callable
from contextlib import suppress

from grsgd.comm.backend import has_died
from grsgd.comm.communicator import LostRank
from grsgd.comm.watchdog import within


def on_the_living(world, timeout: float, attempt: Callable):
    """Call ``attempt(living, made)`` on all living processes at once, again without processes that die meanwhile.

    Return the result of the attempt that all its processes have ended. ``world`` is an mpi4py communicator of all
    processes, and ``living`` a new one without the dead. ``attempt`` adds further communicators that it makes to the
    list ``made``. The processes have to meet within ``timeout`` seconds.
    """
    while True:
        with within(timeout, "meeting all processes that live, after training"):
            living, made = world.Shrink(), []
        result, is_done = None, False
        try:
            result, is_done = attempt(living, made), True
        except (RuntimeError, LostRank) as error:
            if not (isinstance(error, LostRank) or has_died(error)):
                raise
            for mpi in (*made, living):
                mpi.Revoke()
        if agreed(living, is_done):
            return result


def agreed(mpi, is_done: bool) -> bool:
    """Return whether all processes of ``mpi`` live and have done their part."""
    with suppress(RuntimeError):
        return bool(mpi.Agree(int(is_done)))
    return False
