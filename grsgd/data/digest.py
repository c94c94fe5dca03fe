"""Digests (checksums) of samples. Ranks compare digests to notice whether they have read different data."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.seeding import seeded_alike

torch = LazyModule("torch")

FEW = 16
"""Number of evenly spaced samples of a data set that are read for the digest. Not all samples are read for the digest,
because reading a sample may take long."""
TIMES = 3
"""Number of times that `digest_of_samples` reads each sample. If a sample differs from one reading to the next, the
samples of the data set are random, and have no digest."""


def evenly_spaced(count: int, most: int = FEW) -> list[int]:
    """Return at most ``most`` integers from 0 to ``count - 1``, ascending and as evenly spaced as possible."""
    return sorted({number * (count - 1) // max(most - 1, 1) for number in range(most)}) if count else []


def digest_of(value, start: int = 0) -> int:
    """Return the CRC-32 of ``value``, which may be an array, a tensor, a number or a text, or a tuple, list or
    dictionary of such values.

    If ``value`` is an object of any other class, the CRC-32 depends only on the name of the class.
    """
    if torch.is_tensor(value):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return zlib.crc32(content, zlib.crc32(repr(value.shape).encode(), start))
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, tuple | list):
        for part in value:
            start = digest_of(part, start)
        return start
    is_plain = value is None or isinstance(value, int | float | complex | str | bytes | np.generic)
    return zlib.crc32(repr(value if is_plain else type(value).__qualname__).encode("utf-8", "backslashreplace"), start)


def digest_of_samples(samples) -> int | None:
    """Return a checksum (digest) of `FEW` samples of a map-style data set, or None if the samples differ at each
    reading.

    The random generators of torch, NumPy and Python get a fixed seed before the samples are read. So random transforms
    of the samples draw the same numbers on all ranks.
    """
    numbers, found = evenly_spaced(len(samples)), set()
    for _ in range(TIMES):
        with seeded_alike():
            found.add(digest_of([samples[number] for number in numbers]))
    return found.pop() if len(found) == 1 else None


def digest_in_memory(samples) -> int | None:
    """Return a checksum (digest) of the tensors or labels that a map-style data set holds in memory. No sample is read.
    Return None if the data set holds no tensors or labels in memory."""
    if torch.is_tensor(samples) or isinstance(samples, np.ndarray):
        return digest_of(samples[evenly_spaced(len(samples), 64 * FEW)])
    if tensors := getattr(samples, "tensors", None):
        return digest_of([tensor[evenly_spaced(len(tensor), 64 * FEW)] for tensor in tensors])
    for name in ("targets", "labels"):
        if isinstance(known := getattr(samples, name, None), list | np.ndarray | torch.Tensor):
            return digest_of(known)
    return None
