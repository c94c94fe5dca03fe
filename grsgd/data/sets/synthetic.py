"""Data set of synthetic images with one Gaussian cluster per class, for tests and measurements of speed."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grsgd.data.base import Dataset, dataset
from grsgd.data.memory import MemorySplit
from grsgd.data.pixels import Normalise
from grsgd.errors import DataError
from grsgd.memory import available
from grsgd.seeding import Purpose, generator

SEPARATION = 6  # expected distance of two class centres, in standard deviations of a class
CENTRE, SIGMA = 128, 32  # mean of all pixels, and standard deviation of a class, in grey levels from 0 to 255
AT_ONCE = 100
"""Number of images whose random pixels are drawn at once."""


@dataset("synthetic", hint="it is generated")
def load_synthetic(
    directory: Path, seed: int, samples: int = 2000, shape: Sequence[int] = (1, 28, 28), classes: int = 10
) -> Dataset:
    """Generate ``samples`` training images, and ``samples`` / 5 test images, of the shape (channels, height, width)."""
    shape = tuple(shape)
    if len(shape) != 3 or min(shape) < 1:
        raise DataError(f"shape is {shape}, expected three positive integers: channels, height, width")
    if classes < 2:
        raise DataError(f"classes is {classes}, expected at least 2")
    if samples < 5 * classes:
        raise DataError(f"samples is {samples}, expected at least 5 per class: {5 * classes}")
    needed = math.prod(shape) * (1.2 * samples + 4 * classes) + 16 * samples
    if needed > (free := available()):
        raise DataError(
            f"samples is {samples}: with shape {shape} and {classes} classes {needed / 2**30:,.1f} GiB of memory are "
            f"needed, and {free / 2**30:,.1f} GiB are free"
        )
    spread = SEPARATION / math.sqrt(2 * math.prod(shape))
    centres = spread * generator(Purpose.SYNTHETIC_DATA, seed, 0).standard_normal((classes, *shape), dtype=np.float32)
    train = _draw(samples, centres, generator(Purpose.SYNTHETIC_DATA, seed, 1))
    test = _draw(samples // 5, centres, generator(Purpose.SYNTHETIC_DATA, seed, 2))
    return Dataset("synthetic", train, test, shape, classes, source=f"generated from seed {seed}")


def _draw(count: int, centres: np.ndarray, rng: np.random.Generator) -> MemorySplit:
    """Return a split with ``count`` random images and their labels, in random order. The numbers of samples of two
    classes differ by one at most."""
    labels = rng.permutation(np.arange(count) % len(centres))
    images = np.empty((count, *centres.shape[1:]), np.uint8)
    for begin in range(0, count, AT_ONCE):  # drawing all images at once would take four times the memory
        some = labels[begin : begin + AT_ONCE]
        noisy = centres[some] + rng.standard_normal((len(some), *images.shape[1:]), dtype=np.float32)
        images[begin : begin + AT_ONCE] = np.clip(np.rint(CENTRE + SIGMA * noisy), 0, 255)
    channels = len(centres[0])
    return MemorySplit(images, labels, Normalise([CENTRE / 255] * channels, [SIGMA / 255] * channels))
