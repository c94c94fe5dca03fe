"""Functions for files that other processes may read, write or lock at the same time."""

import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LEFTOVER = re.compile(r"\.grsgd-([0-9]+)-[0-9a-f]{8}\.tmp")
"""Pattern of the name of a temporary file. The name contains the number of the process that writes the file."""
MIN_LEFTOVER_AGE = 3600.0
"""Age in seconds from which a temporary file of a dead process is removed. A younger file may belong to a living
process on another host that shares the folder."""
POLL_SECONDS = 0.02


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield a path for a temporary file in the folder of ``target``. A file at this path is removed after the block."""
    temporary = target.with_name(f".grsgd-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that the block writes. After the block, this file replaces ``target`` as a
    whole.

    If the block raises an error, ``target`` stays unchanged.
    """
    with temporary_beside(target) as temporary:
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)


def places_instead(target: Path) -> Iterator[Path]:
    """Yield further paths for a file that could not be written to ``target``. The paths are in new folders of $TMPDIR,
    of the working directory, of the home directory, and of /dev/shm (memory). A new folder in which the caller has
    written no file is removed."""
    for base in (tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~"), "/dev/shm"):
        with suppress(OSError):
            key = base, os.path.abspath(target)
            if key not in _folders_instead:
                _folders_instead[key] = Path(tempfile.mkdtemp(prefix="grsgd-", dir=base))
            yield _folders_instead[key] / target.name
            _folders_instead[key].rmdir()  # rmdir() fails, as it should, if the folder holds the file
            del _folders_instead[key]


_folders_instead: dict[tuple[str, str], Path] = {}
"""New folder for each pair of base folder and target. A file that is written several times therefore always goes to the
same folder."""


def remove_leftovers(folder: Path):
    """Remove old temporary files in ``folder`` whose processes were killed while writing."""
    for file in folder.glob(".grsgd-*.tmp"):
        with suppress(OSError):
            found = LEFTOVER.fullmatch(file.name)
            if found and time.time() - file.lstat().st_mtime > MIN_LEFTOVER_AGE and not is_alive(int(found[1])):
                file.unlink()


def is_alive(process: int) -> bool:
    """Return whether a process with the number ``process`` exists on this host."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def exclusive_lock(path: Path, timeout: float | None = None, on_wait: Callable[[], None] = lambda: None) -> IO:
    """Open the file ``path`` and lock it, so that no other process can lock this file. The lock ends when the file is
    closed or the process ends.

    On a file system without locks, the file is opened but not locked.

    Parameters
    ----------
    timeout
        Seconds to wait for the lock of another process. None means no limit, and 0 no wait.
    on_wait
        Function that is called once, before waiting, if another process holds the lock.

    Raises
    ------
    TimeoutError
        If another process still holds the lock after ``timeout`` seconds.
    OSError
        If the file cannot be opened. A symbolic link is not opened, because another user may have made the link.
    """
    file = open(path, "a", opener=_no_link)  # noqa: SIM115, the caller closes it
    try:
        _lock(file, timeout, on_wait)
    except BaseException:
        file.close()
        raise
    return file


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _lock(file: IO, timeout: float | None, on_wait: Callable[[], None]):
    begin, waits = time.monotonic(), False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                waits = True
                on_wait()
            if timeout is not None and time.monotonic() - begin >= timeout:
                raise TimeoutError(f"{file.name} is held by another process") from None
            time.sleep(POLL_SECONDS)
        except OSError:  # the file system has no locks
            return None
