"""Which rank this is, and its part of the data, for scripts of users."""

import functools

import torch

from grsgd import seeding
from grsgd.comm.watchdog import within
from grsgd.errors import SetupError
from grsgd.job import launch


def world():
    """MPI_COMM_WORLD, for a script; what makes that impossible is told in one line."""
    try:
        return launch.world()
    except SetupError:
        launch.explain_setup_errors()
        raise


def rank() -> int:
    """Return the number of this rank, from 0; 0 where the script was started without a launcher."""
    return world().rank


def size() -> int:
    """Return how many ranks there are; 1 where the script was started without a launcher."""
    return world().size


def is_main() -> bool:
    """Whether this is rank 0, the one that should print, save and log what all ranks have in common."""
    return rank() == 0


@functools.cache
def local_rank() -> int:
    """Return the number of this rank among those of its host, from 0, such as to choose a GPU.

    All ranks must call this; from the second time on it needs no other rank.
    """
    with within(launch.start_seconds(), "local_rank(), to which all ranks must come"):
        return launch.local_ranks(world())[0]


def shard(dataset: torch.utils.data.Dataset, comm=None, seed: int = 0) -> torch.utils.data.Subset:
    """This rank's part of a map-style data set: disjoint random parts, as equal as can be, that cover everything.

    ``comm``: an mpi4py communicator; MPI_COMM_WORLD if None.
    """
    mpi = comm if comm is not None else world()
    order = seeding.generator(seeding.Purpose.OWN_LOOP_SHARDS, seed).permutation(len(dataset))
    return torch.utils.data.Subset(dataset, order[mpi.rank :: mpi.size].tolist())
