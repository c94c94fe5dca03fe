"""Data sets: their interface, their errors, and the register of all sets."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from grsgd import outside
from grsgd.errors import DataError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


CLASSES, TOKENS, NUMBERS = "classes", "tokens", "numbers"
"""Kinds of targets."""


class MissingData(DataError):
    """Error for missing files of a data set."""


class DamagedData(DataError):
    """Error for a file of a data set whose content is wrong."""


class Split(Protocol):
    """Training or test part of a data set."""

    labels: np.ndarray
    """int64 [n], each in 0..classes-1; zeros if samples have no classes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def digest(self) -> int | None:
        """Return a number that is cheap to compute and differs if the samples differ, or None.

        A user's own split may lack this method.
        """

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        first: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (inputs, targets) for each array of sample numbers in ``indices``, which may never end.

        Images are float32 [b, C, H, W], normalised, and labels int64 [b]; of text both are tokens, int64 [b, places].
        ``indices`` is read lazily: at most a few batches ahead, and only with workers. With ``augment``, the images are
        distorted as is usual for the set. The random numbers depend only on ``seed`` and on the batch's position in the
        stream, which counts from ``first``; give each rank its own seed, such as (seed, rank). Raises DataError if the
        set has no augmentation, or if an image cannot be read.
        """


@dataclass(frozen=True)
class Dataset:
    """A training and a test split of samples of one shape."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, ...]
    """Shape of a sample's input: (channels, height, width) of images, (places,) of text."""
    classes: int
    source: str
    """Place from which the samples came."""
    targets: str = CLASSES
    """Kind of the targets. With `CLASSES`, ``classes`` is the number of classes; with `TOKENS`, the number of different
    tokens; with `NUMBERS`, the count of numbers in a target."""


@dataclass(frozen=True)
class Entry:
    """Loader, and facts about its set that are known before loading."""

    load: Callable[..., Dataset]
    """Function that is called as load(directory, seed, **options); raises DataError without the set's name."""
    samples: tuple[int, int] | None
    """Numbers of training and test samples in the usual files; None if any number is allowed."""
    shape: tuple[int, int, int] | None
    classes: int | None
    hint: str
    """Way to get the set."""

    @property
    def values(self) -> float:
        """Number of pixel values in the usual files; infinite if any number is allowed."""
        return sum(self.samples) * math.prod(self.shape) if self.samples and self.shape else math.inf

    @property
    def options(self) -> dict[str, Any]:
        """Parameters of ``load`` besides directory and seed, with their defaults."""
        parameters = inspect.signature(self.load).parameters.items()
        return {name: p.default for name, p in parameters if name not in ("directory", "seed")}

    def make(self, directory: Path, seed: int, options: dict[str, Any]):
        """Load the set; ``load`` gets ``directory`` and ``seed`` if it has these parameters."""
        return outside.call(self.load, {"directory": directory, "seed": seed}, options)


REGISTER: dict[str, Entry] = {}


def dataset(name: str, *, samples=None, shape=None, classes=None, hint: str | None = None):
    """Register the decorated loader as ``name``; ValueError if the name is taken."""

    def add(load: Callable[..., Dataset]) -> Callable[..., Dataset]:
        if name in REGISTER:
            raise ValueError(f"data set {name} is registered twice")
        REGISTER[name] = Entry(load, samples, shape, classes, hint or f"`grsgd data fetch {name}` gets it")
        return load

    return add


def find_files(places: Iterable[Path], names: Sequence[str], endings: Sequence[str] = ("",)) -> list[Path]:
    """Return the paths of ``names`` in the first of ``places`` that holds all, each with the first fitting ending.

    Raises MissingData that names the missing files and their places.
    """
    incomplete = []
    for place in places:
        found = [next((p for end in endings if (p := place / f"{name}{end}").is_file()), None) for name in names]
        missing = [name for name, path in zip(names, found, strict=True) if path is None]
        if not missing:
            return found
        if len(missing) < len(names):
            incomplete.append(f"{place} lacks {', '.join(missing)}")
    looked = f"no {', '.join(names)} in {' or '.join(map(str, places))}"
    raise MissingData("; ".join(incomplete) or looked)


def check_size(path: Path, most: int) -> None:
    """Raise DamagedData for a file of more than ``most`` bytes, before reading any."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DamagedData(f"{path}: cannot be read ({error})") from error
    if size > most:
        raise DamagedData(f"{path}: {size} bytes, expected at most {most}")


def check_labels(path: Path, labels: np.ndarray, classes: int) -> None:
    """Raise DamagedData unless all ``labels`` lie in 0..classes-1."""
    if labels.min() < 0 or labels.max() >= classes:
        raise DamagedData(f"{path}: labels in {labels.min()}..{labels.max()}, expected 0..{classes - 1}")
