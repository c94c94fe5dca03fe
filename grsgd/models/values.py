"""Functions that copy arrays, tensors and other attributes for checkpoints, and restore them from checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat, host_array, host_tensor

torch = LazyModule("torch")


class Copies:
    """Pool of memory for copies of arrays. A new copy uses the memory of an earlier copy that is not needed any more.
    New memory for each copy would cost a page fault per 4 KiB, and these page faults take ten times as long as the
    copying."""

    def __init__(self):
        self._made: list[np.ndarray] = []
        self._free: list[np.ndarray] = []

    def begin(self):
        """Let the following calls of `of` reuse the memory of all copies that were made before this call. The caller
        must not use the copies that were made before this call any more."""
        self._free, self._made = self._made, []

    @property
    def nbytes(self) -> int:
        """Number of bytes of all copies that were made since the last call of `begin`."""
        return sum(copy.nbytes for copy in self._made)

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of ``array``, in the memory of an earlier copy of the same shape and dtype if there is one."""
        kind = array.shape, array.dtype
        place = next((place for place, free in enumerate(self._free) if (free.shape, free.dtype) == kind), None)
        copy = np.empty(*kind) if place is None else self._free.pop(place)
        np.copyto(copy, array)
        self._made.append(copy)
        return copy


def array_of(value: Flat | torch.Tensor, copied: Callable = np.ndarray.copy) -> np.ndarray:
    """Return a copy of a tensor as a NumPy array in host memory. The function ``copied(array)`` makes the copy, by
    default in new memory."""
    tensor = value.tensor if isinstance(value, Flat) else value
    return copied(host_array(tensor.detach().cpu()))


def value_of(value, copied: Callable = np.ndarray.copy):
    """Return a copy of ``value`` that a checkpoint can store. An array or tensor becomes a NumPy array, and any other
    value becomes a value that JSON can hold. The function ``copied(array)`` copies an array, by default to new
    memory."""
    if isinstance(value, Flat | torch.Tensor):
        return array_of(value, copied)
    if isinstance(value, np.ndarray):
        return copied(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def fill(into: Flat | torch.Tensor, content: np.ndarray):
    """Copy the array ``content`` into the tensor ``into``. Raises ValueError if the shapes of ``content`` and ``into``
    differ."""
    tensor = into.tensor if isinstance(into, Flat) else into
    if tensor.shape != content.shape:
        raise ValueError(f"an array of shape {list(content.shape)} for a tensor of shape {list(tensor.shape)}")
    tensor.copy_(host_tensor(content))


def set_value(owner, name: str, value):
    """Set the attribute ``name`` of ``owner`` to ``value``, a result of `value_of`. If the attribute is an array or a
    tensor, ``value`` is copied into the attribute's memory."""
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
