"""The data sets: what they hold, what their batches are, and that nothing wrong is let through."""

import dataclasses
import gzip
import itertools
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grsgd import data as data_sets
from grsgd.data import NAMES, base, load, status
from grsgd.data.part import PartSplit, part_of
from grsgd.data.pixels import Normalise, crop_and_flip
from grsgd.data.sets import bundled, cifar, idx, imagefolder
from grsgd.data.shards import shards
from grsgd.errors import DataError


@pytest.fixture(autouse=True)
def no_installed_fashion(monkeypatch):
    """Hide Debian's copy of Fashion-MNIST, if this machine has it."""
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: not str(self).startswith("/usr/share/datasets") and is_file(self))


def image_batch(rng, count, shape):
    return rng.integers(256, size=(count, *shape), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A directory with 30 training and 20 test images; returns it and the arrays written."""
    rng = np.random.default_rng(0)
    arrays = [*image_batch(rng, 30, (28, 28)), *image_batch(rng, 20, (28, 28))]
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, array in zip(idx.FILES, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return tmp_path, arrays


def cifar_arrays():
    rng = np.random.default_rng(1)
    return [image_batch(rng, 20, (3, 32, 32)) for _ in cifar.FILES]


@pytest.fixture
def cifar_binary(tmp_path):
    folder = tmp_path / cifar.BINARY
    folder.mkdir()
    for name, (images, labels) in zip(cifar.FILES, cifar_arrays(), strict=True):
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, images.reshape(20, -1)]).tobytes())
    return tmp_path


@pytest.fixture
def cifar_python(tmp_path):
    folder = tmp_path / cifar.PYTHON
    folder.mkdir()
    for name, (images, labels) in zip(cifar.FILES, cifar_arrays(), strict=True):
        batch = {b"data": images.reshape(20, -1), b"labels": labels.tolist(), b"batch_label": b"small"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=4))
    return tmp_path


@pytest.fixture
def folders(tmp_path):
    """Three classes of digits as PNG and JPEG files of several sizes, 8 + 4 a class."""
    digits = load("digits", tmp_path)
    for part, split, count in (("train", digits.train, 8), ("val", digits.test, 4)):
        for label in range(3):
            (tmp_path / part / f"digit{label}").mkdir(parents=True)
            chosen = np.flatnonzero(split.labels == label)[:count]
            images, _ = next(split.batches([chosen]))
            for k, image in enumerate(images[:, 0]):
                grey = Image.fromarray(((image - image.min()) * 40).clamp(0, 255).byte().numpy())
                ending = "png" if k % 2 else "JPEG"
                grey.resize((20 + k, 30 - k)).save(tmp_path / part / f"digit{label}" / f"{k}.{ending}")
    return tmp_path


def refused(name, directory, **options):
    """Return the message, one line, of the DataError that loading must give."""
    with pytest.raises(DataError) as caught:
        load(name, directory, **options)
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and "\n" not in message
    return message


# What is there


def test_files_are_read_once_where_that_is_asked_for(tmp_path, monkeypatch):
    assert load("digits", tmp_path) is not load("digits", tmp_path)
    monkeypatch.setattr(data_sets, "_kept", None)
    data_sets.keep_loaded()
    assert load("digits", tmp_path) is load("digits", tmp_path, seed=1)
    assert load("synthetic", tmp_path, samples=50) is not load("synthetic", tmp_path, samples=50)


def test_names():
    of_images = ("digits", "mnist-5k", "mnist", "fashion-mnist", "cifar-10", "imagefolder", "synthetic")
    assert NAMES == (*of_images, "moby-dick", "text")


@pytest.mark.parametrize(("name", "train", "test"), [("digits", 1437, 360), ("mnist-5k", 4000, 1000)])
def test_bundled(name, train, test, tmp_path):
    data = load(name, tmp_path, seed=0)
    assert (len(data.train), len(data.test)) == (train, test)
    counts = [np.bincount(split.labels, minlength=10) for split in (data.train, data.test)]
    assert np.abs(counts[1] - counts[0] / 4).max() <= 1  # stratified
    images, labels = next(data.train.batches([np.arange(train)]))
    assert images.shape == (train, *data.shape) and images.dtype == torch.float32 and labels.dtype == torch.int64
    assert images.min() == 0 and images.max() == 1 and 0.1 < images.mean() < 0.4
    assert np.array_equal(labels, data.train.labels) and data.train.labels.dtype == np.int64


def test_bundled_split_does_not_depend_on_the_seed(tmp_path):
    one, other = (next(load("digits", tmp_path, seed=seed).test.batches([np.arange(360)])) for seed in (0, 1))
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_bundled_splits_are_disjoint(tmp_path):
    data = load("mnist-5k", tmp_path)
    train, test = (next(split.batches([np.arange(len(split))]))[0].flatten(1) for split in (data.train, data.test))
    rows = {row.numpy().tobytes() for row in train}
    assert len(rows) == 4000 and not any(row.numpy().tobytes() in rows for row in test)


def test_bundled_imports_no_package():
    code = "import sys, grsgd.data; grsgd.data.load('digits', '.'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_mnist(mnist):
    directory, arrays = mnist
    data = load("mnist", directory)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (30, 20, (1, 28, 28), 10)
    images, labels = next(data.test.batches([np.array([3, 1])]))
    expected = arrays[2][[3, 1]].astype(np.float32) / 255
    np.testing.assert_allclose(images[:, 0], expected, atol=1e-5)
    assert labels.tolist() == [3, 1]


def test_mnist_gzipped_in_torchvision_layout(mnist):
    directory, _ = mnist
    raw = directory / "MNIST" / "raw"
    raw.parent.mkdir()
    shutil.move(directory / "mnist", raw)
    for path in list(raw.iterdir()):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert load("mnist", directory).source == str(raw)


def test_fashion(mnist):
    directory, _ = mnist
    shutil.move(directory / "mnist", directory / "FashionMNIST" / "raw")
    assert len(load("fashion-mnist", directory).train) == 30
    assert "mnist/train" not in refused("mnist", directory)


def test_cifar_versions_agree(cifar_binary, cifar_python):
    images, labels = (np.concatenate(arrays) for arrays in zip(*cifar_arrays()[:5], strict=True))
    binary = load("cifar-10", cifar_binary)
    assert cifar.BINARY in binary.source
    shutil.rmtree(cifar_binary / cifar.BINARY)
    python = load("cifar-10", cifar_python)
    assert cifar.PYTHON in python.source
    every = [np.arange(100)]
    found = [next(data.train.batches(every)) for data in (binary, python)]
    assert torch.equal(found[0][0], found[1][0])
    expected = (images / 255 - np.reshape([0.4914, 0.4822, 0.4465], (3, 1, 1))) / np.reshape(
        [0.2470, 0.2435, 0.2616], (3, 1, 1)
    )
    np.testing.assert_allclose(found[0][0], expected, atol=1e-5)
    assert np.array_equal(binary.train.labels, labels) and np.array_equal(python.train.labels, labels)


def test_synthetic(tmp_path):
    options = dict(samples=200, shape=[3, 8, 8], classes=4)
    data = load("synthetic", tmp_path, seed=5, **options)
    assert "generated" in data.source
    assert (len(data.train), len(data.test), data.shape, data.classes) == (200, 40, (3, 8, 8), 4)
    assert np.bincount(data.train.labels).tolist() == [50] * 4
    every = [np.arange(200)]
    images, labels = next(data.train.batches(every))
    again, other = (next(load("synthetic", tmp_path, seed=s, **options).train.batches(every))[0] for s in (5, 6))
    assert torch.equal(images, again) and not torch.equal(images, other)
    centres = torch.stack([images[labels == label].mean(0) for label in range(4)])
    tests, expected = next(data.test.batches([np.arange(40)]))
    nearest = torch.cdist(tests.flatten(1), centres.flatten(1)).argmin(1)
    assert (nearest == expected).float().mean() > 0.9


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(samples=3), "at least 5 per class"),
        (dict(shape=(28, 28)), "channels, height, width"),
        (dict(classes=1), "at least 2"),
        (dict(samples=10**12), "GiB of memory are needed, and"),
        (dict(shape=(1, 10**6, 10**7)), "GiB of memory are needed, and"),
        (dict(colour=3), "allowed: samples, shape, classes"),
    ],
)
def test_synthetic_options(options, word, tmp_path):
    assert word in refused("synthetic", tmp_path, **options)


# Batches


def test_batches_are_lazy(mnist):
    data = load("mnist", mnist[0])
    drawn = []
    stream = (drawn.append(k) or np.array([k % 30]) for k in itertools.count())
    batches = data.train.batches(stream)
    assert drawn == []
    next(batches), next(batches)
    assert drawn == [0, 1]


def test_batches_do_not_change_the_split(mnist):
    data = load("mnist", mnist[0])
    first = next(data.train.batches([np.arange(30)]))[0]
    first.zero_()
    assert next(data.train.batches([np.arange(30)]))[0].any()


def test_augmentation_depends_on_seed_and_position(cifar_binary):
    split = load("cifar-10", cifar_binary).train
    index = [np.arange(100)] * 3

    def images(**options):
        return [batch for batch, _ in split.batches(index, **options)]

    run = images(augment=True, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(run, images(augment=True, seed=1), strict=True))
    assert not torch.equal(run[0], run[1])
    assert not torch.equal(run[0], images(augment=True, seed=(1, 0, 1))[0])
    assert not torch.equal(run[0], images()[0])


def test_crop_and_flip_is_a_shift_or_a_mirrored_shift():
    image = torch.arange(1, 3 * 6 * 6 + 1, dtype=torch.uint8).reshape(1, 3, 6, 6)
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))[0]
    shifts = {padded[:, i : i + 6, j : j + 6].numpy().tobytes() for i in range(9) for j in range(9)}
    out = crop_and_flip(image.expand(200, -1, -1, -1), np.random.default_rng(0))
    straight = sum(picture.numpy().tobytes() in shifts for picture in out)
    mirrored = sum(picture.flip(2).numpy().tobytes() in shifts for picture in out)
    assert straight + mirrored == 200 and min(straight, mirrored) > 60


def test_set_without_augmentation_refuses_it_at_once(mnist):
    with pytest.raises(DataError, match="no augmentation"):
        load("mnist", mnist[0]).train.batches([], augment=True)


def test_normalise_keeps_its_input():
    images = torch.full((2, 1, 2, 2), 16, dtype=torch.uint8)
    assert torch.allclose(Normalise([0.5], [0.25], peak=16)(images), torch.tensor(2.0))
    assert (images == 16).all()


# What is wrong


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10", "imagefolder"])
def test_missing(name, tmp_path):
    message = refused(name, tmp_path / "nowhere")
    assert str(tmp_path) in message
    if name != "imagefolder":
        assert f"`grsgd data fetch {name}`" in message


def test_missing_file_is_named(mnist, cifar_binary):
    (mnist[0] / "mnist" / idx.FILES[3]).unlink()
    assert f"lacks {idx.FILES[3]}" in refused("mnist", mnist[0])
    (cifar_binary / cifar.BINARY / "data_batch_4.bin").unlink()
    assert "lacks data_batch_4" in refused("cifar-10", cifar_binary)


def test_unknown_name_and_option(tmp_path):
    with pytest.raises(DataError, match="unknown data set mnst; there are digits, .*synthetic"):
        load("mnst", tmp_path)
    assert "unknown option size; allowed: none" in refused("digits", tmp_path, size=3)


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (0, lambda b: b[:-5], [f"{16 + 30 * 784 - 5} bytes", f"expected {16 + 30 * 784}"]),
        (0, lambda b: b + b"x", [f"{16 + 30 * 784 + 1} bytes", f"expected {16 + 30 * 784}"]),
        (0, lambda b: b"\0\0\x09\x03" + b[4:], ["magic number 00000903", "expected 00000803"]),
        (0, lambda b: b[:7], ["7 bytes", "expected at least the 16"]),
        (0, lambda b: b"", ["magic number absent"]),
        (0, lambda b: b[:4] + b"\xff" * 12 + b[16:], [f"expected {16 + (2**32 - 1) ** 3}"]),
        (0, lambda b: idx_bytes(np.zeros((30, 14, 56), np.uint8)), ["(14, 56)", "expected (28, 28)"]),
        (1, lambda b: idx_bytes(np.zeros(29, np.uint8)), ["30 images, expected 29"]),
        (1, lambda b: b[:-1] + b"\x0a", ["labels in 0..10, expected 0..9"]),
        (3, lambda b: idx_bytes(np.zeros(0, np.uint8)), ["at least one sample"]),
    ],
)
def test_damaged_idx(file, change, words, mnist):
    directory, _ = mnist
    damage(directory / "mnist" / idx.FILES[file], change)
    message = refused("mnist", directory)
    assert "`grsgd data fetch mnist`" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[: len(b) // 2], ["truncated gzip", f"expected {16 + 30 * 784}"]),
        (lambda b: b[:-8], ["truncated gzip", f"expected {16 + 30 * 784}"]),
        (lambda b: b[:-6] + b"\0" * 6, ["incorrect data check"]),
        (lambda b: b"not gzip", ["cannot be read"]),
        (lambda b: b"", ["magic number absent"]),
    ],
)
def test_damaged_gzip(change, words, mnist):
    path = mnist[0] / "mnist" / idx.FILES[0]
    zipped = Path(f"{path}.gz")
    zipped.write_bytes(change(gzip.compress(path.read_bytes())))
    path.unlink()
    message = refused("mnist", mnist[0])
    for word in [str(zipped), *words]:
        assert word in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[:-1], [f"{20 * 3073 - 1} bytes", "expected 30730000"]),
        (lambda b: b"", ["0 bytes"]),
        (lambda b: b[:-3073], ["19 samples, expected 20"]),
        (lambda b: b"\xc8" + b[1:], ["labels in 0..200"]),
    ],
)
def test_damaged_cifar_binary(change, words, cifar_binary):
    damage(cifar_binary / cifar.BINARY / "data_batch_2.bin", change)
    message = refused("cifar-10", cifar_binary)
    for word in ["data_batch_2.bin", *words]:
        assert word in message


@pytest.mark.parametrize(
    ("size", "words"), [(7840, "7857 bytes in a truncated gzip stream, expected 7856"), (2**31, "by its header")]
)
def test_no_more_is_unpacked_than_the_header_says(tmp_path, size, words):
    """A file of 30 kB that stands for 30 MB."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    content = packer.compress(struct.pack(">4B3I", 0, 0, 8, 3, size // 784, 28, 28))
    content += b"".join(packer.compress(bytes(2**20)) for _ in range(30)) + packer.flush()
    (tmp_path / "x.gz").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=words):
            idx.read_idx(tmp_path / "x.gz", 3)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10e6


