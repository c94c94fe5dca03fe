"""Part of a data set: only its first classes, or only some of their samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from grsgd.data.base import Dataset, Split
from grsgd.errors import DataError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


def part_of(dataset: Dataset, classes: int | None, train: int | None, test: int | None) -> Dataset:
    """Return the first ``classes`` classes of a data set, with ``train`` training and ``test`` test samples of them;
    None means all.

    Raises DataError, which names the key of the configuration, if the data set has fewer classes or samples than asked
    for, or if no samples are left.
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
    """``Split`` that has only the samples of another split whose numbers are ``chosen``, int64 [n]."""

    def __init__(self, split: Split, chosen: np.ndarray):
        self.labels = split.labels[chosen]
        self._split, self._chosen = split, chosen

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> int | None:
        """Return the digest of the whole split, if it has one."""
        return getattr(self._split, "digest", type(None))()

    def batches(self, indices: Iterable[np.ndarray], **options) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches as ``Split.batches`` says, with the same options."""
        return self._split.batches((self._chosen[index] for index in indices), **options)
