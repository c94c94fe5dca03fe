"""Messages between the workers and servers of a parameter server, except gradients and models."""

from enum import IntEnum
from typing import NamedTuple

from grsgd.comm.records import Int32, Int64


class Word(IntEnum):
    """Meaning of a `Push` message, and of the message that the worker sends next."""

    GOES_ON = 0
    """The worker's next message is its gradient, and the worker waits for the server's answer."""
    FINISHED = 1
    """The worker has ended its training and sends no further `Push`."""
    RESTS = 2
    """The worker sends no further `Push` until a checkpoint has been made."""
    SETTINGS = 3
    """The worker's next message is the pickled settings of its optimizer, for the worker's later gradients. The server
    sends no answer to settings."""


class Push(NamedTuple):
    """Message that a worker sends to a server before a gradient, a model or settings, or at the end of its training.

    ``steps`` is the number of steps that led to the gradient or model in the next message. In a worker's last message,
    ``steps`` is the number of local steps that the worker has not pushed yet. If the next message is settings,
    ``steps`` is the number of bytes of the settings.
    """

    word: Int32
    steps: Int32


class Answer(NamedTuple):
    """Message that a server sends to a worker just before it sends the model.

    ``is_evicted`` is 1 if the server has excluded the worker from the run, else 0. ``applied`` is the number of
    gradients that the server has applied to the model.
    """

    is_evicted: Int64
    applied: Int64
