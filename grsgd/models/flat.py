"""Memory with two views: an array for communication, and a torch tensor for arithmetic.

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
"""Length of a cache line in bytes."""


@dataclass(frozen=True)
class Flat:
    """One memory with two views: ``array`` (NumPy or CuPy, for communication) and ``tensor`` (torch, for
    arithmetic)."""

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
        if size == 0:  # an empty array has no address for DLPack
            return cls(array, torch.zeros(0, dtype=dtype, device=device))
        return cls.of(array)

    @classmethod
    def of(cls, array) -> Flat:
        """Return a Flat in the memory of ``array``, which has at least one element."""
        return cls(array, torch.from_dlpack(array))

    def like(self) -> Flat:
        """Return a new Flat of the same length, dtype and device, filled with zeros."""
        return Flat.zeros(self.tensor.numel(), self.tensor.dtype, self.tensor.device)


def aligned_zeros(size: int, dtype: str) -> np.ndarray:
    """Return an array of zeros that begins at a cache line, as torch's tensors do. NumPy's arrays may begin within a
    line, so that each vector that the processor loads may lie in two lines."""
    nbytes = size * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + LINE_BYTES, np.uint8)
    begin = -memory.__array_interface__["data"][0] % LINE_BYTES
    return memory[begin : begin + nbytes].view(dtype)
