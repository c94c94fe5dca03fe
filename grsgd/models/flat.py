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
        name = "uint16" if dtype is torch.bfloat16 else str(dtype).removeprefix("torch.")
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
        tensor = torch.from_dlpack(array)
        return cls(array, tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor)

    def like(self) -> Flat:
        """Return a new Flat of the same length, dtype and device, filled with zeros."""
        return Flat.zeros(self.tensor.numel(), self.tensor.dtype, self.tensor.device)

    def wide(self) -> Flat:
        """Return a new Flat of zeros for sums and means of this one: of float32 instead of bfloat16, so that a result
        is rounded to 16 bits once; of the same dtype otherwise."""
        dtype = torch.float32 if self.tensor.dtype is torch.bfloat16 else self.tensor.dtype
        return Flat.zeros(self.tensor.numel(), dtype, self.tensor.device)


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a tensor on the CPU as a NumPy array. Numbers of bfloat16, a dtype that NumPy lacks, become
    their bits, uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def host_tensor(array: np.ndarray) -> torch.Tensor:
    """Return the memory of a NumPy array as a tensor; the inverse of `host_array`: bits, uint16, become bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def octets_of(tensor: torch.Tensor):
    """Return the memory of a contiguous tensor with at least one element as an array of bytes: NumPy on the CPU, CuPy
    on a GPU."""
    octets = tensor.detach().view(-1).view(torch.uint8)
    if tensor.is_cuda:
        import cupy

        return cupy.from_dlpack(octets)
    return octets.numpy()


def aligned_zeros(size: int, dtype: str) -> np.ndarray:
    """Return an array of zeros that begins at a cache line, as torch's tensors do. NumPy's arrays may begin within a
    line, so that each vector that the processor loads may lie in two lines."""
    nbytes = size * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + LINE_BYTES, np.uint8)
    begin = -memory.__array_interface__["data"][0] % LINE_BYTES
    return memory[begin : begin + nbytes].view(dtype)
