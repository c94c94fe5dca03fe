"""Functions for users' scripts that return this rank's number, the number of ranks, and this rank's part of the
data."""

import atexit
import functools
import os
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from grsgd import seeding
from grsgd.comm.elastic.membership import Membership
from grsgd.data.digest import digest_in_memory
from grsgd.errors import SetupError
from grsgd.job import launch, words
from grsgd.job.alike import check_alike
from grsgd.own_loop import spares
from grsgd.own_loop.roll_call import end_of_script, roll_call
from grsgd.own_loop.script_end import SCRIPT_END


def world():
    """Return the communicator of all ranks of a script: MPI_COMM_WORLD, or its ranks without the spares.

    From the first call on, a rank whose script fails ends the job, and a rank whose script ends tells the other ranks.
    Raises SetupError, which is printed as one line, if MPI cannot be loaded.
    """
    words.of_script()
    try:
        mpi = launch.world()
        job = spares.of_script()
    except SetupError:
        launch.explain_setup_errors()
        raise
    if mpi.size > 1:
        guard()
    return mpi if job is None else job.mpi


def communicator(comm, name: str):
    """Return ``comm``, an mpi4py communicator, or MPI_COMM_WORLD if ``comm`` is None. ``name`` says in error messages
    which argument of which call is checked.

    Raises SetupError on all ranks if ``comm`` is another object. Raises SetupError on a rank that is not in the
    communicator.
    """
    if comm is None:
        return world()
    if not all(hasattr(comm, method) for method in ("Get_rank", "Get_size", "allgather", "Dup")):
        world()
        what = f"{name} = {comm!r}: must be an mpi4py communicator; options are given by name"
        raise SetupError(what, is_printed=is_main())
    if not comm:
        world()
        raise SetupError(
            f"{name} is the null communicator: rank {rank()} of the job is not in it, and must not make this call"
        )
    return comm


@functools.cache
def guard():
    """Register functions for the failure and the end of this rank's script, so that no other rank waits for this rank
    after its failure or end."""
    mpi = launch.world()
    launch.abort_on_error(mpi)
    atexit.register(SCRIPT_END.come, end_of_script, mpi, os.getpid())


def rank() -> int:
    """Return the number of this rank, counted from 0; 0 if the script was started without a launcher."""
    return world().rank


def size() -> int:
    """Return the number of ranks; 1 if the script was started without a launcher."""
    return world().size


def is_main() -> bool:
    """Return whether this process is the main rank. The main rank should print, save and log everything that is the
    same on all ranks.

    Rank 0 is the main rank. In a loop over `surviving`, the lowest rank that has a process becomes the main rank when
    no spare can take a lower rank.
    """
    number = rank()
    vacant = _memberships[-1].vacant if _memberships and not _memberships[-1].spares else ()
    return set(range(number)) <= set(vacant)


_memberships: list[Membership] = []
"""`Membership` of the script's last loop over `surviving`, which knows the ranks' processes; empty without such a
loop."""


def survive(membership: Membership):
    """Let `is_main` use the deaths that ``membership`` notices."""
    _memberships[:] = [membership]


@functools.cache
def local_rank() -> int:
    """Return the number of this rank among the ranks on its host, counted from 0. A script can choose a GPU with this
    number.

    All ranks must make the first call of this function. Later calls of this function need no other rank.
    """
    mpi = world()
    job = spares.of_script()
    if job is not None:
        return job.local_rank
    roll_call(mpi, "in local_rank()", launch.start_seconds())
    return launch.local_ranks(mpi)[0]


Samples = torch.utils.data.Dataset | Sequence | np.ndarray | torch.Tensor

_given: dict[tuple[int, int], deque] = {}
"""Arguments of this rank's past calls of `shard` and `grsgd.own_loop.loader.loader`, until they are compared with other
ranks' arguments. The key is (number of ranks, rank)."""
MAX_GIVEN = 16
"""Largest number of calls of `shard` and `loader` whose arguments are kept for the comparison of ranks. Arguments of
older calls are dropped."""
NUMBER, DIGEST, SEED = "the number of samples", "the digest of the samples", "the seed"
"""Names of the facts about a call of `shard` or `loader` that are compared between ranks."""
SHARD, LOADER = "shard()", "loader()"
"""Names of the two calls whose arguments are compared between ranks."""
NOTED = [f"{name} given to {call}" for call in (SHARD, LOADER) for name in (NUMBER, DIGEST, SEED)]


