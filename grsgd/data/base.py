"""Interface of data sets, error classes of data sets, and the register of all data sets."""

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
"""Values of `Dataset.targets`, which says whether the targets of a data set are classes, tokens or real numbers."""


class MissingData(DataError):
    """Error for missing files of a data set."""


class DamagedData(DataError):
    """Error for a file of a data set whose content is wrong."""


class Split(Protocol):
    """Training or test part of a data set."""

    labels: np.ndarray
    """Class of each sample, int64 [number of samples] from 0 to classes - 1; all zeros if the samples have no
    classes."""

    def __len__(self) -> int:
        """Return the number of samples in this split (training or test part of a data set)."""

    def digest(self) -> int | None:
        """Return a checksum of the samples, cheap to compute. Ranks compare checksums to find out whether they have
        read different samples. Return None if no checksum of the samples can be computed.

        A user's own class for a split (training or test part of a data set) need not have the method ``digest``.
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
        """Yield one batch (inputs, targets) for each array of sample numbers in ``indices``, which may be endless.

        A batch of images is a normalised float32 tensor [b, C, H, W] with labels, int64 [b], where b is the number of
        samples. In a batch of text, inputs and targets are tokens: int64 tensors [b, length]. Without worker processes,
        the next array of ``indices`` is read when the next batch is requested. With worker processes, ``indices`` is
        read a few batches before the batch that is yielded.

        With ``augment``, images are distorted at random (for example shifted and mirrored), in the way that is usual
        for the data set. The random numbers of a batch depend only on ``seed`` and on the number of the batch. The
        first batch that is yielded has the number ``first``. Give each rank a seed of its own, such as (seed, rank), so
        that ranks draw different random numbers. Raises DataError if ``augment`` is True and the data set has no
        augmentation. Raises DataError if an image cannot be read.
        """


@dataclass(frozen=True)
class Dataset:
    """Data set: a training split and a test split, whose samples all have the same shape."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, ...]
    """Shape of a sample's input: (channels, height, width) for images, (number of tokens,) for text."""
    classes: int
    source: str
    """Text that says from where the samples were read, such as the path of a folder."""
    targets: str = CLASSES
    """Kind of the targets: `CLASSES`, `TOKENS` or `NUMBERS`. If ``targets`` is `CLASSES`, ``classes`` is the number of
    classes of the samples. If ``targets`` is `TOKENS`, ``classes`` is the number of different tokens. If ``targets`` is
    `NUMBERS`, ``classes`` is the count of numbers in the target of one sample."""


@dataclass(frozen=True)
class Entry:
    """Entry of the register of data sets: the loader function of a data set, and facts that are known before
    loading."""

    load: Callable[..., Dataset]
    """Function that loads the data set, called as load(directory, seed, **options). The arguments directory and seed
    are passed only to a loader function that has these parameters. The messages of DataErrors that the loader function
    raises lack the data set's name, which `grsgd.data.load` adds."""
    samples: tuple[int, int] | None
    """Numbers of training and test samples in the data set's official files; None if the numbers are not fixed."""
    shape: tuple[int, int, int] | None
    classes: int | None
    hint: str
    """Text for error messages that says how the user can get the data set."""

    @property
    def values(self) -> float:
        """Number of pixel values in the data set's official files; infinite if the number is not fixed."""
        return sum(self.samples) * math.prod(self.shape) if self.samples and self.shape else math.inf

    @property
    def options(self) -> dict[str, Any]:
        """Options of the data set by name, with their defaults. The options are all parameters of the loader function
        ``load`` except directory and seed."""
        parameters = inspect.signature(self.load).parameters.items()
        return {name: p.default for name, p in parameters if name not in ("directory", "seed")}

    def make(self, directory: Path, seed: int, options: dict[str, Any]):
        """Call the loader function ``load`` with ``options``, and return the result of the loader function.
        ``directory`` and ``seed`` are passed only if the loader function has these parameters."""
        return outside.call(self.load, {"directory": directory, "seed": seed}, options)


REGISTER: dict[str, Entry] = {}


def dataset(name: str, *, samples=None, shape=None, classes=None, hint: str | None = None):
    """Decorate a loader function to register it as the data set ``name``. Raises ValueError if another data set is
    already registered as ``name``."""

    def add(load: Callable[..., Dataset]) -> Callable[..., Dataset]:
        if name in REGISTER:
            raise ValueError(f"data set {name} is registered twice")
        REGISTER[name] = Entry(load, samples, shape, classes, hint or f"`grsgd data fetch {name}` gets it")
        return load

    return add


def find_files(places: Iterable[Path], names: Sequence[str], endings: Sequence[str] = ("",)) -> list[Path]:
    """Return the paths of the files called ``names`` in the first folder of ``places`` that has all these files. Each
    file may have one of ``endings``, such as ".gz", after its name. If a file exists with several of the ``endings``,
    the path with the earliest of these endings is returned.

    Raises MissingData, which names the missing files and the folders, if no folder of ``places`` has all files.
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
    """Raise DamagedData if the file ``path`` has more than ``most`` bytes, or if its size cannot be read."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DamagedData(f"{path}: cannot be read ({error})") from error
    if size > most:
        raise DamagedData(f"{path}: {size} bytes, expected at most {most}")


def check_labels(path: Path, labels: np.ndarray, classes: int) -> None:
    """Raise DamagedData if any number in ``labels`` is below 0 or above ``classes - 1``. The error message names
    ``path``, the file with the labels."""
    if labels.min() < 0 or labels.max() >= classes:
        raise DamagedData(f"{path}: labels in {labels.min()}..{labels.max()}, expected 0..{classes - 1}")
