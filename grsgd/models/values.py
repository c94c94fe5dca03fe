"""Copies of arrays, tensors and numbers that share no memory with them, and their restoration."""

from __future__ import annotations

import copy

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


def array_of(value: Flat | torch.Tensor) -> np.ndarray:
    """Return a copy of the array on the host."""
    tensor = value.tensor if isinstance(value, Flat) else value
    return tensor.detach().cpu().numpy().copy()


def value_of(value):
    """Return a copy of an array or tensor as a NumPy array, and of anything else in a form for JSON."""
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
    tensor.copy_(torch.from_numpy(content))


def set_value(owner, name: str, value):
    """Set an attribute to a value that `value_of` has returned; arrays and tensors keep their memory."""
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
