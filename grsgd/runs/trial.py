"""Test whether an HDF5 file can be read, in a separate helper process.

A damaged file can make HDF5 loop, crash, or allocate all memory, and a call of HDF5 cannot be interrupted.

So a helper process, ``python -m grsgd.runs.trial``, first tries to read each file within limits of time and memory. The
helper process is started for the first file, and reads all files one after the other.
"""

import atexit
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import h5py

from grsgd.memory import available
from grsgd.mpi_environment import module
from grsgd.runs.hdf5 import Hdf5Reader

SECONDS = 10.0
"""Seconds of processor time that reading an empty HDF5 file may take. A larger file may take one second more per
`BYTES_PER_SECOND` bytes of its size."""
BYTES_PER_SECOND = 8 * 2**20
MAX_SECONDS = 300.0
BYTES = 2**30
"""Number of bytes of memory that reading an empty HDF5 file may take, in addition to the memory that the helper process
already uses."""
PATIENCE = 600.0
"""Seconds to wait for the helper process's answer about a file. The helper process may get no processor time, or the
file system may not answer."""

_good: set[tuple] = set()
"""Files that could be read, each with its size and the time of its last change when it was read."""
_lock = threading.Lock()
_helper: tuple[int, subprocess.Popen] | None = None
"""PID of the process that has started the helper process, and the helper process. A process that was forked from this
process must start its own helper process."""


def try_reading(path: str | os.PathLike):
    """Raise ValueError, with a message of one line, if an HDF5 file cannot be read within the limits of time and
    memory."""
    with _lock:
        key = _key(path)
        if key in _good:
            return
        size = key[-1]  # a sparse file (whose zeros take no disk space) may have terabytes
        seconds = min(SECONDS + size / BYTES_PER_SECOND, MAX_SECONDS)
        most = min(BYTES + 4 * size, max(available(), 2**27))
        answer = _ask({"path": os.path.abspath(path), "seconds": seconds, "bytes": most})
        if answer:
            raise ValueError(answer)
        _good.add(key)


def is_good(path: str | os.PathLike):
    """Record that the file ``path`` can be read without a test, because this process has written the file."""
    with suppress(OSError):
        _good.add(_key(path))


def _key(path) -> tuple:
    found = os.stat(path)
    return os.path.abspath(path), found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _ask(request: dict) -> str:
    """Return an error message if the helper process cannot read the file in ``request``, else ""."""
    try:
        process = _process()
    except OSError:  # without a helper process the file is not tested
        return ""
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            stop()
            return f"not read after {PATIENCE:g} s: the machine is busy, or its folder does not answer"
        if line := process.stdout.readline():
            return json.loads(line)
    except BaseException:  # end the helper process, whose late answer must not be read as the answer for the next file
        stop()
        raise
    stop()
    if process.returncode == -signal.SIGPROF:
        return f"damaged HDF5 file: reading it does not end ({request['seconds']:.3g} s of processor time)"
    return f"damaged HDF5 file: reading it ends the process ({_name(process.returncode)})"


def _name(ended: int) -> str:
    return signal.Signals(-ended).name if ended < 0 else f"exit code {ended}"


def _process() -> subprocess.Popen:
    global _helper
    if _helper is None or _helper[0] != os.getpid():
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.getenv("PYTHONPATH")])])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # more threads would take more address space, which is limited
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = module("grsgd.runs.trial")
        process = subprocess.Popen(command, env=environment | one_thread, start_new_session=True, **pipes)
        _helper = os.getpid(), process
        atexit.register(stop)
    return _helper[1]


def stop():
    """End the helper process. For the next file a new helper process is started."""
    global _helper
    if _helper is not None and _helper[0] == os.getpid():
        process = _helper[1]
        process.kill()
        process.wait()
        process.stdout.close()
        with suppress(OSError):
            process.stdin.close()
    _helper = None


# ---- functions that run in the helper process


def main():
    """Run the helper process. For each request (a line on stdin) try to read the file, and print an error message or ""
    as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + request["bytes"], hard))
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        answer = wrong_with(request["path"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


def wrong_with(path: str) -> str:
    """Return the reason why the HDF5 file ``path`` cannot be read; "" if it can be read."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            Hdf5Reader(file, os.path.getsize(path)).tree()
    except ValueError as error:
        return str(error)[:4000]
    except MemoryError:
        return "damaged HDF5 file: reading it takes too much memory"
    except Exception as error:  # h5py raises errors of many classes for damaged files
        return f"truncated or damaged HDF5 file: {str(error)[:4000]}"
    return ""


if __name__ == "__main__":
    main()