class Malice:
    """Unpickled without care, this makes a directory."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def batch_of(**changes):
    images, labels = cifar_arrays()[0]
    batch = {b"data": images.reshape(20, -1), b"labels": labels.tolist()}
    return lambda _: pickle.dumps(batch | {key.encode(): value for key, value in changes.items()}, protocol=4)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda b: b[:1000], "not a batch"),
        (lambda b: b"", "not a batch"),
        (batch_of(data=[1, 2]), "pixels are list"),
        (batch_of(data=np.zeros((20, 3072))), "pixels are 'f8', expected uint8"),
        (batch_of(labels=[0] * 19), "expected uint8 (19, 3072)"),
        (batch_of(labels=[0.5] * 20), "list of integers"),
        (batch_of(labels=[-1] * 20), "labels in -1..-1"),
        (lambda b: pickle.dumps([1], protocol=4), "not a batch"),
    ],
)
def test_damaged_cifar_pickle(change, word, cifar_python):
    damage(cifar_python / cifar.PYTHON / "data_batch_3", change)
    message = refused("cifar-10", cifar_python)
    assert "data_batch_3" in message and word in message


def test_cifar_pickle_runs_no_code(cifar_python):
    victim = cifar_python / "made"
    damage(cifar_python / cifar.PYTHON / "test_batch", batch_of(labels=Malice(victim)))
    assert "only numpy arrays are allowed" in refused("cifar-10", cifar_python)
    assert not victim.exists()


MALICIOUS = r"""
import pickle, pickletools, sys
from pathlib import Path
from grsgd.errors import DataError
from grsgd.data.sets import cifar

