"""Split whose images are in memory as uint8. The images of a batch are converted from uint8 to float when the batch is
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from grsgd.data.digest import digest_of
from grsgd.data.pixels import Normalise
from grsgd.errors import DataError
from grsgd.lazy import LazyModule
from grsgd.seeding import Purpose, generator

torch = LazyModule("torch")


class MemorySplit:
    """``Split`` of images, uint8 [n, C, H, W], and their labels, [n], in memory.

    ``augment(batch, generator)`` distorts the images of a uint8 batch at random. ``augment`` is None if the data set
    has no usual augmentation.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        normalise: Normalise,
        augment: Callable[[torch.Tensor, np.random.Generator], torch.Tensor] | None = None,
    ):
        self.labels = labels.astype(np.int64)
        self._images = np.require(images, np.uint8, ["C", "W"])
        self._normalise = normalise
        self._augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> int:
        """Return the CRC-32 of the pixels of all images in this split."""
        return digest_of(self._images)

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        first: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches as described in ``Split.batches``. ``workers`` is ignored, because images in memory need no
        worker processes."""
        if augment and self._augment is None:
            raise DataError("augment is on, and this data set has no augmentation; cifar-10 and imagefolder have")
        return self._batches(indices, seed if augment else None, first)

    def _batches(self, indices, seed, first):
        # This loop must be fast: to read 16 MNIST images takes 15 microseconds, a large part of a small model's step.
        all_images, targets = torch.from_numpy(self._images), torch.from_numpy(self.labels)
        for position, index in enumerate(indices, first):
            index = torch.as_tensor(index)
            images = all_images.index_select(0, index)
            if seed is not None:
                images = self._augment(images, generator(Purpose.AUGMENTATION, seed, position))
            yield self._normalise(images), targets.index_select(0, index)
