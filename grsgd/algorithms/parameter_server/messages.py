"""Messages of workers and servers beside gradients and models."""

from enum import IntEnum
from typing import NamedTuple

from grsgd.comm.records import Int32, Int64


class Word(IntEnum):
    """Meaning of a `Push`, and so of the message that follows."""

    GOES_ON = 0
    """The worker's gradient; the worker waits for the answer."""
    FINISHED = 1
    """Nothing: the worker has ended its training."""
    RESTS = 2
    """Nothing before a checkpoint has been made."""


class Push(NamedTuple):
    """A worker's message to a server. steps: that have led to what follows; of the last word, those not pushed yet."""

    word: Int32
    steps: Int32


class Answer(NamedTuple):
    """A server's message before the model that it answers with.

    is_evicted: whether the server has given up the worker. applied: gradients that are in the model.
    """

    is_evicted: Int64
    applied: Int64