def plain(value):
    return pickletools.optimize(pickle.dumps(value, 3))[2:-1]

def named(module, name):
    return f"c{module}\n{name}\n".encode()

def dtype(name):
    return named("numpy", "dtype") + plain((name, False, True)) + b"R"

# An array of 8 bytes an element, whose dtype then says that these bytes are a pointer to an object.
array = named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "ndarray")
array += plain((0,)) + plain(b"b") + b"tR(" + plain(1) + plain((4,)) + b"hd" + plain(False) + plain(b"A" * 32) + b"tb"
fields = b"}" + plain("a") + b"(" + dtype("O") + plain(0) + b"ts"
state = b"(" + plain(3) + plain("|") + plain(None) + plain(("a",)) + fields + plain(8) + plain(1) + plain(63) + b"t"
batch = b"\x80\x03}(" + plain(b"labels") + plain([0] * 4) + plain(b"data")
batch += dtype("V8") + b"qd0" + array + plain(b"more") + b"hd" + state + b"bu."
path = Path(sys.argv[1])
path.write_bytes(batch)
try:
    cifar.read_pickle(path)
except DataError as error:
    print(error)
"""


def test_cifar_pickle_does_not_change_the_types_of_numpy(tmp_path):
    """Pointers of the file's would be followed when the array is freed."""
    done = subprocess.run(
        [sys.executable, "-c", MALICIOUS, tmp_path / "batch"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pixels are 'V8', expected uint8" in done.stdout


@pytest.fixture
def pictures(tmp_path):
    for part, name in (("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")):
        folder = tmp_path / part / name / "deeper"
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "x.png")
    return tmp_path


def test_links_between_folders_come_to_an_end(pictures):
    """To what the class lies in, in a circle within it, and to one folder by two names."""
    a = pictures / "train" / "a"
    for number in range(3):
        (a / "deeper" / f"up{number}").symlink_to(pictures / "train")
        (a / f"around{number}").symlink_to(a)
    (a / "root").symlink_to(pictures)
    (a / "again").symlink_to(a / "deeper")
    assert load("imagefolder", pictures, size=8).train.labels.tolist() == [0, 1]


def test_a_class_may_be_a_link(pictures, tmp_path):
    (pictures / "train" / "b").rename(tmp_path / "elsewhere")
    (pictures / "train" / "b").symlink_to(tmp_path / "elsewhere")
    assert load("imagefolder", pictures, size=8).train.labels.tolist() == [0, 1]


def test_bundled_package_missing_or_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    message = refused("digits", tmp_path)
    assert "sklearn, which is not installed" in message and "pip install 'grsgd[data]'" in message
    broken = tmp_path / "broken.csv.gz"
    monkeypatch.setattr(bundled, "package_file", lambda package, relative: broken)
    for content, word in [
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"1,2\n3,4\n"), "a table of (2, 2), expected (1797, 65)"),
        (gzip.compress(b"1,two\n"), "cannot be read"),
        (gzip.compress(b"1,2\n" * 999)[:-9], "cannot be read"),
    ]:
        broken.write_bytes(content)
        assert word in refused("digits", tmp_path)


