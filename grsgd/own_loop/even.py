"""Equally many batches on all ranks: an epoch ends when the loader of any rank has no more batches."""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice

from torch.utils.data import DataLoader, IterableDataset

from grsgd.job import launch
from grsgd.own_loop.distributed_optimizer import unfinished
from grsgd.own_loop.ranks import communicator
from grsgd.own_loop.roll_call import RollCall, roll_call, wait_for
from grsgd.text import ranks_in_words

CALL = "in even()"
MANY = 4
"""Largest number of ranks that a line names."""
END = object()
"""Stands for the batch after the last one."""


def even(loader: Iterable, comm=None) -> Iterator:
    """Yield the batches of this rank's ``loader`` until the loader of any rank has no more; all ranks iterate together.

    If all loaders know their lengths, the ranks compare the lengths once per epoch. Otherwise they compare before every
    batch whether each rank has a batch: a rank then sends n - 1 messages of 256 bytes per batch on n ranks, and drops
    the batch that it has read last. Rank 0 prints a line, once, if batches are dropped.

    Parameters
    ----------
    loader
        Loader of this rank; the length of a DataLoader of an IterableDataset is not trusted.
    comm
        An mpi4py communicator; MPI_COMM_WORLD if None.

    Raises
    ------
    SetupError
        For an unfit ``comm``.
    UnevenCalls
        If other ranks are in another collective call of grsgd.
    RuntimeError
        In a loop over `surviving`.
    """
    for optimizer in unfinished:
        optimizer.loop.refuse("even()")
    mpi = communicator(comm, "even(): comm")
    roll = roll_call(mpi, CALL, launch.start_seconds())
    lengths = mpi.allgather(length_of(loader))
    if None in lengths:
        yield from while_all_have(loader, roll)
        return
    steps = min(lengths)
    if steps < max(lengths) and mpi.rank == 0:
        why = f"{ranks_with(steps, dict(enumerate(lengths)))} no more batches"
        dropped = f"{sum(lengths) - steps * mpi.size} of {sum(lengths)} batches of all ranks are dropped"
        say(f"{steps} steps per epoch, because {why}; {dropped}")
    yield from islice(loader, steps)


def length_of(loader: Iterable) -> int | None:
    """Return the number of batches of an epoch; None if it is not known for certain."""
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except TypeError:
        return None


def while_all_have(loader: Iterable, roll: RollCall) -> Iterator:
    """Yield batches, each after a roll call in which all ranks report that they have a batch."""
    batches, steps = iter(loader), 0
    while True:
        batch = next(batches, END)
        answers = roll.call(f"{CALL}, before a batch", int(batch is not END))
        wait_for(answers, launch.start_seconds())
        have = {roll.comm.rank: int(batch is not END)} | answers.steps
        if not all(have.values()):
            break
        yield batch
        steps += 1
    if any(have.values()) and roll.comm.rank == 0:
        dropping = ranks_in_words(sorted(rank for rank, has in have.items() if has), MANY)
        say(f"{steps} steps in an epoch, because {ranks_with(0, have)} no more batches; {dropping} dropped batches")


def ranks_with(number: int, of_ranks: dict[int, int]) -> str:
    """Return words for the ranks that have ``number``, with their verb: "rank 1 has"."""
    ranks = sorted(rank for rank, own in of_ranks.items() if own == number)
    return f"{ranks_in_words(ranks, MANY)} {'has' if len(ranks) == 1 else 'have'}"


@cache
def say(line: str):
    """Print a line on stderr, at its first call with the same text."""
    print(f"grsgd: even(): {line}", file=sys.stderr, flush=True)
