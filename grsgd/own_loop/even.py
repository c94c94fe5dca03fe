"""The function `even`, which gives all ranks equal numbers of batches: an epoch ends when any rank has no more
batches."""

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
"""Largest number of ranks that a printed line names."""
END = object()
"""Object that stands in place of a batch after the last batch."""


def even(loader: Iterable, comm=None) -> Iterator:
    """Yield the batches of this rank's ``loader`` until any rank has no more batches. All ranks must iterate together.

    If all loaders know their lengths, the ranks compare the lengths once per epoch. If a loader does not know its
    length, the ranks compare before every batch whether each rank has a batch. On n ranks, each rank sends n - 1
    messages of 256 bytes per batch for this comparison. At the end of an epoch, a rank may have to drop the batch that
    it has read last. If batches are dropped, rank 0 prints one line.

    Parameters
    ----------
    loader
        Loader of this rank. The length of a DataLoader of an IterableDataset is not used, because it may be wrong.
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
    """Return the number of batches of ``loader`` in an epoch; None if the number is not known for certain."""
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except TypeError:
        return None


def while_all_have(loader: Iterable, roll: RollCall) -> Iterator:
    """Yield batches of ``loader``. Before each batch, the ranks report in a roll call that each of them has a batch."""
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
    """Return a text that names the ranks whose value in ``of_ranks`` is ``number``, with a verb, such as "rank 1
    has"."""
    ranks = sorted(rank for rank, own in of_ranks.items() if own == number)
    return f"{ranks_in_words(ranks, MANY)} {'has' if len(ranks) == 1 else 'have'}"


@cache
def say(line: str):
    """Print ``line`` on stderr. Further calls with the same text print nothing."""
    print(f"grsgd: even(): {line}", file=sys.stderr, flush=True)
