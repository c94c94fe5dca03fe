"""Loader of images in folders train/<class>/* and val/<class>/*, as ImageNet and similar data sets are usually
stored."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from grsgd.data.base import DamagedData, Dataset, MissingData, dataset
from grsgd.data.digest import digest_of, evenly_spaced
from grsgd.data.pixels import Normalise
from grsgd.data.workers import worker_options
from grsgd.errors import DataError
from grsgd.lazy import LazyModule
from grsgd.seeding import Purpose, generator

torch, PIL = LazyModule("torch"), LazyModule("PIL")

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
TIMEOUT = 120  # seconds to wait for one batch from a worker process


@dataset("imagefolder", hint="arrange your images as train/<class>/* and val/<class>/*")
def load_imagefolder(directory: Path, seed: int, size: int = 224) -> Dataset:
    """Load colour images of ``size`` x ``size`` pixels from ``directory``/imagefolder or, if that folder lacks train/
    or val/, from ``directory``."""
    if size < 1:
        raise DataError(f"size is {size}, expected at least 1")
    places = [directory / "imagefolder", directory]
    root = next((place for place in places if (place / "train").is_dir() and (place / "val").is_dir()), None)
    if root is None:
        raise MissingData(f"no train/ and val/ in {' or '.join(map(str, places))}")
    classes = _classes(root / "train")
    if (others := _classes(root / "val")) != classes:
        odd = sorted(set(classes) ^ set(others))
        raise DamagedData(f"{root}: train/ and val/ differ in class {odd[0]} ({len(odd)} in all), expected equal names")
    train, test = (FolderSplit(root / part, classes, size) for part in ("train", "val"))
    return Dataset("imagefolder", train, test, (3, size, size), len(classes), source=str(root))


def _classes(folder: Path) -> list[str]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not _is_hidden(entry))
    if not classes:
        raise MissingData(f"no class folders in {folder}")
    return classes


class FolderSplit:
    """``Split`` of images that are stored in one folder for each class. Each image file is decoded only when a batch
    with this image is read."""

    def __init__(self, folder: Path, classes: Sequence[str], size: int):
        files = [_images(folder, name) for name in classes]
        self.labels = np.repeat(np.arange(len(classes)), [len(names) for names in files])
        # The file names are stored as bytes, because an array of str takes four bytes per letter.
        # Each worker process gets a copy of the array of file names.
        self._files = np.array([os.fsencode(name) for names in files for name in names])
        self._folder, self._size = folder, size
        self._normalise = Normalise([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> int:
        """Return the CRC-32 of the file names of all images, and of the sizes in bytes of a few image files."""
        few = [self._folder / os.fsdecode(self._files[number]) for number in evenly_spaced(len(self))]
        return digest_of([self._files, [os.path.getsize(path) for path in few]])

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        first: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches as described in ``Split.batches``. Images are decoded by ``workers`` worker processes, or in
        this process if ``workers`` is 0.

        With augmentation, a sample is a random rectangle of the image, resized, and mirrored at random (Szegedy et al.,
        2015). Without augmentation, a sample is the central square of the image, whose sides are 7/8 of the image's
        shorter side (224 of 256 pixels). Raises DataError if an image is broken, or if a worker process dies or takes
        more than two minutes for a batch.
        """
        decoder = _Decoder(self._folder, self._files, self._size, seed if augment else None)
        for images, index in _pull(_loader(decoder, enumerate(indices, first), workers)):
            yield self._normalise(images), torch.from_numpy(self.labels)[index]


def _images(folder: Path, name: str) -> list[str]:
    """Return the sorted paths, relative to ``folder``, of all images at any depth below the subfolder ``name``.

    Symbolic links are followed, but each folder is read only once. A link to a folder that contains the subfolder is
    not followed. Hidden files and folders, whose names begin with a dot (``.ipynb_checkpoints``, ``._1.jpg``), are
    ignored.
    """
    real = os.path.realpath(folder)
    seen = {real, *map(str, Path(real).parents)}  # paths of all folders that contain the subfolder ``name``
    found = sorted(os.path.relpath(path, folder) for path in _below(str(folder / name), seen))
    if not found:
        raise DamagedData(f"{folder / name}: no images, expected at least one ending in {', '.join(ENDINGS)}")
    return found


def _below(place: str, seen: set[str]) -> Iterator[str]:
    """Yield the paths of all images in the folder ``place`` and its subfolders. Folders whose real paths are in
    ``seen`` are skipped. The real path of each folder that is read is added to ``seen``."""
    if (real := os.path.realpath(place)) in seen:
        return
    seen.add(real)
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
        if _is_hidden(entry):
            continue
        if entry.is_dir():
            yield from _below(entry.path, seen)
        elif entry.name.lower().endswith(ENDINGS):
            if not entry.is_file():  # opening a FIFO (named pipe) would wait for a writer
                raise DamagedData(f"{entry.path}: no file (a FIFO, a device, or a link to nothing), remove it")
            yield entry.path


