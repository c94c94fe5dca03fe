"""Functions that find the file to which a user's path leads, without following other users' symbolic links. Error
messages of these functions have one line."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grsgd.errors import RunFileError
from grsgd.text import printable


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Turn any error in the block into a RunFileError that names ``path``."""
    try:
        yield
    except (OSError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise RunFileError(f"{os.fspath(path)}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Return the text of ``error`` as one line. For an OSError with a number, return the system's text for this
    number."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return printable(str(error))


def target_of(path: str | os.PathLike) -> Path:
    """Return the file to which ``path`` leads through symbolic links. So a link to a run file stays a link if the run
    file is replaced.

    Raises ValueError for a link of another user in a folder to which all users may write, and for a path that is no
    regular file.
    """
    check_links(Path(os.path.abspath(path)))
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise ValueError(f"there is no directory {target.parent}") from None
        return target
    if stat.S_ISDIR(mode):
        raise ValueError("is a directory")
    if not stat.S_ISREG(mode):
        raise ValueError("not a regular file")
    return target


def check_links(path: Path, depth: int = 40) -> None:
    """Raise ValueError if the absolute ``path`` leads through a link of another user in a folder to which all users may
    write."""
    for place in (*reversed(path.parents), path):
        if depth and place.is_symlink():
            folder, link = place.parent.stat(), place.lstat()
            if folder.st_mode & stat.S_IWOTH and link.st_uid not in (os.geteuid(), folder.st_uid):
                raise ValueError(f"{place} is a symbolic link of another user's in a folder where all may write")
            check_links(Path(os.path.abspath(place.parent / os.readlink(place))), depth - 1)


def check_replaceable(target: Path) -> None:
    """Raise ValueError for a file that may be written but not replaced, such as another user's file in /tmp."""
    folder, owner = target.parent.stat(), target.stat().st_uid
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner, folder.st_uid):
        raise ValueError("is another user's file in a folder where only its owner may replace it")


def stamp(path: str | os.PathLike) -> tuple[int, int] | None:
    """Return (inode, time of the last change) of a file, which differs after the file was replaced; None if the file
    does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
