"""All random streams of the program. Each depends on its purpose, the seed and a key alone, such as (rank, step), never
on the order in which messages arrive; no two of them coincide."""

import enum
import random
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np


class Purpose(enum.Enum):
    """The purpose of a random stream; the value is mixed into its numbers, so it must not change."""

    SHARDS = "shards"
    """Which samples lie in which shard; no key."""
    ORDER = "order"
    """The order of a rank's samples; key (rank, epoch)."""
    AUGMENTATION = "augment"
    """How images are distorted; key (rank or block, position of the batch in the stream, and the image's in the batch
    where each is read by itself)."""
    SYNTHETIC_DATA = "synthetic"
    """The images of data set ``synthetic``; key (0) for the centres, (1) for training, (2) for test images."""
    INITIAL_MODEL = "initial model"
    """The model that all ranks start from, as after ``torch.manual_seed(seed)`` in any other program; no key."""
    DROPOUT = "dropout"
    """The draws of a rank's model while it trains on batches of its own; key (rank)."""
    BLOCK_DROPOUT = "block dropout"
    """The draws of the model on a block of a common batch; key (step, block), so the same wherever it is computed."""
    PARTNERS = "partners"
    """With whom a rank exchanges models, and whether it does; key (rank)."""
    PAIRS = "pairs"
    """Which ranks exchange models in a round, as all of them draw it; key (round)."""
    RANDOM_GRAPH = "random graph"
    """Which ranks are neighbours on a random topology, whatever the seed of the run; key (ranks)."""
    COMPRESSION = "compression"
    """Which values are sent, and which are rounded up; key (rank, number of the vector)."""
    STRAGGLERS = "stragglers"
    """Random delays of a rank's steps; key (rank, step)."""
    DEATHS = "deaths"
    """When the processes of which ranks die; no key."""
    COMPUTE_TIMES = "compute times"
    """How long a step computes in simulated time; key (rank, step)."""
    DATAGRAM_LOSS = "datagram loss"
    """Which datagrams of IP multicast a rank drops on purpose; key (rank, exchange, sender, number of the packet)."""
    OWN_LOOP_SHARDS = "own loop shards"
    """Which samples ``grsgd.shard`` gives to which rank; no key."""


MAX_KEY = 2**32 - 1
"""The largest element of a key: NumPy cuts larger ones into several, so (2**32,) would be (0, 1)."""


def generator(purpose: Purpose, seed: int | Sequence[int], *key: int) -> np.random.Generator:
    """Return the generator of one stream at its beginning.

    The bit generator is named, because NumPy may change its default one.

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
    """Return what to seed a generator of torch with, 0 to 2**64 - 1; parameters and errors as for ``generator``.

    Torch's generator for the CPU uses the lower 32 bits alone, so two streams coincide with a chance of 2**-32.
    """
    if purpose is Purpose.INITIAL_MODEL and not key:
        return seed
    return int(_sequence(purpose, seed, key).generate_state(1, np.uint64)[0])


def seed_torch(device, purpose: Purpose, seed: int, *key: int):
    """Let what a model on the torch ``device`` draws from now on come from one stream.

    ``torch.manual_seed`` does so for every kind of device there may be and formats the stack for each that has not been
    used, which takes longer than the gradient of a small block.
    """
    import torch

    number = torch_seed(purpose, seed, *key)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def _sequence(purpose: Purpose, seed, key) -> np.random.SeedSequence:
    """NumPy pads the entropy with zeros to four words, so (seed, rank) as entropy would be (seed, rank, 0), and
    (seed, 0) would be seed; the words of the spawn key come after these four, and are not padded. Here they are put
    together as NumPy would, in a quarter of the time: a simulation begins a stream for each step of a rank."""
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
    """Return the first word of a key."""
    return zlib.crc32(purpose.value.encode())


@contextmanager
def seeded_alike():
    """A context in which torch, NumPy and Python draw the same random numbers each time; all go on as before."""
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
