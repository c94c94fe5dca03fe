"""Data sets: their interface, their errors, and the register of those that exist."""

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
    """The files of a set are not there."""


class DamagedData(DataError):
    """A file of a set is there and is not what it should be."""


class Split(Protocol):
    """One part, training or test, of a data set."""

    labels: np.ndarray
    """int64 [n], each in 0..classes-1; zeros where samples have no classes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def digest(self) -> int | None:
        """Return a number that differs where the samples do, cheaply, or None; a split of one's own may lack this."""

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
        ``indices`` is read lazily: at most a few
        batches ahead, and only with workers. With ``augment``, the images are distorted as is usual for the set, by
        random numbers that depend only on ``seed`` and on the batch's position in the stream, which counts from
        ``first``; give each rank a seed of its own, such as (seed, rank). Raises DataError if the set has no
        augmentation, or an image cannot be read.
        """


@dataclass(frozen=True)
class Dataset:
    """A training and a test split of samples of one shape."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, ...]
    """Of a sample's input: (channels, height, width) of images, (places,) of text."""
    classes: int
    source: str
    """Where the samples came from."""
    targets: str = CLASSES
    """The kind of the targets: `CLASSES`, of which ``classes`` is the number; `TOKENS`, of which there are so many
    different ones; or `NUMBERS`, of which a target has so many."""


@dataclass(frozen=True)
class Entry:
    """A loader and what is known of its set before loading."""

    load: Callable[..., Dataset]
    """Called as load(directory, seed, **options); raises DataError without the set's name."""
    samples: tuple[int, int] | None
    """Training and test samples of the usual files; None if any number will do."""
    shape: tuple[int, int, int] | None
    classes: int | None
    hint: str
    """How to get the set."""

    @property
    def values(self) -> float:
        """Return how many pixel values the usual files hold; infinite if any number will do."""
        return sum(self.samples) * math.prod(self.shape) if self.samples and self.shape else math.inf

    @property
    def options(self) -> dict[str, Any]:
        """Return what ``load`` takes beside directory and seed, and the defaults."""
        parameters = inspect.signature(self.load).parameters.items()
        return {name: p.default for name, p in parameters if name not in ("directory", "seed")}

    def make(self, directory: Path, seed: int, options: dict[str, Any]):
        """Load it, given what it asks for of ``directory`` and ``seed``."""
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
    """Return the paths of ``names`` in the first of ``places`` that holds them all, each with the first fitting ending.

    Raises MissingData that says which are missing where.
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
    """Raise DamagedData for a file of more than ``most`` bytes, before any is read."""
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
