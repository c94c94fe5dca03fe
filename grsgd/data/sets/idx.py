"""Loaders of MNIST and Fashion-MNIST, from files in the idx format of http://yann.lecun.com/exdb/mnist/, plain or
gzipped."""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grsgd.data.base import DamagedData, Dataset, check_labels, check_size, dataset, find_files
from grsgd.data.memory import MemorySplit
from grsgd.data.pixels import GREY, Normalise

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ENDINGS = ("", ".gz")
SHAPE = (1, 28, 28)
CLASSES = 10
MAX_DIMS = 4
MAX_BYTES = 2**26
"""Largest allowed size of an unpacked file in bytes; MNIST's largest file has 47 million bytes."""


def mnist_files(directory: Path) -> list[Path]:
    """Return the paths of MNIST's files in ``directory``/mnist or in ``directory``/MNIST/raw, the folder that
    torchvision uses. Raises MissingData if neither of the two folders has all files of MNIST."""
    return find_files([directory / "mnist", directory / "MNIST" / "raw"], FILES, ENDINGS)


def fashion_files(directory: Path) -> list[Path]:
    """Return the paths of Fashion-MNIST's files in ``directory``/fashion-mnist, in the folder that torchvision uses, or
    in the folder of Debian's package. Raises MissingData if none of the three folders has all files of
    Fashion-MNIST."""
    installed = Path("/usr/share/datasets/fashion-mnist")
    return find_files([directory / "fashion-mnist", directory / "FashionMNIST" / "raw", installed], FILES, ENDINGS)


@dataset("mnist", samples=(60_000, 10_000), shape=SHAPE, classes=CLASSES)
def load_mnist(directory: Path, seed: int) -> Dataset:
    """Load MNIST (LeCun, Cortes and Burges, 1998)."""
    return _load("mnist", mnist_files(directory), GREY)


@dataset("fashion-mnist", samples=(60_000, 10_000), shape=SHAPE, classes=CLASSES)
def load_fashion(directory: Path, seed: int) -> Dataset:
    """Load Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017)."""
    return _load("fashion-mnist", fashion_files(directory), GREY)


def _load(name: str, paths: Sequence[Path], normalise: Normalise) -> Dataset:
    train, test = (_read_split(*pair, normalise) for pair in (paths[:2], paths[2:]))
    return Dataset(name, train, test, SHAPE, CLASSES, source=str(paths[0].parent))


def _read_split(images_path: Path, labels_path: Path, normalise: Normalise) -> MemorySplit:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != SHAPE[1:]:
        raise DamagedData(f"{images_path}: images of {images.shape[1:]} pixels, expected {SHAPE[1:]}")
    if len(images) != len(labels):
        raise DamagedData(f"{images_path}: {len(images)} images, expected {len(labels)} as in {labels_path.name}")
    check_labels(labels_path, labels, CLASSES)
    return MemorySplit(images[:, None], labels, normalise)


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Return the uint8 array of ``dims`` dimensions in an idx file, gzipped if ``path`` ends in .gz.

    Raises DamagedData if the file's magic number or length is wrong, or if the array is empty.
    """
    content, whole = unpacked(path)
    magic, header = bytes([0, 0, 8, dims]), 4 + 4 * dims
    if content[:4] != magic:
        raise DamagedData(f"{path}: magic number {content[:4].hex() or 'absent'}, expected {magic.hex()}")
    if len(content) < header:
        raise DamagedData(f"{path}: {len(content)} bytes, expected at least the {header} of the header")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dims, offset=4)]
    expected = header + math.prod(shape)
    if len(content) != expected or not whole:
        cut = "" if whole else " in a truncated gzip stream"
        raise DamagedData(f"{path}: {len(content)} bytes{cut}, expected {expected}")
    if 0 in shape:
        raise DamagedData(f"{path}: holds an array of shape {shape}, expected at least one sample")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def unpacked(path: Path) -> tuple[bytes, bool]:
    """Return the unpacked content of the plain or gzipped file ``path``, and whether the file is complete. Raises
    DamagedData if the file ``path`` cannot be read.

    gzip.open is not used, because its error for a truncated file does not tell how many bytes could be unpacked. No
    more bytes are unpacked than the idx header says, because a few gzipped bytes can expand to a thousand times as many
    bytes.
    """
    check_size(path, MAX_BYTES)
    try:
        content = path.read_bytes()
        if path.suffix != ".gz":
            return content, True
        gunzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # the 16 selects the gzip format
        start = gunzip.decompress(content, 4 + 4 * MAX_DIMS)
        if start[:3] != bytes([0, 0, 8]):
            return start, gunzip.eof
        dims = min(start[3], MAX_DIMS) if len(start) > 3 else 0
        shape = [int.from_bytes(start[at : at + 4]) for at in range(4, 4 + 4 * dims, 4)]
        expected = 4 + 4 * dims + math.prod(shape)
        if expected > MAX_BYTES:
            raise DamagedData(f"{path}: {expected} bytes by its header, expected at most {MAX_BYTES}")
        rest = gunzip.decompress(gunzip.unconsumed_tail, max(expected - len(start), 0) + 1)
        return start + rest, gunzip.eof
    except (OSError, zlib.error) as error:
        raise DamagedData(f"{path}: cannot be read ({error})") from error
