"""Handlers of the signals SIGINT (Ctrl-C), SIGTERM and SIGUSR1, after which a run saves its measurements, and of
SIGUSR2, which asks for a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager

from grsgd.runs.ending import ASKED_TO_END, INTERRUPTED, TERMINATED

REASONS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGUSR1: ASKED_TO_END}
"""Dictionary from the signal that ended a run to the reason of the run's end. Some launchers, such as Open MPI's, send
SIGTERM to their ranks after Ctrl-C."""

CHECKPOINT = signal.SIGUSR2
"""Signal that asks for a checkpoint. The run goes on after the checkpoint."""

EXIT_CODE = 130
"""Exit code of a run that was ended by a signal of `REASONS`."""
CHECKPOINTED = 75
"""Exit code of a run that took a checkpoint after a signal and ended. The code is EX_TEMPFAIL, by which programs say
that they can be run again."""


class Interruption:
    """Context manager that calls ``on_signal(reason)`` once, in a separate thread, at the first signal of `REASONS` in
    its block.

    ``on_checkpoint()`` is called in the separate thread, too, at each signal `CHECKPOINT` in the block. Without
    ``on_checkpoint`` the signal `CHECKPOINT` is not handled. ``on_signal`` and ``on_checkpoint`` can be replaced in the
    block. A thread is used because some launchers kill their ranks 0.2 s after Ctrl-C, and a Python signal handler
    would run only after the present gradient is computed.
    """

    def __init__(self, on_signal: Callable[[str], None], on_checkpoint: Callable[[], None] | None = None):
        self.on_signal = on_signal
        self.on_checkpoint = on_checkpoint
        self.happened = False

    def __enter__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        numbers = [*REASONS, CHECKPOINT] if self.on_checkpoint else REASONS
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="grsgd-interruption", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        signal.set_wakeup_fd(self._wakeup)
        if not self.happened:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _listen(self):
        while number := os.read(self._read, 1):  # os.read() returns no byte after __exit__ has closed the pipe
            if number[0] in REASONS and not self.happened:
                self.happened = True
                self.on_signal(REASONS[number[0]])
            elif number[0] == CHECKPOINT and self.on_checkpoint:
                self.on_checkpoint()


def raise_interrupt(number: int, frame):
    """Signal handler that raises KeyboardInterrupt with the reason in `REASONS` of the signal ``number``."""
    raise KeyboardInterrupt(REASONS[number])


@contextmanager
def as_exceptions():
    """Run the block so that each signal of `REASONS` raises KeyboardInterrupt, with its reason, in the main thread."""
    handlers = {number: signal.signal(number, raise_interrupt) for number in REASONS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def first_asks(ask: Callable[[str], None]):
    """Run the block, and call ``ask(reason)`` in the main thread at the first signal of `REASONS`. Signals after the
    first signal have the effect that they had before the block."""
    handlers = {}

    def first(number, frame):
        restore()
        ask(REASONS[number])

    def restore():
        while handlers:
            signal.signal(*handlers.popitem())

    handlers.update({number: signal.signal(number, first) for number in REASONS})
    try:
        yield
    finally:
        restore()