def test_registering_twice():
    with pytest.raises(ValueError, match="digits is registered twice"):
        base.dataset("digits")(lambda directory, seed: None)


def test_status(mnist):
    directory, _ = mnist
    rows = {row.name: row for row in status(directory)}
    assert tuple(rows) == NAMES
    assert rows["mnist"].state == "present" and rows["mnist"].samples == (30, 20)
    assert rows["mnist"].where == str(directory / "mnist")
    assert rows["cifar-10"].state == "absent" and "grsgd data fetch cifar-10" in rows["cifar-10"].where
    assert rows["cifar-10"].samples == (50_000, 10_000)
    damage(directory / "mnist" / idx.FILES[0], lambda content: content[:-1])
    (damaged,) = (row for row in status(directory) if row.name == "mnist")
    assert damaged.state == "damaged" and idx.FILES[0] in damaged.where


# Image folders


def test_imagefolder(folders):
    data = load("imagefolder", folders, size=16)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (24, 12, (3, 16, 16), 3)
    assert data.train.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    images, labels = next(data.test.batches([np.array([11, 0])]))
    assert images.shape == (2, 3, 16, 16) and images.dtype == torch.float32 and labels.tolist() == [2, 0]


def test_imagefolder_below_the_data_directory(folders):
    (folders / "data").mkdir()
    shutil.copytree(folders / "train", folders / "data" / "imagefolder" / "train")
    shutil.copytree(folders / "val", folders / "data" / "imagefolder" / "val")
    assert load("imagefolder", folders / "data").source == str(folders / "data" / "imagefolder")


