"""Memory that the ranks of one host share. The shared memory has one row per rank, and all ranks of the host can read
and write all rows.

The shared memory is a file that all ranks of the host map into their address spaces. The file is deleted from its
folder when all ranks have mapped it, so that no file is left even if ranks are killed. The shared memory is freed when
no array uses it any more. The MPI function ``MPI_Win_allocate_shared`` also makes shared memory, but this module does
not use it for two reasons. The first reason is that ``MPI_Win_allocate_shared`` blocks until all ranks have called the
function, and a schedule must not block. The second reason is that MPI frees its shared memory even if arrays still use
the memory.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
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
"""Number of bytes of a line of the processor's cache, the unit in which cores exchange memory contents. Numbers that
different ranks write are placed in different cache lines, so that the writes of one rank do not slow down another
rank."""
FIELDS = LINE_BYTES // 8
BETWEEN_ROWS_BYTES = PAGE + 9 * LINE_BYTES
"""Number of unused bytes between the rows of two ranks in shared memory. Without unused bytes, rows would begin at
multiples of a power of two, and equal positions of all rows would compete for one place in the cache."""
TELLING_BYTES = 1024
ALLOWED = "ring, halving-doubling, tree, swing, bine, mpi"


class NoSharedMemory(ConfigError):
    """Error raised if the ranks of an all-reduce cannot share memory. The message of `NoSharedMemory` contains the
    reason, and the variants of the all-reduce that work without shared memory. All ranks raise `NoSharedMemory` with
    the same message."""

    def __init__(self, why: str):
        self.why = why
        super().__init__(f"all-reduce through shared memory: {why}; allowed: variant = {ALLOWED}")


class SharedMemory:
    """Memory that all ranks of one host have mapped from one file.

    Parameters
    ----------
    mapped
        The mapped file, `total_bytes` long.
    rank
        Number of this rank.
    ranks
        Number of ranks that share the memory.
    nbytes
        Length in bytes of the row of each rank.
    """

    def __init__(self, mapped: mmap.mmap, rank: int, ranks: int, nbytes: int):
        self.rank, self.ranks, self.nbytes = rank, ranks, nbytes
        content = np.frombuffer(mapped, np.uint8)
        self.flags = content[: LINE_BYTES * ranks].view(np.int64).reshape(ranks, FIELDS)
        """Numbers by which ranks tell each other their progress: int64 of shape [ranks, 8], one row per writing rank,
        initially zeros."""
        self._content = content[header_bytes(ranks) :]
        self._rows: dict = {}
        begin, _ = row_of(rank, ranks, nbytes)
        self._address = content.ctypes.data + begin

    def rows(self, dtype) -> np.ndarray:
        """Return a view of the rows of all ranks as numbers of ``dtype``: shape [ranks, elements]. In each row, only
        the first ``nbytes`` bytes may be used."""
        if dtype not in self._rows:
            self._rows[dtype] = self._content.reshape(self.ranks, -1).view(dtype)
        return self._rows[dtype]

    def place_of(self, x: np.ndarray) -> int | None:
        """Return the position, in bytes from the begin of this rank's row, at which the array ``x`` begins, or None if
        ``x`` is not in the row."""
        place = x.__array_interface__["data"][0] - self._address
        return place if 0 <= place <= self.nbytes - x.nbytes else None


def header_bytes(ranks: int) -> int:
    """Return the length in bytes of the attribute ``flags`` of a `SharedMemory`, rounded up to whole memory pages."""
    return round_up(LINE_BYTES * ranks, PAGE)


def row_of(rank: int, ranks: int, nbytes: int) -> tuple[int, int]:
    """Return the positions (begin, end) of the row of ``rank`` in the mapped file, in bytes. The returned end is the
    position at which the row of the next rank begins."""
    length = round_up(nbytes, PAGE) + BETWEEN_ROWS_BYTES
    begin = header_bytes(ranks) + rank * length
    return begin, begin + length


def total_bytes(ranks: int, nbytes: int) -> int:
    """Return the length in bytes of the file that contains ``ranks`` rows of ``nbytes`` bytes."""
    return row_of(ranks - 1, ranks, nbytes)[1]


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def allocate(comm: Communicator, nbytes: int, tag: int):
    """Generator (schedule), run on all ranks at once, that returns a new `SharedMemory` with a row of ``nbytes`` bytes
    per rank, all zeros.

    The messages of this schedule are not counted as traffic of the run. Raises NoSharedMemory on all ranks if rank 0
    cannot make the file, or if some rank cannot map the file.
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
    """Generator (schedule), run on rank 0, that makes a file, waits until all ranks have mapped the file, and returns a
    `SharedMemory` of the file."""
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
    """Map the file whose path rank 0 has sent in the dictionary ``told``. Return a pair: a `SharedMemory` of the file,
    and an empty text. If the file cannot be mapped, return the pair of None and the reason as text."""
    me = comm.members[comm.rank]
    if told["host"] != host():
        return None, f"ranks {comm.members[0]} and {me} are on different hosts, which share no memory"
    begin, end = row_of(comm.rank, comm.size, nbytes)
    try:
        with open(told["path"], "r+b") as file:
            # reserve the memory now, because a later write might otherwise fail with a bus error
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), begin if comm.rank else 0, end - (begin if comm.rank else 0))
            mapped = mmap.mmap(file.fileno(), total_bytes(comm.size, nbytes))
    except OSError as error:
        wanted = human_bytes(total_bytes(comm.size, nbytes))
        return None, f"{wanted} of shared memory in {folder()}, rank {me}: {error.strerror}"
    return SharedMemory(mapped, comm.rank, comm.size, nbytes), ""


def checked(memory: SharedMemory | None, problems: np.ndarray) -> SharedMemory:
    """If the text in ``problems`` is empty, return ``memory``, because all ranks have mapped the file. If the text is
    not empty, some rank has failed: raise NoSharedMemory with the text."""
    if why := text_of(problems):
        raise NoSharedMemory(why)
    return memory


def folder() -> str:
    """Return the path of a folder whose files are kept in memory. If the operating system has no folder in memory,
    return the folder for temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def host() -> str:
    """Return a text that identifies this host and its last boot. The name of the host alone is not enough, because two
    hosts may have the same name."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {boot}"


def text_array(text: str) -> np.ndarray:
    """Return ``text`` as an array of bytes of fixed length, cut off or padded with zeros: uint8 of shape
    [`TELLING_BYTES`]."""
    array = np.zeros(TELLING_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:TELLING_BYTES], np.uint8)
    array[: encoded.size] = encoded
    return array


def text_of(array: np.ndarray) -> str:
    return array.tobytes().rstrip(b"\0").decode(errors="replace")


def uncounted(comm: Communicator) -> Communicator:
    """Return a communicator of the same ranks as ``comm`` whose messages are not counted as traffic of the
    algorithm."""
    return Communicator(comm.backend, comm.members)


def about_memory(message: Message) -> Message:
    """Set the subject of ``message`` to "shared memory", so that the error raised after too long a wait names the
    subject. Return ``message``."""
    message.subject = "shared memory"
    return message
