"""Function that reduces a data set to its first classes, and to some samples of these classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from grsgd.data.base import Dataset, Split
from grsgd.errors import DataError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


def part_of(dataset: Dataset, classes: int | None, train: int | None, test: int | None) -> Dataset:
    """Return a data set with the first ``classes`` classes of ``dataset``, and with ``train`` training samples and
    ``test`` test samples of these classes. If ``classes`` is None, the result has all classes. If ``train`` or ``test``
    is None, all samples of these classes are used.

    Raises DataError, which names the key of the configuration, if ``dataset`` has fewer classes or samples than
    requested, or if no samples are left.
    """
    if classes is train is test is None:
        return dataset
    _check("only_classes", classes, dataset.classes, f"classes of {dataset.name}")
    classes = classes or dataset.classes
    splits = {}
    for name, count in (("train", train), ("test", test)):
        split = getattr(dataset, name)
        members = np.flatnonzero(split.labels < classes)
        what = f"{name} samples of the first {classes} classes of {dataset.name}"
        if not len(members):
            raise DataError(f"data.only_classes = {classes}: there are no {what}")
        _check(f"only_{name}", count, len(members), what)
        # The chosen samples are evenly spaced, because some data sets are sorted by class.
        splits[name] = PartSplit(split, members[np.arange(count) * len(members) // count] if count else members)
    return replace(dataset, classes=classes, **splits)


def _check(key: str, value: int | None, there: int, what: str) -> None:
    if value is not None and value > there:
        raise DataError(f"data.{key} = {value}: there are {there} {what}; allowed: 1 to {there}")


class PartSplit:
    """``Split`` that has only some samples of another split, ``split``. ``chosen``, int64 [n], has the numbers that the
    chosen samples have in ``split``."""

    def __init__(self, split: Split, chosen: np.ndarray):
        self.labels = split.labels[chosen]
        self._split, self._chosen = split, chosen

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> int | None:
        """Return the checksum of the whole split from which the samples are chosen, or None if that split has no method
        ``digest``."""
        return getattr(self._split, "digest", type(None))()

    def batches(self, indices: Iterable[np.ndarray], **options) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches of the samples whose numbers are in ``chosen``. ``Split.batches`` describes the arguments and
        the batches."""
        return self._split.batches((self._chosen[index] for index in indices), **options)
