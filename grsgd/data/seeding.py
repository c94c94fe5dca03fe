"""Random streams that depend on a key alone, so that a run can enter any of them at any point."""

import zlib
from collections.abc import Sequence

import numpy as np


def stream(purpose: str, seed: int | Sequence[int], *key: int) -> np.random.Generator:
    """Return the generator of (purpose, seed, key); unequal arguments give independent streams.

    `seed` is a non-negative int or a sequence of them, such as (seed, rank). The bit generator is named, because
    numpy may change its default one.
    """
    spawn_key = (zlib.crc32(purpose.encode()), *(int(part) for part in key))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key)))
