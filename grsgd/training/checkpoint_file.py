"""The file of one rank's part of a checkpoint: a line that says which part it is, with a digest of all, then HDF5.

The line fills the block that HDF5 leaves to users at the beginning of a file. Nothing behind it is interpreted before
the digest is found to be right, so a damaged file is refused, whatever is damaged.
"""

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import h5py
import numpy as np

from grsgd.errors import RunFileError
from grsgd.runs.hdf5 import Reader
from grsgd.runs.trial import try_reading

FORMAT = 2
"""Number of the format; another one is refused."""
KIND = "checkpoint of grsgd"
BLOCK = 512
"""Bytes of the line with which a file begins, spaces included."""
CHUNK = 2**20
"""Elements of an array that are written at once, and bytes that are read at once: in between the training goes on."""


@dataclass(frozen=True)
class Header:
    """What a file is: ``rank``'s part, of ``ranks``, of the checkpoint ``id`` that was taken after ``samples`` samples
    of all ranks. The id is random, and the same in all parts of one checkpoint."""

    id: str
    samples: int
    ranks: int
    rank: int


def write(path: Path, header: Header, state: dict, config: str):
    """Write a state: HDF5 groups and datasets for its arrays, one JSON text for all else, and the configuration.

    Raises OSError, RuntimeError (of HDF5), and TypeError for a value that JSON cannot hold.
    """
    values: dict = {}
    with h5py.File(path, "w", userblock_size=BLOCK) as file:
        _put(file, values, state)
        for name, text in (("values", json.dumps(values)), ("config", config)):
            file[name] = np.frombuffer(text.encode(), np.uint8)
    with open(path, "r+b") as file:
        digest = _digest(header, file)
        file.seek(0)
        file.write(_line(header, digest))


def read(path: Path) -> tuple[Header, dict, str]:
    """Return what `write` was given; raises RunFileError for any file that `write` has not left like this."""
    header = read_header(path)
    try:
        with open(path, "rb") as file:
            block = file.read(BLOCK)
            if block != _line(header, _digest(header, file)):
                raise RunFileError(f"{path}: damaged: its digest is another one")
        try_reading(path)  # a stranger's digest may be right
        with h5py.File(path, "r") as file:
            _, tree = Reader(file, path.stat().st_size).tree()
        values, config = (tree.pop(name).tobytes().decode() for name in ("values", "config"))
        return header, merged(tree, json.loads(values)), config
    except RunFileError:
        raise
    except Exception as error:  # HDF5 and its reader raise any
        raise RunFileError(f"{path}: cannot be read: {_reason(error)}") from None


def read_header(path: Path) -> Header:
    """Return what a file says that it is, which is not checked; raises RunFileError."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunFileError(f"{path}: not a file")
            block = file.read(BLOCK)
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror or error}") from None
    try:
        content = json.loads(block)
        kind, number = content["kind"], content["format"]
        header = Header(**{field.name: field.type(content[field.name]) for field in fields(Header)})
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise RunFileError(f"{path}: not a checkpoint of format {FORMAT}, or a damaged one") from None
    if (kind, number) != (KIND, FORMAT):
        raise RunFileError(f"{path}: {kind!r} of format {number!r}, this version reads format {FORMAT}"[:300])
    return header


def merged(arrays: dict, values: dict) -> dict:
    """Return the tree of both."""
    both = dict(values)
    for name, value in arrays.items():
        both[name] = merged(value, values.get(name, {})) if isinstance(value, dict) else value
    return both


def check(tree: dict):
    """Raise TypeError, naming it, for a value that no file could hold."""
    with h5py.File("nowhere", "w", driver="core", backing_store=False) as file:
        _put(file, {}, tree)


def _put(group: h5py.Group, values: dict, tree: dict):
    for name, value in tree.items():
        if not isinstance(name, str):
            raise TypeError(f"{group.name}: {name!r}: keys must be text")
        if isinstance(value, dict):
            _put(group.require_group(name), values.setdefault(name, {}), value)
        elif isinstance(value, np.ndarray):
            dataset = group.create_dataset(name, value.shape, value.dtype)
            flat = value.reshape(-1)
            if value.ndim != 1:
                dataset[...] = value
                continue
            for begin in range(0, flat.size, CHUNK):
                dataset[begin : begin + CHUNK] = flat[begin : begin + CHUNK]
        else:
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{group.name}/{name}: {error}") from None
            values[name] = value


def _line(header: Header, digest: str) -> bytes:
    content = {"kind": KIND, "format": FORMAT} | asdict(header) | {"sha256": digest}
    return json.dumps(content).encode().ljust(BLOCK - 1) + b"\n"


def _digest(header: Header, file) -> str:
    """Return the digest of the header and of everything in an open file behind the first block."""
    digest = hashlib.sha256(_line(header, ""))
    file.seek(BLOCK)
    while part := file.read(CHUNK):
        digest.update(part)
    return digest.hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
