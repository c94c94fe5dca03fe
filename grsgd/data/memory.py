"""A split that lies in memory as uint8 and becomes float a batch at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from grsgd.data.base import DataError
from grsgd.data.pixels import Normalise
from grsgd.data.seeding import stream


class MemorySplit:
    """Images uint8 [n, C, H, W] and their labels [n]; a `Split`.

    `augment` distorts a uint8 batch with a generator; None if that is not usual for the set.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        normalise: Normalise,
        augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None,
    ):
        self.labels = labels.astype(np.int64)
        self._images = torch.from_numpy(np.require(images, np.uint8, ["C", "W"]))
        self._targets = torch.from_numpy(self.labels)
        self._normalise = normalise
        self._augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        start: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches as `Split.batches` says; `workers` are not needed and not started."""
        if augment and self._augment is None:
            raise DataError("augment is on, and this data set has no augmentation; cifar-10 and imagefolder have")
        return self._batches(indices, seed if augment else None, start)

    def _batches(self, indices, seed, start):
        # This is the hot path of small models: about 15 us for 16 images of MNIST.
        for position, index in enumerate(indices, start):
            index = torch.as_tensor(index)
            images = self._images.index_select(0, index)
            if seed is not None:
                images = self._augment(images, stream("augment", seed, position))
            yield self._normalise(images), self._targets.index_select(0, index)
