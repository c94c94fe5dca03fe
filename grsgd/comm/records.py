"""Small messages of named numbers: a record is a NamedTuple whose annotations give the dtype of each field."""

from functools import lru_cache
from typing import Annotated, get_type_hints

import numpy as np

Int32 = Annotated[int, np.int32]
Int64 = Annotated[int, np.int64]


@lru_cache
def layout(kind: type[tuple]) -> np.dtype:
    """Return the dtype of a message that holds one record: the fields, one after the other."""
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()])


def empty(kind: type[tuple]) -> np.ndarray:
    """Return memory for a message that holds one record: uint8 of shape [bytes], all zeros."""
    return np.zeros(layout(kind).itemsize, np.uint8)


def pack(record: tuple) -> np.ndarray:
    """Return a message that holds ``record``: uint8 of shape [bytes]."""
    return np.array([record], layout(type(record))).view(np.uint8)


def unpack(kind: type[tuple], message: np.ndarray) -> tuple:
    """Return the record of type ``kind`` in a message that `pack` has made."""
    return kind(*message.view(layout(kind))[0].item())
