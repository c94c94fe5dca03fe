"""Conversion of records (small NamedTuples of numbers) to messages (arrays of bytes) and back. The annotations of a
NamedTuple's fields determine the dtypes of the fields in the message."""

from functools import lru_cache
from typing import Annotated, get_type_hints

import numpy as np

Int32 = Annotated[int, np.int32]
Int64 = Annotated[int, np.int64]


@lru_cache
def layout(kind: type[tuple]) -> np.dtype:
    """Return the structured dtype of a message that contains one record of type ``kind``: the record's fields, one
    after the other."""
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()])


def empty(kind: type[tuple]) -> np.ndarray:
    """Return memory for a message that contains one record of type ``kind``: uint8 of shape [bytes], all zeros."""
    return np.zeros(layout(kind).itemsize, np.uint8)


def pack(record: tuple) -> np.ndarray:
    """Return a message that contains ``record``: uint8 of shape [bytes]."""
    return np.array([record], layout(type(record))).view(np.uint8)


def unpack(kind: type[tuple], message: np.ndarray) -> tuple:
    """Return the record of type ``kind`` that ``message``, a result of `pack`, contains."""
    return kind(*message.view(layout(kind))[0].item())
