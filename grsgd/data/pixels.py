"""Normalisation and augmentation of batches of uint8 images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class Normalise:
    """Map uint8 [b, C, H, W] to float32, subtracting each channel's mean and dividing by its standard deviation.

    ``mean`` and ``std`` are the mean and standard deviation of pixels that are scaled to 0..1. ``peak`` is the pixel
    value that is scaled to 1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], peak: int = 255):
        self.mean, self.std, self.peak = mean, std, peak

    @cached_property
    def _mean(self) -> torch.Tensor:
        return torch.tensor(self.mean).mul(self.peak).reshape(-1, 1, 1)

    @cached_property
    def _scale(self) -> torch.Tensor:
        return torch.tensor(self.std).mul(self.peak).reciprocal().reshape(-1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(torch.float32).sub_(self._mean).mul_(self._scale)


GREY = Normalise([0.0], [1.0])
"""Normalisation of grey images of digits and garments: pixels are only scaled to 0..1. Normalisation to zero mean and
unit variance would need lower learning rates: mnist-5k then diverges at a rate of 0.1 with momentum 0.9 (one rank)."""


def crop_and_flip(images: torch.Tensor, rng: np.random.Generator, margin: int = 4) -> torch.Tensor:
    """Shift each image by up to ``margin`` pixels, with black borders, and mirror half of them (He et al., 2016, 4.2).

    Takes and returns uint8 [b, C, H, W].
    """
    count, _, height, width = images.shape
    top, left = torch.from_numpy(rng.integers(2 * margin + 1, size=(2, count)))
    mirrored = torch.from_numpy(rng.integers(2, size=count, dtype=bool)).reshape(-1, 1, 1, 1)
    windows = torch.nn.functional.pad(images, (margin,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count), :, top, left]
    return torch.where(mirrored, crops.flip(3), crops)
