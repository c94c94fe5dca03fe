"""Test of the folder in which run files are written: whether files can be written and locked, and how long writing
takes."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from grsgd.doctor.bounded import in_child
from grsgd.doctor.findings import Finding
from grsgd.runs.numbers import human_bytes

GROUP = "output folder"
SECONDS = 5.0
"""Seconds that the test of the folder for run files may take."""
WRITTEN_BYTES = 2**20
"""Size in bytes of the test file that is written, read and deleted."""
MIN_FREE_BYTES = 100 * 2**20
SLOW_SECONDS = 2.0
"""If writing the test file takes more seconds than this number, the folder counts as slow."""


class FolderFacts(NamedTuple):
    """Result of a test of the folder for run files."""

    folder: str
    file_system: str
    free: int
    seconds: float
    """Seconds in which a file of `WRITTEN_BYTES` bytes was written to the disk, renamed and read."""
    locks: str
    """Reason why files in the folder cannot be locked; "" if they can be locked."""
    error: str = ""
    """Reason why the folder cannot be used; "" if it can be used."""


def facts(folder: Path, seconds: float = SECONDS) -> FolderFacts:
    """Test ``folder``, or its nearest existing parent, in a child process, and return the result. The test is given up
    after ``seconds``."""
    try:
        return in_child(trial, seconds, folder)
    except (TimeoutError, RuntimeError) as error:
        return FolderFacts(str(folder), "unknown", 0, 0.0, "", str(error))


def trial(folder: Path) -> FolderFacts:
    """Write, rename, read, lock and delete a test file in ``folder``, and return the result."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    kind, free = file_system(folder), shutil.disk_usage(folder).free
    begin = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix=".grsgd-doctor-", dir=folder) as inside:
            first, second = Path(inside) / "part", Path(inside) / "whole"
            with open(first, "wb") as file:
                file.write(bytes(WRITTEN_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.replace(first, second)
            is_whole = len(second.read_bytes()) == WRITTEN_BYTES
            seconds = time.perf_counter() - begin
            locks = why_unlocked(second)
    except OSError as error:
        return FolderFacts(str(folder), kind, free, 0.0, "", error.strerror or str(error))
    return FolderFacts(str(folder), kind, free, seconds, locks, "" if is_whole else "a file was read as not written")


def why_unlocked(path: Path) -> str:
    """Return the reason why the file ``path`` cannot be locked. Return "" if a lock works: a second lock of the file is
    refused."""
    with open(path) as mine, open(path) as other:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.strerror or str(error)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ""
        return "two openers of a file held its lock at once"


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system of ``folder``, such as "nfs4"; "unknown" if the system does not list its file
    systems."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return "unknown"
    folder = folder.resolve()
    points = [(len(point), kind) for _, point, kind, *_ in lines if folder.is_relative_to(point)]
    return max(points)[1] if points else "unknown"


def findings(found: FolderFacts) -> list[Finding]:
    """Return the findings about the folder in which rank 0 writes run files."""
    where = f"{found.folder} ({found.file_system})"
    if found.error:
        remedy = "give another folder with --out; `grsgd doctor --output FOLDER` tries that folder"
        return [Finding(GROUP, "folder", f"{where}: {found.error}", remedy)]
    full = "make room in the folder, or give another folder" if found.free < MIN_FREE_BYTES else ""
    slow = found.seconds > SLOW_SECONDS
    return [
        Finding(GROUP, "folder", where),
        Finding(GROUP, "free", human_bytes(found.free), full),
        Finding(
            GROUP,
            "writing",
            f"{human_bytes(WRITTEN_BYTES)} in {found.seconds:.2g} s",
            "write run files to a local disk, and copy them after the run, as slurm/job.sh does" if slow else "",
        ),
        Finding(
            GROUP,
            "locks",
            found.locks or "work",
            "set HDF5_USE_FILE_LOCKING=FALSE, and let no two jobs write one run file or fetch one data set at once"
            if found.locks
            else "",
        ),
    ]
