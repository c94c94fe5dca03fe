"""Memory that the ranks of one host share. Each rank has a row, and all ranks can read and write all rows.

The memory is a mapped file. The file's name is removed when all ranks have mapped the file, so no file is left however
the ranks end. The memory is freed when no array uses it any more. ``MPI_Win_allocate_shared`` also gives shared memory,
but is not used here for two reasons. The function blocks until all ranks have called it, and a schedule must not block.
MPI also frees the memory of its window while arrays still lie in the window.

A schedule is a generator that yields each object it waits for.
"""

import json
import mmap
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from grsgd.comm.communicator import Communicator, Message
from grsgd.errors import ConfigError
from grsgd.runs.numbers import human_bytes

PAGE = 4096
LINE_BYTES = 64
"""Number of bytes of a line of the processor's cache. Numbers that different ranks write are in different lines, so
that writes do not slow each other down."""
FIELDS = LINE_BYTES // 8
BETWEEN_ROWS_BYTES = PAGE + 9 * LINE_BYTES
"""Number of bytes between two rows. Without this gap, rows would begin at multiples of a power of two and push each
other out of the cache."""
TELLING_BYTES = 1024
ALLOWED = "ring, halving-doubling, tree, swing, bine, mpi"


class NoSharedMemory(ConfigError):
    """Error raised if the ranks cannot share memory. Its message says why, and lists the allowed variants. All ranks
    raise the same error."""

    def __init__(self, why: str):
        self.why = why
        super().__init__(f"all-reduce through shared memory: {why}; allowed: variant = {ALLOWED}")


class SharedMemory:
    """A file that all ranks have mapped.

    Parameters
    ----------
    mapped
        The mapped file, `total_bytes` long.
    rank
        Number of this rank.
    ranks
        Number of ranks; each has a row.
    nbytes
        Length of a row in bytes.
    """

    def __init__(self, mapped: mmap.mmap, rank: int, ranks: int, nbytes: int):
        self.rank, self.ranks, self.nbytes = rank, ranks, nbytes
        content = np.frombuffer(mapped, np.uint8)
        self.flags = content[: LINE_BYTES * ranks].view(np.int64).reshape(ranks, FIELDS)
        """Numbers that each rank writes and the other ranks read: int64 of shape [ranks, 8], initially 0."""
        self._content = content[header_bytes(ranks) :]
        self._rows: dict = {}
        begin, _ = row_of(rank, ranks, nbytes)
        self._address = content.ctypes.data + begin

    def rows(self, dtype) -> np.ndarray:
        """Return all rows as numbers of ``dtype``: shape [rank, element]. Only the first ``nbytes`` bytes of a row are
        used."""
        if dtype not in self._rows:
            self._rows[dtype] = self._content.reshape(self.ranks, -1).view(dtype)
        return self._rows[dtype]

    def place_of(self, x: np.ndarray) -> int | None:
        """Return the byte of this rank's row at which array ``x`` begins; None if ``x`` does not lie in the row."""
        place = x.__array_interface__["data"][0] - self._address
        return place if 0 <= place <= self.nbytes - x.nbytes else None


def header_bytes(ranks: int) -> int:
    """Return the length in bytes of the flags before the rows, rounded up to whole pages."""
    return round_up(LINE_BYTES * ranks, PAGE)


def row_of(rank: int, ranks: int, nbytes: int) -> tuple[int, int]:
    """Return the bytes of the file at which the row of ``rank`` and the next row begin."""
    length = round_up(nbytes, PAGE) + BETWEEN_ROWS_BYTES
    begin = header_bytes(ranks) + rank * length
    return begin, begin + length


def total_bytes(ranks: int, nbytes: int) -> int:
    """Return the length in bytes of a file of ``ranks`` rows of ``nbytes`` bytes."""
    return row_of(ranks - 1, ranks, nbytes)[1]


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def allocate(comm: Communicator, nbytes: int, tag: int):
    """Schedule, called on all ranks, that returns `SharedMemory` with ``nbytes`` bytes per rank, all zeros.

    The messages of this schedule do not count as traffic. Raises NoSharedMemory on all ranks if any rank has no shared
    memory.
    """
    comm = uncounted(comm)
    if comm.rank == 0:
        return (yield from create(comm, nbytes, tag))
    told = np.zeros(TELLING_BYTES, np.uint8)
    yield about_memory(comm.Irecv(told, 0, tag))
    told = json.loads(told.tobytes().rstrip(b"\0"))
    memory, problem = map_row(comm, nbytes, told) if told["path"] else (None, told["problem"])
    problems = text_array(problem)
    yield about_memory(comm.Isend(problems, 0, tag))
    yield about_memory(comm.Irecv(problems, 0, tag))
    return checked(memory, problems)


