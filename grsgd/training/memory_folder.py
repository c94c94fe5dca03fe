"""Folder in the memory of a host, for the checkpoints of one job (``--memory``).

``/dev/shm/grsgd-1000-5f3a91c2-node7/samples-000000012800/rank-0003.ckpt`` is an example of a file in this folder, with
the state of rank 3. The name of the job's folder has the user's number, the job's id, and the host's name. The folder
stays in memory when the processes of the ranks end. So a job that is started again finds the states of its ranks. A
later job of the user removes the folders of dead jobs.
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
"""Folder of Linux whose files are in memory. By default a job creates its own folder in /dev/shm."""
LOCK_SECONDS = 15.0
"""Largest number of seconds that a job waits at its first start for the lock of its folder in memory."""
LEFT_SECONDS = 180.0
"""Seconds after which a job counts as dead if none of its processes has touched the lock file of the job's folder. A
failed job is usually started again sooner than after `LEFT_SECONDS` seconds."""
TOUCH_SECONDS = 5.0
"""Seconds between two calls of `touch`, by which a job shows that it lives."""
COPIES = 2
"""Number of checkpoints that must fit into a folder in memory: the last whole checkpoint, and the incomplete checkpoint
that is being written."""


class Neighbours(NamedTuple):
    """Ranks to which a rank sends its state for checkpoints in memory, and from which it receives states.

    ``to`` is the rank on the next host that stores this rank's state; None if all ranks are on one host. ``sources``
    are the ranks on the previous host whose states this rank stores. ``leads`` says whether this rank is the lowest
    rank on its host. ``states`` is the number of ranks' states that this host stores for one whole checkpoint.
    """

    to: int | None
    sources: tuple[int, ...]
    leads: bool
    states: int

    @classmethod
    def of(cls, rank: int, hosts: list[str]) -> "Neighbours":
        """Return the `Neighbours` of the rank ``rank``. ``hosts`` has the host name of every rank. The hosts form a
        ring, in the order of their lowest ranks. Each host stores the states of its own ranks and of the ranks on the
        previous host."""
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
    """Return the path below ``base`` of the folder in memory of the job ``job`` on the host ``host``."""
    return base / f"{_prefix()}{job}-{re.sub(r'[^A-Za-z0-9.-]', '-', host)[:100]}"


def take(folder: Path, seconds: float = LOCK_SECONDS) -> IO:
    """Create ``folder``, the folder in memory of a job, if it does not exist, and lock the folder. Return the open lock
    file of the folder. The lock is released when the returned file is closed or this process ends.

    Raises ConfigError if the folder belongs to another user or cannot be created. Raises ConfigError if another process
    of the same job still holds the lock after ``seconds`` seconds.
    """
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
    """Remove the folders in ``base`` of this user's dead jobs, except the folder of ``job``. A job counts as dead if no
    process holds the lock of its folder, and the last `touch` was at least `LEFT_SECONDS` ago."""
    for folder in base.glob(f"{_prefix()}*"):
        with suppress(OSError, TimeoutError):
            found = folder.lstat()
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not is_own or folder.name.startswith(f"{_prefix()}{job}-") or _age(folder) < LEFT_SECONDS:
                continue
            with exclusive_lock(folder / LOCK, 0):
                shutil.rmtree(folder, ignore_errors=True)


def touch(folder: Path):
    """Show other jobs that the job of ``folder`` lives, by setting the modification time of the folder's lock file."""
    with suppress(OSError):
        os.utime(folder / LOCK)


def headers(folder: Path) -> list[Header]:
    """Return the headers of all ranks' checkpoint files in a job's folder, except files whose header cannot be read."""
    found = []
    for place in folder.glob("samples-*"):
        for path in place.glob("rank-*.ckpt") if SAMPLES.fullmatch(place.name) else ():
            with suppress(RunFileError):
                header = read_header(path)
                if path == folder / name_of(header.samples) / file_of(header.rank):
                    found.append(header)
    return found


def remove_except(folder: Path, keep: set[str]):
    """Remove all checkpoints in a job's folder in memory, except the checkpoints whose names are in ``keep``."""
    for place in folder.glob("samples-*"):
        if place.name not in keep:
            shutil.rmtree(place, ignore_errors=True)


def remove(folder: Path):
    """Remove a folder and all files in it. Errors are ignored."""
    shutil.rmtree(folder, ignore_errors=True)


def removal(base: Path, job: str) -> list[str]:
    """Return the command, as a list of words, that removes the folders of the job ``job`` on the host where it is
    run."""
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
    """Return the number of bytes that can still be written to ``folder``, a folder in memory."""
    return min(shutil.disk_usage(folder).free, available())


def too_small(needed: int, free: int) -> str:
    """Return the end of an error message about a folder in memory that is too small, with advice for the user."""
    return (
        f"the states of this host's ranks and of their neighbours need {human_bytes(needed)}, and {human_bytes(free)} "
        "are free: enlarge the folder, name another folder in memory with --memory-folder, or leave out --memory"
    )


def _prefix() -> str:
    return f"grsgd-{os.geteuid()}-"


def _age(folder: Path) -> float:
    """Return the seconds since the last change of a job's folder or of its lock file."""
    marks = [path for path in (folder, folder / LOCK) if path.exists()]
    return time.time() - max(path.lstat().st_mtime for path in marks)
