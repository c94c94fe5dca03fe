"""Function that repeats the last work of a job (evaluation and saving) after the death of a process, until all living
processes have done this work."""

from collections.abc import Callable
from contextlib import suppress

from grsgd.comm.backend import has_died
from grsgd.comm.communicator import LostRank
from grsgd.comm.watchdog import within


def on_the_living(world, timeout: float, attempt: Callable):
    """Call ``attempt(living, made)`` on all living processes at once. If a process dies during the call, the call is
    repeated.

    Return the result of the first call of ``attempt`` that all processes of ``living`` have completed. ``world`` is an
    mpi4py communicator of all processes, and ``living`` is a new communicator without the dead processes. ``attempt``
    adds each communicator that it creates to the list ``made``. All living processes must reach this function within
    ``timeout`` seconds.
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
    """Return whether all processes of ``mpi`` are alive and have called this function with ``is_done`` = True."""
    with suppress(RuntimeError):
        return bool(mpi.Agree(int(is_done)))
    return False
