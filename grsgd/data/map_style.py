"""Conversion of torch's map-style data sets, which have ``len()`` and ``[i]``, to a ``Split``. The data sets of
torchvision and Hugging Face are map-style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from grsgd.data.base import CLASSES, NUMBERS, TOKENS, Dataset
from grsgd.data.digest import digest_of_samples
from grsgd.errors import DataError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


NUMERIC = "iubf"
"""Codes (``dtype.kind``) of the NumPy dtypes that targets may have: integers, unsigned integers, booleans and
floats."""


class MapStyleSplit:
    """``Split`` of the samples (input, target) of a map-style data set. Random transforms of the data set draw numbers
    from torch's global random generator."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def targets(self) -> np.ndarray:
        """Targets of all samples. The targets are the data set's attribute ``targets`` or ``labels``, as in
        torchvision's data sets, if this attribute has numbers. If the data set has no attribute ``targets`` or
        ``labels`` with numbers, every sample is read once to get its target. Raises DataError for a sample that is not
        a pair of an input tensor and a numeric target."""
        for name in ("targets", "labels"):
            if (known := getattr(self.samples, name, None)) is not None and len(known) == len(self):
                if (found := np.asarray(known)).dtype.kind in NUMERIC:
                    return found
        return np.stack([target for _, target in self.checked(range(len(self)))])

    def checked(self, numbers: Iterable[int]) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
        """Yield the input and the target of each sample whose number is in ``numbers``. Raises DataError for a sample
        that is not a pair of an input tensor and a numeric target."""
        shape = None
        for number in numbers:
            try:
                sample = self.samples[number]
            except StopIteration:
                raise DataError(f"sample {number}: the data set raises StopIteration") from None
            if not isinstance(sample, tuple | list) or len(sample) != 2:
                kind = type(sample).__name__
                what = f"{kind} of {len(sample)}" if isinstance(sample, tuple | list | Mapping) else kind
                raise DataError(f"sample {number} is a {what}, expected a pair (tensor, target), as of a TensorDataset")
            x, y = sample
            if not torch.is_tensor(x):
                advice = f"expected a tensor: give the data set a transform (sample {number})"
                raise DataError(f"a sample is {type(x).__name__}, {advice}")
            target = np.asarray(y)
            if target.dtype.kind not in NUMERIC:
                raise DataError(f"the target of sample {number} is {y!r:.40}, expected numbers (whole for classes)")
            shape = target.shape if shape is None else shape
            if target.shape != shape:
                raise DataError(
                    f"the target of sample {number} has shape {target.shape}, but earlier targets have shape {shape}"
                )
            yield x, target

    @property
    def kind(self) -> str:
        """Kind of the targets of the samples: `CLASSES`, `TOKENS` or `NUMBERS`. If each target is one integer, the kind
        is `CLASSES`. If each target has several integers, the kind is `TOKENS`. If the targets are floating-point
        numbers, the kind is `NUMBERS`."""
        if self.targets.dtype.kind not in "iub":
            return NUMBERS
        return CLASSES if self.targets.ndim == 1 else TOKENS

    @cached_property
    def labels(self) -> np.ndarray:
        """Class of each sample, int64 [number of samples]; all zeros if the targets are not classes."""
        return self.targets.astype(np.int64) if self.kind == CLASSES else np.zeros(len(self), np.int64)

    def digest(self) -> int | None:
        """Return a checksum of a few samples, which ranks compare, or None if the samples differ at each reading."""
        return digest_of_samples(self.samples)

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        first: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches that torch's DataLoader reads, as described in ``Split.batches``. Raises DataError if
        ``augment`` is True, because only the data set's own transforms change its samples."""
        if augment:
            raise DataError("augment is on: a data set of your own changes samples by its own transforms only")
        numbers = (index.tolist() for index in indices)
        loader = torch.utils.data.DataLoader(self.samples, batch_sampler=numbers, num_workers=workers)
        return self._batches(loader)

    def _batches(self, loader):
        for x, y in loader:
            is_whole = torch.is_tensor(y) and not (y.is_floating_point() or y.is_complex())
            yield x, y.long() if is_whole else y


def dataset_of(name: str, made) -> Dataset:
    """Return ``made``, the result of a user's function, as a `Dataset`. ``made`` is a `Dataset`, or a pair (train,
    test) of map-style data sets.

    Raises DataError if ``made`` is anything else, or if the training or the test data set has no samples.
    """
    if isinstance(made, Dataset):
        return made
    if not (isinstance(made, tuple | list) and len(made) == 2 and all(map(is_map_style, made))):
        raise DataError("the result is neither a pair (train, test) of data sets with len() and [i], nor a Dataset")
    train, test = map(MapStyleSplit, made)
    for what, split in (("training", train), ("test", test)):
        if not len(split):
            raise DataError(f"there are no {what} samples")
    (x, _), _ = (next(split.checked([0])) for split in (train, test))
    return Dataset(name, train, test, tuple(x.shape), classes_of(train, test), name, train.kind)


def classes_of(train: MapStyleSplit, test: MapStyleSplit) -> int:
    """Return the value of `Dataset.classes` for a data set with the splits ``train`` and ``test``. `Dataset.classes` is
    the number of classes or of different tokens. If targets are real numbers, `Dataset.classes` is the count of numbers
    in one target."""
    if train.kind == NUMBERS:
        return math.prod(train.targets.shape[1:])
    return 1 + int(max(train.targets.max(), test.targets.max()))


def is_map_style(samples) -> bool:
    return hasattr(samples, "__len__") and hasattr(samples, "__getitem__")
