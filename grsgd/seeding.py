"""Random streams of the whole program. The random numbers of a stream depend only on the stream's purpose, the seed and
a key, such as (rank, step). The numbers never depend on the order in which messages arrive. No two streams have the
same numbers."""

import enum
import random
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np


class Purpose(enum.Enum):
    """Purpose of a random stream. The stream's numbers depend on the value of the enum's member, so this value must not
    change."""

    SHARDS = "shards"
    """Stream without a key for the assignment of samples to shards (the parts of the data set that ranks train on)."""
    ORDER = "order"
    """Stream with the key (rank, epoch) for the order in which a rank trains on its samples."""
    AUGMENTATION = "augment"
    """Stream with the key (rank or block, number of the batch) for random crops and flips of images. If images are read
    one by one, the third element of the key is the image's position in the batch."""
    SYNTHETIC_DATA = "synthetic"
    """Streams for the images of the data set ``synthetic``. The key is (0) for the centres of the classes, (1) for
    training images, and (2) for test images."""
    INITIAL_MODEL = "initial model"
    """Stream without a key for the parameters of the model from which all ranks start. The numbers of this stream are
    the same as after ``torch.manual_seed(seed)``."""
    DROPOUT = "dropout"
    """Stream with the key (rank) for numbers that a rank's model draws, for example for dropout, in training on the
    rank's own batches."""
    BLOCK_DROPOUT = "block dropout"
    """Stream with the key (step, block) for numbers that a model draws on a block of a batch that all ranks share. With
    this key every rank draws the same numbers on a block."""
    PARTNERS = "partners"
    """Stream with the key (rank) for the ranks with which a rank exchanges models, and the steps of these exchanges."""
    PAIRS = "pairs"
    """Stream with the key (number of the round of exchanges) for the pairs of ranks that exchange models. All ranks
    draw the same pairs."""
    RANDOM_GRAPH = "random graph"
    """Stream with the key (number of ranks) for the neighbours of each rank on a random topology. The run's seed has no
    influence on a random topology."""
    COMPRESSION = "compression"
    """Stream with the key (rank, number of the vector) for the choice of the values of a vector that a compressor sends
    or rounds up."""
    STRAGGLERS = "stragglers"
    """Stream with the key (rank, step) for the random delays of a rank's steps (the section [stragglers])."""
    DEATHS = "deaths"
    """Stream without a key for the times and ranks of the deaths of processes that a configuration plans (the section
    [faults])."""
    COMPUTE_TIMES = "compute times"
    """Stream with the key (rank, step) for the duration of a step's computation in a simulated run."""
    DATAGRAM_LOSS = "datagram loss"
    """Stream for the choice of the datagrams of IP multicast that a rank drops on purpose. The key is (rank, exchange,
    sender, number of the packet)."""
    OWN_LOOP_SHARDS = "own loop shards"
    """Stream without a key for the choice of the samples that ``grsgd.shard`` gives to each rank."""
    TAKEN_RANK = "taken rank"
    """Stream with the key (rank, iteration, generator) for a script's own generators on a process that has replaced a
    dead process."""
    OWN_LOOP_WORKERS = "own loop workers"
    """Stream with the key (rank, epoch) for the worker processes of ``grsgd.loader``, and for the order of the samples
    if each rank's part of the data is fixed."""


MAX_KEY = 2**32 - 1
"""Largest allowed element of a stream's key. NumPy splits larger elements, so that the key (2**32,) would give the
stream of the key (0, 1)."""


def generator(purpose: Purpose, seed: int | Sequence[int], *key: int) -> np.random.Generator:
    """Return a NumPy generator at the beginning of a random stream.

    The stream always uses the bit generator PCG64, because NumPy may change its default bit generator.

    Parameters
    ----------
    seed : 0 to 2**128 - 1, or a sequence of the seed and the first elements of the key, such as (seed, rank).
    key : integers from 0 to ``MAX_KEY``.

    Raises
    ------
    ValueError
        If the seed or an element of the key is out of range.
    """
    return np.random.Generator(np.random.PCG64(_sequence(purpose, seed, key)))


def torch_seed(purpose: Purpose, seed: int, *key: int) -> int:
    """Return the seed of a random stream for a generator of torch, a number from 0 to 2**64 - 1. Parameters and errors
    are as for ``generator``.

    Torch's generator for the CPU uses only the lower 32 bits, so two streams are equal with a probability of 2**-32.
    """
    if purpose is Purpose.INITIAL_MODEL and not key:
        return seed
    return int(_sequence(purpose, seed, key).generate_state(1, np.uint64)[0])


def begin_stream(drawer, purpose: Purpose, seed: int, *key: int):
    """Set ``drawer``, a ``torch.Generator``, to the beginning of a random stream. Parameters and errors are as for
    ``generator``."""
    drawer.manual_seed(torch_seed(purpose, seed, *key))


def seed_torch(device, purpose: Purpose, seed: int, *key: int):
    """Seed the generators of torch from which a model on ``device`` draws random numbers, so that the model draws from
    one stream.

    ``torch.manual_seed`` is not used, because a call takes longer than the gradient of a small block of samples. The
    reason is that ``torch.manual_seed`` seeds every kind of device, and formats the call stack for each unused kind.
    """
    import torch

    number = torch_seed(purpose, seed, *key)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def _sequence(purpose: Purpose, seed, key) -> np.random.SeedSequence:
    """Return NumPy's seed sequence of a random stream. NumPy pads the entropy with zeros to four words, so that the
    entropy (seed, rank) would equal (seed, rank, 0). The words of NumPy's spawn key come after these four words,
    without padding. This function joins the words as NumPy would join them, in a quarter of the time. The time matters,
    because a simulation begins a stream for each step of a rank."""
    if isinstance(seed, Sequence):
        seed, *first = seed
        key = (*first, *key)
    if not 0 <= seed < 2**128:
        raise ValueError(f"seed is {seed}, expected 0 to 2**128 - 1")
    if key and not 0 <= min(key) <= max(key) <= MAX_KEY:
        raise ValueError(f"key is {tuple(key)}, expected elements from 0 to {MAX_KEY}")
    seed = int(seed)
    words = [seed >> shift & MAX_KEY for shift in (0, 32, 64, 96)]
    return np.random.SeedSequence(np.array([*words, number_of(purpose), *key], np.uint32))


@cache
def number_of(purpose: Purpose) -> int:
    """Return the 32-bit number of ``purpose``, which stands before the elements of a stream's key in the seed
    sequence."""
    return zlib.crc32(purpose.value.encode())


@contextmanager
def seeded_alike():
    """Run the block with random numbers of torch, NumPy and Python that are the same at each call. Restore the states
    of the generators after the block."""
    import torch

    state, states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            yield
    finally:
        np.random.set_state(states)
        random.setstate(state)