def _is_hidden(entry: os.DirEntry) -> bool:
    return entry.name.startswith(".")


class _Decoder:
    """Data set for a `DataLoader`, whose items are whole batches of images. The index of an item is (number of the
    batch, sample numbers), because the random numbers of augmentation depend on the number of the batch."""

    def __init__(self, folder: Path, files: np.ndarray, size: int, seed):
        self.folder, self.files, self.size, self.seed = folder, files, size, seed

    def __getitem__(self, item: tuple[int, np.ndarray]):
        """Return the images of a batch, uint8 [b, 3, size, size], and the numbers of the samples. A DataError is
        returned, not raised, because torch adds many lines to the message of an error that a worker process raises."""
        position, index = item
        images = np.empty((len(index), self.size, self.size, 3), np.uint8)
        try:
            for k, sample in enumerate(index):
                rng = None if self.seed is None else generator(Purpose.AUGMENTATION, self.seed, position, k)
                images[k] = decode(self.folder / os.fsdecode(self.files[sample]), self.size, rng)
        except DataError as error:
            return error
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(index)


def _loader(decoder: _Decoder, items: Iterable, workers: int) -> torch.utils.data.DataLoader:
    # With its own generator, the DataLoader draws no numbers from torch's global generator.
    options = dict(sampler=items, batch_size=None, generator=torch.Generator())
    if workers:  # without a timeout the DataLoader would wait for ever for a worker that hangs
        options |= worker_options(workers) | {"timeout": TIMEOUT}
    return torch.utils.data.DataLoader(decoder, **options)


def _pull(loader: torch.utils.data.DataLoader) -> Iterator:
    batches = iter(loader)
    try:
        while (batch := _next(batches)) is not None:
            if isinstance(batch, DataError):
                raise batch
            yield batch
    finally:
        del batches  # ends the worker processes now; an error's traceback would keep them alive


def _next(batches: Iterator):
    """Return the next batch of a DataLoader, or None after the last batch. Raises DataError if a worker process has
    died, or hangs."""
    try:
        return next(batches, None)
    except RuntimeError as error:  # torch raises RuntimeError for a worker process that died or hangs
        reason = str(error).partition("\n")[0]
        raise DataError(f"imagefolder: decoding stopped: {reason}; fewer workers need less memory") from error


def decode(path: Path, size: int, rng: np.random.Generator | None) -> np.ndarray:
    """Return a square part of the image in the file ``path`` as uint8 [size, size, 3]. If ``rng`` is given, the square
    is chosen at random; if ``rng`` is None, the square is the centre of the image.

    Raises DataError if the image in the file cannot be read.
    """
    from PIL import Image, ImageOps  # imported only here, because no other data set needs Pillow

    try:
        with Image.open(path) as file:
            image = in_8_bits(file).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"imagefolder: {path}: broken image ({error}): repair or remove the file") from error
    if rng is None:
        # ImageOps.fit() cuts the fraction `bleed` from each side of the image before it resizes the image.
        # With size 224, this corresponds to the central 224 pixels of an image that was resized to 256 pixels.
        return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR, bleed=1 / 16))
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=random_box(*image.size, rng))
    return np.asarray(ImageOps.mirror(image) if rng.integers(2) else image)


def in_8_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """Return ``image`` with 8 bits per pixel value. An image with 16 bits per value is reduced to the upper 8 bits of
    each value, and an image with 8 bits per value is returned unchanged.

    Pillow itself takes the upper 8 bits when it reads a colour image with 16 bits per value. Raises ValueError for
    pixels of 32 bits and for floating-point pixels. A file with 32-bit or floating-point pixels does not say which
    values are black and white. Pillow would make nearly all pixels white, or black.
    """
    from PIL import Image

    has_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if has_16_bits:
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "32-bit whole numbers" if image.mode == "I" else "floating-point numbers"
        raise ValueError(f"pixels are {kind}, of a range that the file does not say: convert the image to 8 or 16 bits")
    return image


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a random box in an image. The box has 8 to 100 % of the image's area, and
    the ratio of its sides is from 3:4 to 4:3.

    If ten random boxes in turn do not fit into the image, return the largest centred box with a ratio from 3:4 to 4:3.
    """
    for _ in range(10):
        area = rng.uniform(0.08, 1) * width * height
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = max(1, min(width, round(height * ratio))), max(1, min(height, round(width / ratio)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
