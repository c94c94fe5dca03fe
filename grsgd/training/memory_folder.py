"""Folder in the memory of a host, for the checkpoints of one job (``--memory``).

``/dev/shm/grsgd-1000-5f3a91c2-node7/samples-000000012800/rank-0003.ckpt`` is the state of rank 3. The folder's name has
the user's number, the id of the job, and the name of the host. The folder outlives the ranks. So no process has to keep
the states: a job that is started again finds them, and a later job removes what dead jobs have left.
"""

import os
import re
import shlex
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from grsgd.errors import ConfigError, RunFileError
from grsgd.files import exclusive_lock
from grsgd.memory import available
from grsgd.runs.numbers import human_bytes
from grsgd.training.checkpoint_file import Header, read_header
from grsgd.training.checkpoint_folder import LOCK, SAMPLES, file_of, name_of

BASE = Path("/dev/shm")
"""Folder in memory on Linux, in which a job makes its folder by default."""
LOCK_SECONDS = 15.0
"""Seconds to wait for the lock of a job's folder at the job's first start."""
LEFT_SECONDS = 180.0
"""Seconds without a sign of a job after which the job counts as dead; a job is started again in less time."""
TOUCH_SECONDS = 5.0
"""Seconds between two signs of a living job."""
COPIES = 2
"""Number of checkpoints for which a folder needs room: the last whole checkpoint, and the next, incomplete one."""


class Neighbours(NamedTuple):
    """Ranks with which a rank exchanges states.

    ``to`` is the rank on the next host that keeps this rank's state; None if all ranks are on one host. ``sources`` are
    the ranks whose states this rank keeps. ``leads`` says whether this rank is the lowest rank on its host. ``states``
    is the number of states that a whole checkpoint has on this host.
    """

    to: int | None
    sources: tuple[int, ...]
    leads: bool
    states: int

    @classmethod
    def of(cls, rank: int, hosts: list[str]) -> "Neighbours":
        """Return the neighbours of ``rank``. ``hosts`` has the host of every rank. The hosts form a ring, in the order
        of their lowest ranks, and each host keeps the states of the host before it."""
        by_host: dict[str, list[int]] = {}
        for other, host in enumerate(hosts):
            by_host.setdefault(host, []).append(other)
        names, to = list(by_host), {}
        for number, name in enumerate(names):
            following = by_host[names[(number + 1) % len(names)]]
            to |= {other: following[place % len(following)] for place, other in enumerate(by_host[name])}
        if len(names) == 1:
            return cls(None, (), by_host[hosts[rank]][0] == rank, len(hosts))
        here = by_host[hosts[rank]]
        sources = tuple(other for other, target in to.items() if target == rank)
        states = len(here) + sum(target in here for target in to.values())
        return cls(to[rank], sources, here[0] == rank, states)


def path_of(base: Path, job: str, host: str) -> Path:
    """Return the folder of a job on a host."""
    return base / f"{_prefix()}{job}-{re.sub(r'[^A-Za-z0-9.-]', '-', host)[:100]}"


def take(folder: Path, seconds: float = LOCK_SECONDS) -> IO:
    """Make a job's folder if it does not exist, and lock it; the lock ends when the returned file is closed or this
    process ends. Raises ConfigError if the folder belongs to another user or cannot be made, or if processes of the
    same job still live after ``seconds`` seconds."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigError(f"--memory: {folder}: belongs to another user: name another folder with --memory-folder")
        lock = exclusive_lock(folder / LOCK, seconds)
        os.utime(folder / LOCK)
        return lock
    except TimeoutError:
        raise ConfigError(f"--memory: {folder}: ranks of this job still live on this host") from None
    except OSError as error:
        raise ConfigError(
            f"--memory: {folder}: {error.strerror or error}: name another folder in memory with --memory-folder"
        ) from None


def remove_remains(base: Path, job: str):
    """Remove the folders of this user's jobs other than ``job`` that no longer live: no process holds the lock of the
    folder, and the last sign of the job is `LEFT_SECONDS` old."""
    for folder in base.glob(f"{_prefix()}*"):
        with suppress(OSError, TimeoutError):
            found = folder.lstat()
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not is_own or folder.name.startswith(f"{_prefix()}{job}-") or _age(folder) < LEFT_SECONDS:
                continue
            with exclusive_lock(folder / LOCK, 0):
                shutil.rmtree(folder, ignore_errors=True)


def touch(folder: Path):
    """Give a sign that the job of a folder lives."""
    with suppress(OSError):
        os.utime(folder / LOCK)


def headers(folder: Path) -> list[Header]:
    """Return the headers of all states in a folder; files without a readable header are left out."""
    found = []
    for place in folder.glob("samples-*"):
        for path in place.glob("rank-*.ckpt") if SAMPLES.fullmatch(place.name) else ():
            with suppress(RunFileError):
                header = read_header(path)
                if path == folder / name_of(header.samples) / file_of(header.rank):
                    found.append(header)
    return found


def remove_except(folder: Path, keep: set[str]):
    """Remove the states in a folder, except the states of the checkpoints whose names are in ``keep``."""
    for place in folder.glob("samples-*"):
        if place.name not in keep:
            shutil.rmtree(place, ignore_errors=True)


def remove(folder: Path):
    """Remove a folder with all its states."""
    shutil.rmtree(folder, ignore_errors=True)


def removal(base: Path, job: str) -> list[str]:
    """Return the words of a program that removes the folders of a job on any host."""
    return ["sh", "-c", f"rm -rf {shlex.quote(str(base.absolute()))}/grsgd-*-{job}-*"]


def size(folder: Path) -> int:
    """Return the number of bytes in the files of a folder and of its subfolders; 0 if the folder does not exist."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process may remove the file
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def room(folder: Path) -> int:
    """Return the number of bytes that can be written to a folder in memory."""
    return min(shutil.disk_usage(folder).free, available())


def too_small(needed: int, free: int) -> str:
    """Return the part of an error message about a folder in memory that is too small, with the remedy."""
    return (
        f"the states of this host's ranks and of their neighbours need {human_bytes(needed)}, and {human_bytes(free)} "
        "are free: enlarge it, name another folder in memory with --memory-folder, or leave out --memory"
    )


def _prefix() -> str:
    return f"grsgd-{os.geteuid()}-"


def _age(folder: Path) -> float:
    """Return the seconds since the last sign of a folder's job."""
    marks = [path for path in (folder, folder / LOCK) if path.exists()]
    return time.time() - max(path.lstat().st_mtime for path in marks)
