"""Format of one rank's file in a checkpoint: a header line that includes the file's digest, and arrays after this line.

The header line fills the first 512 bytes of a checkpoint file. After the header line, the file has arrays as
`numpy.save` writes them. The first array is a JSON text with all values of the rank's state that are not arrays, and
with placeholders for the arrays. HDF5 is not used, because HDF5 ends the process if the disk is full. `read` checks the
digest before it parses any content, so it raises an error for every damaged file.
"""

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, read_array, write_array_header_1_0

from grsgd.errors import RunFileError

FORMAT = 2
"""Version number of the format of checkpoint files. A checkpoint file with another version number is refused."""
KIND = "checkpoint of grsgd"
BLOCK = 512
"""Length in bytes of the header line at the beginning of a checkpoint file. The header line of a checkpoint file is
filled up with spaces to `BLOCK` bytes."""
CHUNK = 2**20
"""Number of bytes that are read or written at once while the file's digest is computed."""
ONE_READER = threading.Lock()
"""Lock that lets only one thread at a time read arrays. Numpy parses the headers of arrays with `ast`, which fails if
several threads of Python 3.11 call it at once."""
PLACE = "an array of this file"
"""Placeholder in the JSON text for an array that follows the JSON text in the file."""


@dataclass(frozen=True)
class Header:
    """Header of a checkpoint file. The file has the state of ``rank``, one of ``ranks`` ranks, in the checkpoint
    ``id``.

    The checkpoint was taken after all ranks together had processed ``samples`` samples. The random ``id`` of a
    checkpoint is the same in the files of all ranks.
    """

    id: str
    samples: int
    ranks: int
    rank: int


def write(path: Path, header: Header, state: dict, config: str):
    """Write a checkpoint file with the configuration and a rank's state. The state of a rank is a tree of dicts whose
    leaves are arrays and values that JSON can hold.

    Raises OSError if the file cannot be written. Raises TypeError or ValueError for a value that a checkpoint file
    cannot hold.
    """
    with open(path, "wb") as file:
        file.write(bytes(BLOCK))
        arrays: list[np.ndarray] = []
        text = json.dumps({"state": _without_arrays(state, arrays), "config": config}).encode()
        digest = hashlib.sha256(_line(header, ""))
        for array in (np.frombuffer(text, np.uint8), *arrays):
            for part in _parts(array):
                digest.update(part)
                file.write(part)
        file.seek(0)
        file.write(_line(header, digest.hexdigest()))


def read(path: Path) -> tuple[Header, dict, str]:
    """Return the header, the state and the configuration in the file ``path``, which `write` has written. Raises
    RunFileError for a file that `write` has not written, or that was changed later."""
    header = read_header(path)
    try:
        with open(path, "rb") as file, ONE_READER:
            if file.read(BLOCK) != _line(header, _digest(header, file)):
                raise RunFileError(f"{path}: damaged: its digest differs")
            file.seek(BLOCK)
            content = json.loads(read_array(file, allow_pickle=False).tobytes())
            return header, _with_arrays(content["state"], file), content["config"]
    except RunFileError:
        raise
    except Exception as error:  # a file with a correct digest may still have any content
        raise RunFileError(f"{path}: cannot be read: {_reason(error)}") from None


def verify(path: Path) -> Header:
    """Return the header of a checkpoint file. Raises RunFileError if the file's digest is wrong, or if the file cannot
    be read."""
    header = read_header(path)
    try:
        with open(path, "rb") as file:
            if file.read(BLOCK) == _line(header, _digest(header, file)):
                return header
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror or error}") from None
    raise RunFileError(f"{path}: damaged: its digest differs")


def read_header(path: Path) -> Header:
    """Return the header of a checkpoint file, without a check of the digest. Raises RunFileError if the file has no
    valid header."""
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
        raise RunFileError(f"{path}: {kind!r} of format {number!r}, but this version reads format {FORMAT}"[:300])
    return header


def check(tree: dict):
    """Raise TypeError or ValueError if ``tree`` has a value that a checkpoint file cannot hold. The error message has
    the keys that lead to the value in ``tree``."""
    _without_arrays(tree, [])


def _without_arrays(tree: dict, arrays: list[np.ndarray], where: str = "") -> dict:
    """Return a copy of ``tree`` with `PLACE` instead of each array. Append the arrays that `PLACE` replaces to
    ``arrays``."""
    copy = {}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise TypeError(f"{where}: {name!r}: keys must be text")
        if isinstance(value, dict):
            value = _without_arrays(value, arrays, f"{where}/{name}")
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise TypeError(f"{where}/{name}: an array of objects")
            arrays.append(value)
            value = PLACE
        else:
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{where}/{name}: {error}") from None
        copy[name] = value
    return copy


def _with_arrays(tree: dict, file) -> dict:
    """Return a copy of ``tree`` in which each placeholder `PLACE` is replaced by the next array in ``file``."""
    return {
        name: _with_arrays(value, file)
        if isinstance(value, dict)
        else read_array(file, allow_pickle=False)
        if value == PLACE
        else value
        for name, value in tree.items()
    }


def _parts(array: np.ndarray) -> Iterator[bytes | memoryview]:
    """Yield the bytes that `numpy.save` writes for an array, in pieces of at most `CHUNK` bytes. Each piece stays in
    the processor's cache while its digest is computed and while it is written."""
    array = array if array.flags.c_contiguous else array.copy()
    about = BytesIO()
    write_array_header_1_0(about, header_data_from_array_1_0(array))
    yield about.getvalue()
    content = array.reshape(-1).view(np.uint8)
    for begin in range(0, content.size, CHUNK):
        yield content[begin : begin + CHUNK].data


def _line(header: Header, digest: str) -> bytes:
    content = {"kind": KIND, "format": FORMAT} | asdict(header) | {"sha256": digest}
    return json.dumps(content).encode().ljust(BLOCK - 1) + b"\n"


def _digest(header: Header, file) -> str:
    """Return the digest of ``header`` and of all bytes after the first `BLOCK` bytes of the open file ``file``."""
    digest = hashlib.sha256(_line(header, ""))
    file.seek(BLOCK)
    while part := file.read(CHUNK):
        digest.update(part)
    return digest.hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
