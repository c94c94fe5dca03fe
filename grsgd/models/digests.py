"""Digests of tensors. Equal bytes have equal digests; different bytes have equal short digests with a probability of
one in 4,000 million."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable

import numpy as np

from grsgd.lazy import LazyModule

torch = LazyModule("torch")

BLOCK = 2**16
"""Number of bytes per block. The 8-byte numbers of each block are summed, and only the sums go through the CRC, which
takes ten times as long per byte."""


def digests(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Return a digest of each dense tensor's bytes, int64 of shape [number of tensors].

    A digest is the CRC-32 of the sums of all whole blocks of bytes, and of the bytes after the last whole block. A
    digest does not detect numbers that change places within a block.
    """
    return np.array([digest(bytes_of(tensor)) for tensor in tensors], np.int64)


def digest(content: np.ndarray) -> int:
    whole = content.size - content.size % BLOCK
    sums = content[:whole].view(np.int64).reshape(-1, BLOCK // 8).sum(1)
    return zlib.crc32(content[whole:], zlib.crc32(sums))


def long_digests(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the first 8 bytes of the SHA-256 of each dense tensor's bytes, int64 of shape [number of tensors].

    A long digest also detects numbers that change places. It takes about ten times the time of a short digest.
    """
    firsts = (hashlib.sha256(bytes_of(tensor)).digest()[:8] for tensor in tensors)
    return np.array([int.from_bytes(first, "little", signed=True) for first in firsts], np.int64)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a dense tensor as a uint8 array. The array shares the tensor's memory if the tensor is
    contiguous and in host memory."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()  # strides of length 1 may be any number
