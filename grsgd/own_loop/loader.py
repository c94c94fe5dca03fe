"""Batches of one rank from a data set that is the same on all ranks, for users' scripts."""

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from grsgd.data.rank_stream import RankStream
from grsgd.data.workers import worker_options
from grsgd.errors import SetupError
from grsgd.own_loop.ranks import LOADER, Samples, communicator, note, numbered_samples, shard
from grsgd.seeding import Purpose, begin_stream

OURS = ("sampler", "batch_sampler", "generator")
"""Options of a DataLoader that `loader` sets itself."""


class RankLoader(DataLoader):
    """DataLoader of one rank, which begins a new epoch at each iteration.

    ``epoch`` is the number of the next epoch, from 0; a script that goes on from a checkpoint sets it. The order of the
    samples and the seeds of worker processes depend only on the seed, the rank and the epoch.
    """

    def __init__(self, dataset, rank: int, seed: int, **options):
        super().__init__(dataset, generator=torch.Generator(), **options)
        self.rank, self.seed, self.epoch = rank, seed, 0

    def __iter__(self):
        for part in (self.sampler, self.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
        begin_stream(self.generator, Purpose.OWN_LOOP_WORKERS, self.seed, self.rank, self.epoch)
        self.epoch += 1
        return super().__iter__()


def loader(
    dataset: Samples | IterableDataset,
    batch_size: int,
    comm=None,
    *,
    shuffle: bool | None = None,
    seed: int = 0,
    fixed_parts: bool = False,
    drop_last: bool = False,
    num_workers: int = 0,
    worker_init_fn=None,
    **options,
) -> RankLoader:
    """Return a DataLoader of this rank's batches of a data set that is the same on all ranks.

    Samples are dealt out anew in every epoch, as by torch's DistributedSampler, so all ranks get equally many batches.
    Of an IterableDataset each rank gets every n-th sample on n ranks, and numbers of batches may differ (`even`).

    Parameters
    ----------
    dataset
        Data set with ``len()`` and ``[i]``, or an IterableDataset; the whole data set on every rank.
    batch_size
        Number of samples per rank and step.
    comm
        An mpi4py communicator; MPI_COMM_WORLD if None.
    shuffle
        Whether samples come in random order; by default they do, except of an IterableDataset.
    seed
        Seed of order, parts and worker processes; the same on all ranks.
    fixed_parts
        Whether each rank keeps one part for all epochs: ``shard(dataset, even=True)``.
    drop_last
        Whether samples are left out and not repeated; all ranks then get equally many whole batches.
    num_workers
        Number of worker processes per rank; ``dataset`` must then be picklable, and the script guarded.
    worker_init_fn, options
        Further options of torch's DataLoader.

    Raises
    ------
    SetupError
        For unfit data or an unfit ``comm``, and for options that this function sets itself.
    """
    mpi = communicator(comm, "loader(): comm")
    options |= {"batch_size": batch_size, "drop_last": drop_last}
    if problem := misfit(dataset, shuffle, fixed_parts, options):
        raise SetupError(f"{LOADER}: {problem}", is_printed=mpi.rank == 0)
    options = worker_options(num_workers, worker_init_fn) | options
    shuffle = shuffle is not False
    if isinstance(dataset, IterableDataset):
        dataset = RankStream(dataset, mpi.rank, mpi.size)
    elif fixed_parts:
        dataset, options["shuffle"] = shard(dataset, mpi, seed, even=True), shuffle
    else:
        note(LOADER, dataset, mpi, seed, numbered_samples(dataset, mpi, LOADER))
        options["sampler"] = DistributedSampler(dataset, mpi.size, mpi.rank, shuffle, seed, drop_last)
    return RankLoader(dataset, mpi.rank, seed, **options)


def misfit(dataset, shuffle: bool | None, fixed_parts: bool, options: dict) -> str | None:
    """Return the reason why `loader` cannot take its arguments; None if it can."""
    if wrong := next((name for name in OURS if name in options), None):
        return f"{wrong}: loader() sets it; make a DataLoader yourself"
    if isinstance(dataset, IterableDataset) and (shuffle or fixed_parts):
        return "an IterableDataset has no random order and no fixed parts: shuffle within the data set"
    return None
