"""Normalisation and augmentation of batches of uint8 images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class Normalise:
    """Function that normalises images: it converts uint8 [b, C, H, W] to float32, subtracts each channel's mean, and
    divides by the channel's standard deviation.

    ``mean`` and ``std`` are each channel's mean and standard deviation of pixels that are scaled to 0..1. ``peak`` is
    the pixel value that is scaled to 1.
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
"""Normalisation of grey images of digits and garments, which only scales pixels to 0..1. Images with zero mean and unit
variance would need lower learning rates. With mnist-5k normalised to zero mean and unit variance, training on one rank
diverges at a learning rate of 0.1 with momentum 0.9."""


def crop_and_flip(images: torch.Tensor, rng: np.random.Generator, margin: int = 4) -> torch.Tensor:
    """Shift each image at random by up to ``margin`` pixels, with black borders, and mirror each image with a
    probability of 1/2 (He et al., 2016, section 4.2).

    ``images`` and the result are uint8 [b, C, H, W].
    """
    count, _, height, width = images.shape
    top, left = torch.from_numpy(rng.integers(2 * margin + 1, size=(2, count)))
    mirrored = torch.from_numpy(rng.integers(2, size=count, dtype=bool)).reshape(-1, 1, 1, 1)
    windows = torch.nn.functional.pad(images, (margin,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count), :, top, left]
    return torch.where(mirrored, crops.flip(3), crops)
