"""Copying of arrays, tensors and other attributes for saving, and restoring them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat, host_array, host_tensor

torch = LazyModule("torch")


class Copies:
    """Memory for copies of arrays, which the next copies use again. New memory costs a page fault per 4 KiB, and the
    faults take ten times as long as the copy."""

    def __init__(self):
        self._made: list[np.ndarray] = []
        self._free: list[np.ndarray] = []

    def begin(self):
        """Begin new copies in the memory of all earlier copies, which are not used any more."""
        self._free, self._made = self._made, []

    @property
    def nbytes(self) -> int:
        """Number of bytes of the copies since the last call of `begin`."""
        return sum(copy.nbytes for copy in self._made)

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of an array."""
        kind = array.shape, array.dtype
        place = next((place for place, free in enumerate(self._free) if (free.shape, free.dtype) == kind), None)
        copy = np.empty(*kind) if place is None else self._free.pop(place)
        np.copyto(copy, array)
        self._made.append(copy)
        return copy


def array_of(value: Flat | torch.Tensor, copied: Callable = np.ndarray.copy) -> np.ndarray:
    """Return a copy of a tensor as a NumPy array in host memory. ``copied(array)`` returns a copy of an array."""
    tensor = value.tensor if isinstance(value, Flat) else value
    return copied(host_array(tensor.detach().cpu()))


def value_of(value, copied: Callable = np.ndarray.copy):
    """Return a copy of ``value``: of an array or tensor as a NumPy array, and of any other value in a form that JSON
    can hold. ``copied(array)`` returns a copy of an array."""
    if isinstance(value, Flat | torch.Tensor):
        return array_of(value, copied)
    if isinstance(value, np.ndarray):
        return copied(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def fill(into: Flat | torch.Tensor, content: np.ndarray):
    """Copy an array into a tensor of the same shape; raises ValueError for another shape."""
    tensor = into.tensor if isinstance(into, Flat) else into
    if tensor.shape != content.shape:
        raise ValueError(f"an array of shape {list(content.shape)} for a tensor of shape {list(tensor.shape)}")
    tensor.copy_(host_tensor(content))


def set_value(owner, name: str, value):
    """Set an attribute to a value that `value_of` has returned. An array or tensor keeps its memory, into which the
    value is copied."""
    now = getattr(owner, name)
    if isinstance(now, Flat | torch.Tensor):
        fill(now, value)
    elif isinstance(now, np.ndarray):
        if now.shape != np.shape(value):
            raise ValueError(f"{name}: saved with the shape {list(np.shape(value))}, but {list(now.shape)} is needed")
        now[...] = value
    elif isinstance(now, tuple):
        setattr(owner, name, type(now)(*value))
    else:
        setattr(owner, name, value)