def create(comm: Communicator, nbytes: int, tag: int):
    """Schedule, called on rank 0, that makes the file, waits until all ranks have mapped it, and returns the
    `SharedMemory`."""
    others = range(1, comm.size)
    path, told = None, {"path": None, "host": host(), "problem": ""}
    memory, problem = None, ""
    try:
        try:
            descriptor, path = tempfile.mkstemp(prefix="grsgd-shared-", dir=folder())
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(total_bytes(comm.size, nbytes))
            told["path"] = path
            memory, problem = map_row(comm, nbytes, told)
        except OSError as error:
            told["problem"] = problem = f"{folder()}: {error.strerror}"
        message = text_array(json.dumps(told))
        replies = [np.zeros(TELLING_BYTES, np.uint8) for _ in others]
        yield [about_memory(comm.Isend(message, rank, tag)) for rank in others]
        yield [about_memory(comm.Irecv(reply, rank, tag)) for rank, reply in zip(others, replies, strict=True)]
    finally:
        if path:
            with suppress(OSError):
                os.unlink(path)
    problems = text_array(next(filter(None, (problem, *map(text_of, replies))), ""))
    yield [about_memory(comm.Isend(problems, rank, tag)) for rank in others]
    return checked(memory, problems)


def map_row(comm: Communicator, nbytes: int, told: dict) -> tuple[SharedMemory | None, str]:
    """Return the memory of the file that rank 0 has named in ``told``, and an empty text. If mapping the file fails,
    return None and the reason."""
    me = comm.members[comm.rank]
    if told["host"] != host():
        return None, f"ranks {comm.members[0]} and {me} are on different hosts, which share no memory"
    begin, end = row_of(comm.rank, comm.size, nbytes)
    try:
        with open(told["path"], "r+b") as file:
            if hasattr(os, "posix_fallocate"):  # otherwise a write might end in a bus error later
                os.posix_fallocate(file.fileno(), begin if comm.rank else 0, end - (begin if comm.rank else 0))
            mapped = mmap.mmap(file.fileno(), total_bytes(comm.size, nbytes))
    except OSError as error:
        wanted = human_bytes(total_bytes(comm.size, nbytes))
        return None, f"{wanted} of shared memory in {folder()}, rank {me}: {error.strerror}"
    return SharedMemory(mapped, comm.rank, comm.size, nbytes), ""


def checked(memory: SharedMemory | None, problems: np.ndarray) -> SharedMemory:
    """Return ``memory`` if all ranks have mapped the file; raises NoSharedMemory otherwise."""
    if why := text_of(problems):
        raise NoSharedMemory(why)
    return memory


def folder() -> str:
    """Return a folder whose files lie in memory; if the system has none, the folder of temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def host() -> str:
    """Return a text that identifies this host and its last boot. The name of the host is not enough, because two hosts
    may have the same name."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {boot}"


def text_array(text: str) -> np.ndarray:
    """Return ``text`` as bytes: uint8 of shape [`TELLING_BYTES`], cut off or padded with zeros."""
    array = np.zeros(TELLING_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:TELLING_BYTES], np.uint8)
    array[: encoded.size] = encoded
    return array


def text_of(array: np.ndarray) -> str:
    return array.tobytes().rstrip(b"\0").decode(errors="replace")


def uncounted(comm: Communicator) -> Communicator:
    """Return a communicator of the same ranks. Messages sent through it do not count as traffic of the algorithm."""
    return Communicator(comm.backend, comm.members)


def about_memory(message: Message) -> Message:
    """Return the message with the subject "shared memory", which a time-out then names."""
    message.subject = "shared memory"
    return message
