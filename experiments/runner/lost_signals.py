"""Repeats the exceptions of signal handlers that Python has dropped.

Python drops the exception of a signal handler that runs during the callback of a weak reference.
"""

import signal

from grsgd.job.ending import ENDING

_seen: list[tuple[int, object]] = []


def remember():
    """Record each signal from now on whose handler ends this process by an exception, for `raise_again`."""
    for number in (signal.SIGINT, *ENDING):
        handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, lambda number, frame, handler=handler: _note(number, frame, handler))


def raise_again():
    """Raise the exception of a recorded signal.

    A process that still runs after a signal which should end it has lost the exception of the signal's handler.
    """
    if _seen:
        number, handler = _seen[0]
        handler(number, None)


def _note(number: int, frame, handler):
    _seen.append((number, handler))
    handler(number, frame)
