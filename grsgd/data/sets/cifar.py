"""Loader of CIFAR-10 (Krizhevsky, 2009), from the binary or the Python version of the official archive.

Names of CIFAR-10's classes, in the order of their numbers: airplane, automobile, bird, cat, deer, dog, frog, horse,
ship, truck.
"""

import os
import pickle
from pathlib import Path
from typing import IO

import numpy as np

from grsgd.data.base import DamagedData, Dataset, MissingData, check_labels, check_size, dataset, find_files
from grsgd.data.memory import MemorySplit
from grsgd.data.pixels import Normalise, crop_and_flip

FILES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
SHAPE = (3, 32, 32)
CLASSES = 10
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
PIXELS = 3072
MAX_BYTES = 2**26
"""Largest allowed size of a file in bytes; the files of the archive have 31 million bytes."""


@dataset("cifar-10", samples=(50_000, 10_000), shape=SHAPE, classes=CLASSES)
def load_cifar(directory: Path, seed: int) -> Dataset:
    """Load CIFAR-10. If ``directory`` has the binary and the Python version of CIFAR-10, the binary version is read,
    because it needs no unpickling."""
    paths, read = _find(directory)
    batches = [read(path) for path in paths]
    sizes = [len(labels) for _, labels in batches]
    if len(set(sizes)) > 1:  # a file that was cut off between two samples can be read without an error
        odd = paths[sizes.index(min(sizes))]
        raise DamagedData(f"{odd}: {min(sizes)} samples, expected {max(sizes)} as in the other files")
    train = (np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True))
    return Dataset("cifar-10", _split(*train), _split(*batches[-1]), SHAPE, CLASSES, source=str(paths[0].parent))


def binary_files(directory: Path) -> list[Path]:
    """Return the paths of the files of CIFAR-10's binary version. Raises MissingData if a file of the binary version
    does not exist in ``directory``."""
    return find_files([directory / BINARY], FILES, endings=(".bin",))


def _find(directory: Path):
    """Return the paths of the files of CIFAR-10's binary version, and the function that reads one file of this version.
    If the binary version is missing, return the paths of the Python version's files, and the function that reads one
    file of the Python version."""
    try:
        return binary_files(directory), read_binary
    except MissingData as no_binary:
        try:
            return find_files([directory / PYTHON], FILES), read_pickle
        except MissingData as no_python:
            raise MissingData(f"{no_binary}; {no_python}") from None


def _split(images: np.ndarray, labels: np.ndarray) -> MemorySplit:
    normalise = Normalise([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    return MemorySplit(images.reshape(-1, *SHAPE), labels, normalise, crop_and_flip)


def read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels, uint8 [n, 3072], channels first, and the labels, uint8 [n], in a .bin file. Raises DamagedData
    if the size of the .bin file, or a label in the file, is wrong."""
    check_size(path, MAX_BYTES)
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DamagedData(f"{path}: cannot be read ({error})") from error
    record = 1 + PIXELS
    if content.size == 0 or content.size % record:
        raise DamagedData(f"{path}: {content.size} bytes, expected {10_000 * record}, {record} per sample")
    records = content.reshape(-1, record)
    labels = records[:, 0]
    check_labels(path, labels, CLASSES)
    return records[:, 1:], labels


def read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels, uint8 [n, 3072], and the labels in a file of CIFAR-10's Python version, which is a pickle. No
    code that the pickle contains is run."""
    check_size(path, MAX_BYTES)
    try:
        with open(path, "rb") as file:
            batch = _ArrayUnpickler(file, os.path.getsize(path)).load()
        pixels, labels = batch[b"data"], batch[b"labels"]
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise any exception
        raise DamagedData(f"{path}: not a batch of CIFAR-10 ({type(error).__name__}: {error})") from error
    if not isinstance(labels, list) or not labels or not all(type(label) is int for label in labels):
        raise DamagedData(f"{path}: labels are {type(labels).__name__}, expected a list of integers")
    check_labels(path, np.array(labels), CLASSES)
    expected = (len(labels), PIXELS)
    if not isinstance(pixels, _Pixels) or pixels.array.shape != expected:
        found = pixels.array.shape if isinstance(pixels, _Pixels) else type(pixels).__name__
        raise DamagedData(f"{path}: pixels are {found}, expected uint8 {expected}")
    return pixels.array, np.array(labels)


class _Dtype:
    """Substitute for ``numpy.dtype`` in unpickling. The substitute keeps only the dtype's name. ``numpy.dtype`` itself
    would accept any state that the pickle contains."""

    def __init__(self, name, *flags):
        self.name = name

    def __setstate__(self, state):
        """Ignore the dtype's state in the pickle, such as the byte order, because uint8 has no byte order."""


class _Pixels:
    """Substitute for ``numpy.ndarray`` in unpickling. The substitute accepts only uint8 arrays in C order."""

    def __init__(self, *arguments):
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state):
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.name not in (b"u1", "u1") or fortran:
            raise pickle.UnpicklingError(f"pixels are {getattr(dtype, 'name', dtype)!r}, expected uint8 in C order")
        if not isinstance(content, bytes):  # np.frombuffer would accept other types than bytes
            raise pickle.UnpicklingError(f"pixels are of type {type(content).__name__}, expected bytes")
        self.array = np.frombuffer(content, np.uint8).reshape([int(size) for size in shape])


class _Limited:
    """File whose ``read`` raises an error, before memory is allocated, if the file has fewer bytes than requested."""

    def __init__(self, file: IO[bytes], size: int):
        self.file, self.left = file, size

    def read(self, count: int) -> bytes:
        if count > self.left:
            raise pickle.UnpicklingError(f"the next {count} bytes are to be read, but only {self.left} bytes are left")
        self.left -= count
        return self.file.read(count)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.left -= len(line)
        return line


class _ArrayUnpickler(pickle._Unpickler):
    """Unpickler that can create only arrays of pixels. An ordinary unpickler would call any function that the file
    names.

    The base class is pickle's unpickler in Python. For a damaged file of a few bytes, pickle's unpickler in C can
    allocate gigabytes. Raises UnpicklingError if the stated length of a text or of bytes in the file exceeds the length
    of the file.
    """

    dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: pickle._Unpickler.load_binbytes8}
    """Table with the function that handles each operation code of a pickle. The function for bytearrays is replaced,
    because pickle's own function allocates memory before it reads the bytes."""
    _allowed = {"ndarray": None, "dtype": _Dtype, "_reconstruct": _Pixels}

    def __init__(self, file: IO[bytes], size: int):
        """Prepare to unpickle ``file``, which has ``size`` bytes."""
        super().__init__(_Limited(file, size), encoding="bytes")

    def find_class(self, module, name):
        if module.partition(".")[0] == "numpy" and name in self._allowed:
            return self._allowed[name]
        raise pickle.UnpicklingError(f"the file names {module}.{name}, but only numpy arrays are allowed")
