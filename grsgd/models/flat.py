"""One memory that communication sees as an array and arithmetic as a tensor.

The arrays are NumPy on the CPU, CuPy on a GPU, and without content on torch's device ``meta``; torch sees the same
memory through DLPack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grsgd.lazy import LazyModule
from grsgd.models.shape_only import ShapeOnlyArray

torch = LazyModule("torch")


LINE_BYTES = 64
"""A line of the cache."""


@dataclass(frozen=True)
class Flat:
    """One memory, two views: ``array`` (NumPy or CuPy, for communication) and ``tensor`` (torch, for arithmetic)."""

    array: object
    tensor: torch.Tensor

    @classmethod
    def zeros(cls, size: int, dtype: torch.dtype, device: torch.device) -> Flat:
        name = str(dtype).removeprefix("torch.")
        if device.type == "meta":
            from grsgd.models.shape_only_tensor import shape_only_tensor

            return cls(ShapeOnlyArray(size, name), shape_only_tensor(size, dtype))
        if device.type == "cuda":
            import cupy

            array = cupy.zeros(size, name)
        else:
            array = aligned_zeros(size, name)
        if size == 0:  # an address that DLPack could hand over is missing
            return cls(array, torch.zeros(0, dtype=dtype, device=device))
        return cls.of(array)

    @classmethod
    def of(cls, array) -> Flat:
        """Return one that lies where ``array`` does, which has an element or more."""
        return cls(array, torch.from_dlpack(array))

    def like(self) -> Flat:
        """Return a new one of the same length, dtype and device, filled with zeros."""
        return Flat.zeros(self.tensor.numel(), self.tensor.dtype, self.tensor.device)


def aligned_zeros(size: int, dtype: str) -> np.ndarray:
    """Return an array that begins where a line of the cache does, as torch's do; NumPy's may begin within one, and then
    every vector that the processor loads may lie in two lines."""
    nbytes = size * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + LINE_BYTES, np.uint8)
    begin = -memory.__array_interface__["data"][0] % LINE_BYTES
    return memory[begin : begin + nbytes].view(dtype)
