"""Copying of arrays, tensors and other attributes for saving, and restoring them."""

from __future__ import annotations

import copy

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat, host_array, host_tensor

torch = LazyModule("torch")


def array_of(value: Flat | torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as a NumPy array in host memory."""
    tensor = value.tensor if isinstance(value, Flat) else value
    return host_array(tensor.detach().cpu()).copy()


def value_of(value):
    """Return a copy of ``value``: of an array or tensor as a NumPy array, and of any other value in a form that JSON
    can hold."""
    if isinstance(value, Flat | torch.Tensor):
        return array_of(value)
    if isinstance(value, np.ndarray):
        return value.copy()
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
