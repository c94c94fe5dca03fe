"""Damaged versions of a file, and the outcome of reading each version, in a process of its own and within limits.

For any content of a file, a reader must return, or must raise a `UsageError` with one line.
"""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from grsgd.errors import UsageError
from grsgd.runs import trial
from tests.support.fuzz import SECTOR, damaged

MEMORY = 2**30
"""Bytes of memory that all readings of one process may use, in addition to the memory of the process before."""
READ, REFUSED = "read", "refused"


def zeroed_sectors(content: bytes, every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield ``content`` with one sector filled with zeros, as after a power cut, for every ``every``-th sector."""
    for at in range(0, len(content), every * SECTOR):
        size = min(SECTOR, len(content) - at)
        yield f"zeros at {at}", content[:at] + bytes(size) + content[at + size :]


def changed(content: bytes, seeds: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield ``content``, damaged by `damaged` with each of ``seeds``."""
    for seed in seeds:
        yield f"seed {seed}", damaged(content, seed)


def read_each(
    cases: Iterable[tuple[str, bytes]], path: Path, read: Callable[[Path], object], seconds: float = 20.0
) -> list[tuple[str, str]]:
    """Read each of the contents in ``cases``, written to ``path``, in child processes. Return a list of (name of the
    content, outcome).

    The outcome is `READ`, `REFUSED`, or the text of a fault. A fault is an error with several lines, a signal, or a
    reading of one content that lasts longer than ``seconds``.
    """
    left, found = list(cases), []
    while left:
        done = _in_child(left, path, read, seconds)
        found += [(name, what) for (name, _), what in zip(left, done, strict=False)]
        left = left[len(done) :]
    return found


def wrong(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs in ``found`` whose outcome is neither `READ` nor `REFUSED`."""
    return [(name, what) for name, what in found if what not in (READ, REFUSED)]


def _in_child(cases: list[tuple[str, bytes]], path: Path, read: Callable, seconds: float) -> list[str]:
    """Return the outcomes of ``cases``, in order. If a case ends or stops the child process, return the outcomes up to
    this case."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _read_all(cases, path, read, writing)
    os.close(writing)
    done, begin = [], time.monotonic()
    with open(reading, "rb", buffering=0) as answers:
        rest = b""
        while len(done) < len(cases):
            if not select.select([answers], [], [], max(begin + seconds - time.monotonic(), 0))[0]:
                done.append(f"no end after {seconds:g} s")
                break
            if not (some := answers.read(2**16)):
                break
            *lines, rest = (rest + some).split(b"\n")
            done += map(json.loads, lines)
            begin = time.monotonic()
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if len(done) < len(cases) and not (done and done[-1].startswith("no end")):
        done.append(f"ended with {os.waitstatus_to_exitcode(status)}")
    return done


def _read_all(cases: list[tuple[str, bytes]], path: Path, read: Callable, writing: int):
    try:
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for _, content in cases:
            path.unlink(missing_ok=True)  # so that the file gets a new inode, because some readers know files by inodes
            path.write_bytes(content)
            os.write(writing, json.dumps(_outcome(read, path)).encode() + b"\n")
        trial.stop()
    finally:
        os._exit(0)


def _outcome(read: Callable, path: Path) -> str:
    try:
        read(path)
    except UsageError as error:
        return REFUSED if "\n" not in str(error) and len(str(error)) < 5000 else f"not one line: {error}"[:500]
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:500]
    return READ