def test_imagefolder_workers_change_nothing(folders):
    split = load("imagefolder", folders, size=16).train
    index = [np.array([k % 24, (5 * k) % 24]) for k in range(8)]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    alone = list(split.batches(index, augment=True, seed=3))
    endless = split.batches(itertools.cycle(index), augment=True, seed=3, workers=2)
    helped = list(itertools.islice(endless, 8))
    endless.close()  # and the workers with it; left to the garbage collector, that takes seconds
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    # A broken image, found by a worker, is the same one line as without workers.
    broken = folders / "train" / "digit1" / "1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"imagefolder: .*1\.png: broken image \(.*\)") as caught:
            list(split.batches([np.arange(24)], workers=workers))
        assert "\n" not in str(caught.value) and str(broken) in str(caught.value)


@pytest.mark.parametrize("ending, kind", [("png", "<u2"), ("tif", "<u2"), ("tif", ">u2"), ("pgm", "<u2")])
def test_images_of_16_bits_are_scaled(tmp_path, ending, kind):
    values = np.linspace(1000, 60_000, 64).reshape(8, 8).astype(kind)
    path = tmp_path / f"x.{ending}"
    if ending == "pgm":
        path.write_bytes(b"P5 8 8 65535\n" + values.astype(">u2").tobytes())
    else:
        mode = "I;16B" if kind == ">u2" else "I;16"
        Image.frombytes(mode, (8, 8), values.tobytes()).save(path)
    wide = imagefolder.decode(path, 8, np.random.default_rng(0)).astype(int)
    assert wide.max() > 150 and wide.min() < 80
    with Image.open(path) as file:
        assert np.array_equal(np.asarray(imagefolder.in_8_bits(file)), values.astype(int) >> 8)


