"""Interface of data sets, their errors, and the register of all data sets."""

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
"""Kinds of the targets of a data set."""


class MissingData(DataError):
    """Error for missing files of a data set."""


class DamagedData(DataError):
    """Error for a file of a data set whose content is wrong."""


class Split(Protocol):
    """Training or test part of a data set."""

    labels: np.ndarray
    """Class of each sample, int64 [n] from 0 to classes - 1; zeros if samples have no classes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def digest(self) -> int | None:
        """Return a number, cheap to compute, by which ranks notice that their samples differ; None if there is no such
        number.

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

        Images are float32 [b, C, H, W], normalised, and their labels int64 [b]. For text, inputs and targets are
        tokens, int64 [b, places]. ``indices`` is read when a batch is needed; with workers it is read a few batches
        ahead. With ``augment``, images are distorted at random, in the way that is usual for the data set. The random
        numbers depend only on ``seed`` and on the batch's position in the stream, which counts from ``first``; give
        each rank its own seed, such as (seed, rank). Raises DataError if ``augment`` is True and the data set has no
        augmentation, or if an image cannot be read.
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
    """Place from which the samples were read, such as a folder."""
    targets: str = CLASSES
    """Kind of the targets. With `CLASSES`, ``classes`` is the number of classes; with `TOKENS`, the number of different
    tokens; with `NUMBERS`, the count of numbers in a target."""


@dataclass(frozen=True)
class Entry:
    """Loader of a data set, and facts about the data set that are known before loading."""

    load: Callable[..., Dataset]
    """Function that is called as load(directory, seed, **options), with directory and seed only if it has these
    parameters. The messages of its DataErrors lack the data set's name."""
    samples: tuple[int, int] | None
    """Numbers of training and test samples in the usual files; None if the numbers are not fixed."""
    shape: tuple[int, int, int] | None
    classes: int | None
    hint: str
    """Text that says how to get the data set."""

    @property
    def values(self) -> float:
        """Number of pixel values in the usual files; infinite if it is not fixed."""
        return sum(self.samples) * math.prod(self.shape) if self.samples and self.shape else math.inf

    @property
    def options(self) -> dict[str, Any]:
        """Parameters of ``load`` besides directory and seed, with their defaults."""
        parameters = inspect.signature(self.load).parameters.items()
        return {name: p.default for name, p in parameters if name not in ("directory", "seed")}

    def make(self, directory: Path, seed: int, options: dict[str, Any]):
        """Load the data set, by calling ``load`` with the options, and with ``directory`` and ``seed`` if it has these
        parameters."""
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
    """Return the paths of the files ``names`` in the first of ``places`` that has all of them. A file's name may be
    followed by any of ``endings``; the first that exists is taken.

    Raises MissingData, which names the missing files and the places, if no place has all files.
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
