"""Calls of functions that may hang, for example because they read from a broken file system. Each call runs in a child
process, which is killed, but not waited for, after a time limit."""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

CHUNK = 65536


def in_child(function: Callable, seconds: float, *arguments):
    """Return ``function(*arguments)``, called in a forked child process. Raises the function's exceptions as
    RuntimeError.

    Raises TimeoutError if the function does not return within ``seconds``. After ``seconds`` the child process is
    killed and left behind, because even a killed process does not end while it waits for a file system. The child
    process keeps only one file open, the pipe to which it writes the result. A launcher, which waits until its pipes
    are closed, therefore does not wait for a child process that was left behind. `in_child` must be called before MPI
    starts, because a fork after the start of MPI is unsafe.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(writing, function, arguments)
    os.close(writing)
    deadline, text = time.monotonic() + seconds, b""
    try:
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([reading], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                raise TimeoutError(f"no answer within {seconds:g} s")
            chunk = os.read(reading, CHUNK)
            if not chunk:
                break
            text += chunk
    finally:
        os.close(reading)
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("the child process that tried it has ended without an answer")
    result = pickle.loads(text)
    if isinstance(result, BaseException):
        raise result
    return result


def _answer(writing: int, function: Callable, arguments):
    """Write the result of ``function(*arguments)``, or its exception, to the pipe ``writing``, and end this child
    process."""
    with suppress(BaseException):
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        for file in [int(name) for name in os.listdir("/proc/self/fd")]:
            if file > 2 and file != writing:
                with suppress(OSError):  # the file by which listdir has read the folder is closed already
                    os.close(file)
        try:
            text = pickle.dumps(function(*arguments))
        except BaseException as error:
            text = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        while text:
            text = text[os.write(writing, text) :]
    os._exit(0)