@pytest.mark.parametrize("kind, words", [(np.int32, "32-bit whole numbers"), (np.float32, "floating-point numbers")])
def test_images_whose_white_is_not_known_are_refused(tmp_path, kind, words):
    Image.fromarray(np.arange(64, dtype=kind).reshape(8, 8)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=rf"x.tif: broken image [(]pixels are {words}, of a range that the file"):
        imagefolder.decode(tmp_path / "x.tif", 8, None)


def test_hidden_folders_and_files_are_no_images(folders):
    before = load("imagefolder", folders, size=8).train.labels
    for place in (folders / "train" / "digit1" / ".ipynb_checkpoints", folders / "train" / ".ipynb_checkpoints"):
        shutil.copytree(folders / "train" / "digit2", place)
    (folders / "train" / "digit0" / "._1.png").write_bytes(b"no image")
    assert np.array_equal(load("imagefolder", folders, size=8).train.labels, before)


def test_a_fifo_among_images_is_refused(folders):
    os.mkfifo(folders / "train" / "digit1" / "x.png")
    assert "digit1/x.png: no file (a FIFO, a device, or a link to nothing), remove" in refused("imagefolder", folders)


# Parts


@pytest.mark.parametrize("name", ["digits", "synthetic", "cifar-10", "imagefolder"])
def test_part_of_every_kind_of_set(name, folders, cifar_binary):
    whole = load(name, folders)
    some = part_of(whole, 2, 3, 2)
    assert (len(some.train), len(some.test), some.classes, some.shape) == (3, 2, 2, whole.shape)
    assert some.train.labels.dtype == np.int64 and some.train.labels.max() < 2
    members = np.flatnonzero(whole.train.labels < 2)
    spaced = members[[0, len(members) // 3, 2 * len(members) // 3]]
    (images, labels), (expected, _) = (
        next(split.batches([index])) for split, index in ((some.train, np.arange(3)), (whole.train, spaced))
    )
    assert torch.equal(images, expected) and np.array_equal(labels, some.train.labels)


def test_part_of_a_set_sorted_by_class_has_all_classes(folders):
    some = part_of(load("imagefolder", folders, size=16), None, 6, None)
    assert some.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert some.classes == 3 and len(some.test) == 12


def test_part_without_limits_is_the_set_itself(tmp_path):
    data = load("digits", tmp_path)
    assert part_of(data, None, None, None) is data
    everything = part_of(data, 10, 1437, 360)
    assert everything.train.labels.tolist() == data.train.labels.tolist()
    assert len(part_of(data, None, None, 1).test) == 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((11, None, None), "data.only_classes = 11: there are 10 classes of mnist; allowed: 1 to 10"),
        (
            (3, 10, None),
            "data.only_train = 10: there are 9 train samples of the first 3 classes of mnist; allowed: 1 to 9",
        ),
        ((3, 9, 7), "data.only_test = 7: there are 6 test samples of the first 3 classes of mnist; allowed: 1 to 6"),
        (
            (None, 31, 1),
            "data.only_train = 31: there are 30 train samples of the first 10 classes of mnist; allowed: 1 to 30",
        ),
    ],
)
def test_part_larger_than_the_set(mnist, limits, message):
    with pytest.raises(DataError) as caught:
        part_of(load("mnist", mnist[0]), *limits)
    assert str(caught.value) == message


