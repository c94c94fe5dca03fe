"""Signals whose exceptions Python has dropped.

Python drops an exception that a signal handler raises while the callback of a weak reference runs.
"""

import signal

from grsgd.job.ending import ENDING

_seen: list[tuple[int, object]] = []


def remember():
    """Record, from now on, each signal whose handler ends this process with an exception, for `raise_again`."""
    for number in (signal.SIGINT, *ENDING):
        handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, lambda number, frame, handler=handler: _note(number, frame, handler))


def raise_again():
    """Raise the exception of a recorded signal again; it was dropped if this process has continued after the signal."""
    if _seen:
        number, handler = _seen[0]
        handler(number, None)


def _note(number: int, frame, handler):
    _seen.append((number, handler))
    handler(number, frame)
