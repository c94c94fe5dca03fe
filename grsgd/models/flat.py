"""Memory with two views: an array for communication, and a torch tensor for arithmetic.

The array is a NumPy array on the CPU, a CuPy array on a GPU, and an array without content on torch's device ``meta``.
The torch tensor uses the array's memory through DLPack.
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
    """Memory with two views: ``array`` is a NumPy or CuPy array for communication, and ``tensor`` is a torch tensor for
    arithmetic."""

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
        """Return a Flat that uses the memory of ``array``, which must have at least one element."""
        tensor = torch.from_dlpack(array)
        return cls(array, tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor)

    def like(self) -> Flat:
        """Return a new Flat with the length, dtype and device of this object, filled with zeros."""
        return Flat.zeros(self.tensor.numel(), self.tensor.dtype, self.tensor.device)

    def wide(self) -> Flat:
        """Return a new Flat of zeros, in which Flats like this object can be added up or averaged. If this object has
        bfloat16, the new Flat has float32, so that a sum or mean is rounded to 16 bits only once. If this object has
        any other dtype, the new Flat has the same dtype."""
        dtype = torch.float32 if self.tensor.dtype is torch.bfloat16 else self.tensor.dtype
        return Flat.zeros(self.tensor.numel(), dtype, self.tensor.device)


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a NumPy array that shares the memory of ``tensor``, which must be on the CPU. For a tensor of bfloat16, a
    dtype that NumPy lacks, the array has the numbers' bits as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def host_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares the memory of a NumPy array; the inverse of `host_array`. For an array of uint16, the
    result is a tensor of bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def octets_of(tensor: torch.Tensor):
    """Return the memory of a contiguous, non-empty tensor as an array of bytes (uint8). The result is a NumPy array on
    the CPU, and a CuPy array on a GPU."""
    octets = tensor.detach().view(-1).view(torch.uint8)
    if tensor.is_cuda:
        import cupy

        return cupy.from_dlpack(octets)
    return octets.numpy()


def aligned_zeros(size: int, dtype: str) -> np.ndarray:
    """Return an array of zeros whose memory begins at a cache line, like the memory of torch's tensors. NumPy's own
    arrays may begin within a cache line, so that the processor must load vectors that extend over two cache lines."""
    nbytes = size * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + LINE_BYTES, np.uint8)
    begin = -memory.__array_interface__["data"][0] % LINE_BYTES
    return memory[begin : begin + nbytes].view(dtype)