def test_part_without_a_test_sample(tmp_path):
    data = load("digits", tmp_path)
    lacking = dataclasses.replace(data, test=PartSplit(data.test, np.flatnonzero(data.test.labels > 1)))
    with pytest.raises(
        DataError, match="^data.only_classes = 2: there are no test samples of the first 2 classes of dig"
    ):
        part_of(lacking, 2, None, None)


def test_part_reads_indices_lazily_and_passes_options_on(cifar_binary):
    whole = load("cifar-10", cifar_binary)
    some = part_of(whole, 5, 20, None)
    members = np.flatnonzero(whole.train.labels < 5)[np.arange(20) * 50 // 20]
    index = [np.array([k, 19 - k]) for k in range(8)]
    options = dict(augment=True, seed=(3, 1), workers=0)
    images = [batch[0] for batch in whole.train.batches((members[i] for i in index), **options)]
    again = some.train.batches(itertools.cycle(index), **options)
    assert all(torch.equal(next(again)[0], image) for image in images)
    again.close()
    with pytest.raises(DataError, match="augment is on"):
        part_of(load("digits", cifar_binary), 5, None, None).train.batches([], augment=True)


def test_part_of_images_decoded_by_workers(folders):
    some = part_of(load("imagefolder", folders, size=16), 2, 5, None).train
    index = [np.array([k % 5, (3 * k) % 5]) for k in range(4)]
    alone, helped = (list(some.batches(index, augment=True, workers=workers)) for workers in (0, 2))
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_part_in_shards(tmp_path, alpha):
    some = part_of(load("digits", tmp_path), 4, 200, None).train
    parts = shards(some.labels, 4, alpha=alpha)
    assert sorted(np.concatenate(parts)) == list(range(200))


class Die:
    """A sample number whose arrival ends the worker."""

    def __reduce__(self):
        return os._exit, (3,)


def test_imagefolder_dead_worker_is_an_error(folders, monkeypatch):
    monkeypatch.setattr(imagefolder, "TIMEOUT", 4)
    split = load("imagefolder", folders, size=16).train
    with pytest.raises(DataError, match="imagefolder: decoding stopped: .*worker"):
        list(split.batches([Die()], workers=1))


ENDLESS = """
import itertools, multiprocessing, sys, time
import numpy as np
from grsgd.data import load
if __name__ == "__main__":
    batches = load("imagefolder", sys.argv[1], size=16).train.batches(itertools.repeat(np.arange(4)), workers=2)
    next(batches)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


@pytest.mark.exhaustive
def test_imagefolder_workers_end_with_a_killed_trainer(folders):
    script = folders / "endless.py"
    script.write_text(ENDLESS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(folders)]
    quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with subprocess.Popen(command, env=environment, **quiet) as run:
        try:
            workers = [int(pid) for pid in run.stdout.readline().split()]
        finally:
            run.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_imagefolder_centre(tmp_path):
    """Of 64x32 pixels, the 28x28 in the middle are kept."""
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[2:30, 18:46] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (imagefolder.decode(tmp_path / "a.png", 28, None) == 200).all()


@pytest.mark.parametrize("size", [(64, 48), (1, 1), (1000, 3), (3, 1000)])
def test_random_box_lies_inside(size):
    rng = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = imagefolder.random_box(*size, rng)
        assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]


def test_imagefolder_wrong_layout(folders):
    (folders / "val" / "digit9").mkdir()
    assert "differ in class digit9" in refused("imagefolder", folders)
    (folders / "val" / "digit9").rmdir()
    for path in (folders / "train" / "digit2").iterdir():
        path.rename(path.with_suffix(".txt"))
    assert "digit2: no images" in refused("imagefolder", folders)
    shutil.rmtree(folders / "train")
    (folders / "train").mkdir()
    assert "no class folders" in refused("imagefolder", folders)
    assert "size is 0" in refused("imagefolder", folders, size=0)