def shard(
    dataset: Samples, comm=None, seed: int = 0, *, even: bool = False, parts: int | None = None
) -> torch.utils.data.Subset:
    """Return this rank's part of a map-style data set. The parts are random, disjoint and of nearly equal size.

    Parameters
    ----------
    dataset
        Data set with ``len()`` and ``[i]``; the same on all ranks. `distribute` and `recording` compare the length of
        the data set between ranks, and a digest of the content that is in memory.
    comm
        An mpi4py communicator; MPI_COMM_WORLD if None.
    seed
        Seed of the random parts; must be the same on all ranks.
    even
        Whether all parts have the same length, so that all ranks take the same number of steps per epoch. On n ranks,
        up to n - 1 samples are then in no part. If False, every sample is in a part, and the lengths of the parts
        differ by at most one sample.
    parts
        Number of parts, if not all ranks train: ``optimizer.workers``. Rank i has part i modulo ``parts``.

    Raises
    ------
    SetupError
        If ``dataset`` is no map-style data set, if there are fewer samples than ranks, or if ``comm`` is no
        communicator of this rank.
    """
    mpi = communicator(comm, "shard(): comm")
    samples = numbered_samples(dataset, mpi, SHARD)
    order = seeding.generator(seeding.Purpose.OWN_LOOP_SHARDS, seed).permutation(samples)
    note(SHARD, dataset, mpi, seed, samples)
    parts = parts or mpi.size
    if even:
        order = order[: samples // parts * parts]
    return torch.utils.data.Subset(dataset, order[mpi.rank % parts :: parts].tolist())


def note(call: str, dataset, mpi, seed: int, samples: int):
    """Store the arguments of a call of `shard` or `loader` until ranks are compared. ``call`` is `SHARD` or
    `LOADER`."""
    noted = {NUMBER: samples, DIGEST: digest_in_memory(dataset), SEED: seed}
    noted = {f"{name} given to {call}": value for name, value in noted.items()}
    _given.setdefault((mpi.size, mpi.rank), deque(maxlen=MAX_GIVEN)).append(noted)


def numbered_samples(dataset, mpi, call: str) -> int:
    """Return the number of samples of ``dataset``. Raises SetupError if ``call`` cannot cut the data set into parts."""
    problem = misfit(dataset)
    if problem is None and 0 < (samples := len(dataset)) < mpi.size:
        problem = f"{samples} samples for {mpi.size} ranks: give it more samples, or start fewer ranks"
    if problem is None:
        return samples
    launch.abort_on_error(mpi)
    raise SetupError(f"{call}: {problem}", is_printed=mpi.rank == 0)


def misfit(dataset) -> str | None:
    """Return the reason why a data set cannot be cut into parts; None if the data set can be cut."""
    kind = type(dataset).__name__
    if isinstance(dataset, torch.utils.data.DataLoader):
        return "a DataLoader: give shard() the data set, and the DataLoader what shard() returns"
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return f"{kind} is an IterableDataset, whose samples have no numbers: grsgd.loader() takes it"
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        return f"{kind} is no map-style data set: give it one with len() and [i], whose samples are numbered"
    try:
        count = len(dataset)
    except Exception as error:  # a user's __len__ may raise anything
        return f"len() of {kind}: {error}"
    if isinstance(dataset, tuple | list) and 2 <= count <= 3 and are_columns(dataset):
        return f"a {kind} of {count} arrays of one length: give it torch.utils.data.TensorDataset of them"
    return None


def are_columns(arrays: Sequence) -> bool:
    """Return whether ``arrays`` are the columns of a data set, such as (inputs, targets), with one row per sample, and
    not single samples."""
    if not all(isinstance(array, np.ndarray | torch.Tensor) and array.ndim for array in arrays):
        return False
    return len({len(array) for array in arrays}) == 1 and len(arrays[0]) > len(arrays)


def check_shards(mpi, seconds: float):
    """Raise SetupError, on all ranks, if the ranks have called `shard` or `loader` with different data or seeds. All
    ranks must call this function."""
    check_alike(mpi, partial(notes_of, mpi), "all ranks must give it the same data and seed", seconds)


def warn_of_other_shards(mpi, seconds: float):
    """Warn on rank 0, after training, if the ranks have called `shard` with different data or seeds since `distribute`.
    All ranks must call this function."""
    try:
        check_shards(mpi, seconds)
    except SetupError as error:
        if error.is_printed:
            warnings.warn(f"the ranks have trained on other data than meant: {error}", stacklevel=5)


def notes_of(mpi) -> dict[str, object]:
    """Return the facts about this rank's calls of `shard` and `loader` since ranks were last compared, and forget these
    calls.

    The facts of calls that this rank has not made are None. A None does not count as a difference between ranks.
    """
    notes = list(_given.pop((mpi.size, mpi.rank), ()))
    calls = [*notes, *[dict.fromkeys(NOTED)] * (MAX_GIVEN - len(notes))]
    return {f"{name} in call {number}": value for number, call in enumerate(calls, 1) for name, value in call.items()}
