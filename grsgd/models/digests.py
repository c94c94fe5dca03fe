"""Digests of tensors. Equal bytes have equal digests; different bytes have equal digests with a probability of one in
4,000 million."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


def digests(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the CRC-32 of each dense tensor's bytes, int64 of shape [number of tensors].

    The places of the bytes count: a tensor whose numbers have changed places has another digest.
    """
    return np.array([zlib.crc32(bytes_of(tensor)) for tensor in tensors], np.int64)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a dense tensor as a uint8 array. The array shares the tensor's memory if the tensor is
    contiguous and in host memory."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()  # strides of length 1 may be any number
