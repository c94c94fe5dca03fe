"""Digests (CRC-32) of tensors. Tensors with equal bytes have equal digests. Tensors with different bytes have equal
digests with a probability of one in 4,000 million."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


def digests(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the CRC-32 of each dense tensor's bytes, int64 of shape [number of tensors].

    The order of the bytes matters: a tensor with the same numbers in another order has another digest.
    """
    return np.array([zlib.crc32(bytes_of(tensor)) for tensor in tensors], np.int64)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a dense tensor as a uint8 array. The array shares the tensor's memory if the tensor is
    contiguous and in host memory."""
    tensor = tensor.detach().cpu().contiguous()
    # as_strided() is needed, because view() can fail for a dimension of length 1, which may have any stride
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
