"""Messages of workers and servers, except gradients and models."""

from enum import IntEnum
from typing import NamedTuple

from grsgd.comm.records import Int32, Int64


class Word(IntEnum):
    """Meaning of a `Push`, and so of the message that follows it."""

    GOES_ON = 0
    """The worker's gradient follows in the next message, and the worker waits for the server's answer."""
    FINISHED = 1
    """The worker has ended its training and sends no further message."""
    RESTS = 2
    """The worker sends no further message until a checkpoint has been made."""
    SETTINGS = 3
    """The settings of the worker's optimizer follow, pickled, for the worker's next gradients; there is no answer."""


class Push(NamedTuple):
    """Message of a worker to a server.

    ``steps`` is the number of steps that led to the gradient or model in the next message. In a worker's last message,
    ``steps`` is the number of steps that have not been pushed yet.
    Before settings, ``steps`` is the number of their bytes.
    """

    word: Int32
    steps: Int32


class Answer(NamedTuple):
    """Message that a server sends before the model when it answers a worker.

    ``is_evicted`` says whether the server has given up the worker; ``applied`` is the number of gradients in the model.
    """

    is_evicted: Int64
    applied: Int64
