"""The function `loader` for users' scripts, which returns one rank's batches of a data set that is equal on all
ranks."""

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
    """DataLoader of one rank. Each call of ``iter()`` begins a new epoch.

    ``epoch`` is the number of the next epoch, from 0. A script that goes on from a checkpoint sets ``epoch``. The order
    of the samples and the seeds of worker processes depend only on the seed, the rank and the epoch.
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

    In every epoch, samples are distributed to the ranks anew, as by torch's DistributedSampler. So all ranks get equal
    numbers of batches. From an IterableDataset, each of n ranks gets every n-th sample, and numbers of batches may
    differ (`even`).

    Parameters
    ----------
    dataset
        Data set with ``len()`` and ``[i]``, or an IterableDataset. Every rank must give the whole data set.
    batch_size
        Number of samples per rank and step.
    comm
        An mpi4py communicator; MPI_COMM_WORLD if None.
    shuffle
        Whether samples come in random order. The default is True, but an IterableDataset is never shuffled.
    seed
        Seed of the order of samples, of the ranks' parts and of worker processes; must be the same on all ranks.
    fixed_parts
        Whether each rank keeps the same part of the data in all epochs. ``shard(dataset, even=True)`` makes the part.
    drop_last
        If True, the last samples are left out, so that all batches are whole. If False, samples are repeated.
    num_workers
        Number of worker processes per rank. With worker processes, ``dataset`` must be picklable, and the script needs
        the guard ``if __name__ == "__main__":``.
    worker_init_fn, options
        Further options of torch's DataLoader.

    Raises
    ------
    SetupError
        For an unfit data set or ``comm``, and for options of DataLoader that `loader` sets itself.
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
    """Return the reason why `loader` cannot take its arguments; None if `loader` can take them."""
    if wrong := next((name for name in OURS if name in options), None):
        return f"{wrong}: loader() sets it; make a DataLoader yourself"
    if isinstance(dataset, IterableDataset) and (shuffle or fixed_parts):
        return "an IterableDataset has no random order and no fixed parts: shuffle within the data set"
    return None
