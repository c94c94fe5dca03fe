"""Random streams of the whole program. The numbers of a stream depend only on its purpose, the seed and a key, such as
(rank, step), and never on the order in which messages arrive. No two streams have the same numbers."""

import enum
import random
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np


class Purpose(enum.Enum):
    """Purpose of a random stream. The stream's numbers depend on the value, so the value must not change."""

    SHARDS = "shards"
    """Assignment of samples to shards; no key."""
    ORDER = "order"
    """Order of a rank's samples; key (rank, epoch)."""
    AUGMENTATION = "augment"
    """Random crops and flips of images; key (rank or block, number of the batch), or with the image's position in the
    batch as a third element if images are read one by one."""
    SYNTHETIC_DATA = "synthetic"
    """Images of the data set ``synthetic``; key (0) for the centres, (1) for training images, (2) for test images."""
    INITIAL_MODEL = "initial model"
    """Model from which all ranks start; no key. The numbers are the same as after ``torch.manual_seed(seed)``."""
    DROPOUT = "dropout"
    """Random numbers that a rank's model draws, as for dropout, in training on the rank's own batches; key (rank)."""
    BLOCK_DROPOUT = "block dropout"
    """Random numbers that a model draws on a block of a batch that all ranks share; key (step, block), so that they are
    the same on every rank."""
    PARTNERS = "partners"
    """Ranks with which a rank exchanges models, and the steps in which it does; key (rank)."""
    PAIRS = "pairs"
    """Pairs of ranks that exchange models; all ranks draw the same pairs; key (number of the round of exchanges)."""
    RANDOM_GRAPH = "random graph"
    """Neighbours on a random topology; key (number of ranks). The run's seed has no influence."""
    COMPRESSION = "compression"
    """Choice of the values that a compressor sends or rounds up; key (rank, number of the vector)."""
    STRAGGLERS = "stragglers"
    """Random delays of a rank's steps; key (rank, step)."""
    DEATHS = "deaths"
    """Times and ranks of the planned deaths of processes; no key."""
    COMPUTE_TIMES = "compute times"
    """Computing time of a step in simulated time; key (rank, step)."""
    DATAGRAM_LOSS = "datagram loss"
    """Choice of the datagrams of IP multicast that a rank drops on purpose; a stream's key is (rank, exchange, sender,
    number of the packet)."""
    OWN_LOOP_SHARDS = "own loop shards"
    """Samples that ``grsgd.shard`` gives to each rank; no key."""
    TAKEN_RANK = "taken rank"
    """Draws of a script's own generator on a process that has taken a rank; key (rank, iteration, generator)."""
    OWN_LOOP_WORKERS = "own loop workers"
    """Worker processes of ``grsgd.loader``, and the order of fixed parts; key (rank, epoch)."""


MAX_KEY = 2**32 - 1
"""Largest element of a key. NumPy splits larger elements, so the key (2**32,) would give the stream of the key (0,
1)."""


def generator(purpose: Purpose, seed: int | Sequence[int], *key: int) -> np.random.Generator:
    """Return the generator of one stream at its beginning.

    The bit generator is named explicitly, because NumPy may change its default.

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
    """Return the seed for a generator of torch, 0 to 2**64 - 1; parameters and errors are as for ``generator``.

    Torch's generator for the CPU uses only the lower 32 bits, so two streams are equal with a probability of 2**-32.
    """
    if purpose is Purpose.INITIAL_MODEL and not key:
        return seed
    return int(_sequence(purpose, seed, key).generate_state(1, np.uint64)[0])


def begin_stream(drawer, purpose: Purpose, seed: int, *key: int):
    """Set ``drawer``, a ``torch.Generator``, to the beginning of a stream; errors are as for ``generator``."""
    drawer.manual_seed(torch_seed(purpose, seed, *key))


def seed_torch(device, purpose: Purpose, seed: int, *key: int):
    """Seed the generators of torch from which a model on ``device`` draws, so that its draws come from one stream.

    ``torch.manual_seed`` is not used, because it takes longer than the gradient of a small block: it seeds every kind
    of device, and formats the call stack for each unused kind.
    """
    import torch

    number = torch_seed(purpose, seed, *key)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def _sequence(purpose: Purpose, seed, key) -> np.random.SeedSequence:
    """Return the seed sequence of a stream. NumPy pads the entropy with zeros to four words, so the entropy (seed,
    rank) would equal (seed, rank, 0); words of the spawn key come after these four, without padding. The words are
    joined here as NumPy would join them, in a quarter of the time: a simulation begins a stream for each step of a
    rank."""
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
    """Return the 32-bit number of ``purpose``, which stands before the elements of a key."""
    return zlib.crc32(purpose.value.encode())


@contextmanager
def seeded_alike():
    """Run the block with the same random numbers of torch, NumPy and Python at each call; restore the generators'
    states after the block."""
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
