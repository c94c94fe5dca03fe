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
            import cupy as xp
        else:
            xp = np
        array = xp.zeros(size, name)
        if size == 0:  # an address that DLPack could hand over is missing
            return cls(array, torch.zeros(0, dtype=dtype, device=device))
        return cls(array, torch.from_dlpack(array))

    def like(self) -> Flat:
        """Return a new one of the same length, dtype and device, filled with zeros."""
        return Flat.zeros(self.tensor.numel(), self.tensor.dtype, self.tensor.device)
