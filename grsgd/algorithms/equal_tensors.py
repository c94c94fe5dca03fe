"""Functions that copy tensors of any kind from rank 0, or that make tensors equal on all ranks. Each function is a
schedule (a generator that yields each object it waits for)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grsgd.algorithms.averaging import exact_average
from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.allreduce.pieces import cut
from grsgd.lazy import LazyModule
from grsgd.models.digests import bytes_of, digests
from grsgd.models.flat import Flat

torch = LazyModule("torch")

LONGEST = 2**28
"""Length of the longest message in bytes, because MPI libraries refuse messages of 2 GiB."""


def copy_from_root(comm, tensors: list[torch.Tensor]):
    """Generator that copies dense tensors from rank 0 to all ranks, in place. A tensor is sent only if the digest
    (checksum) of the tensor on some rank differs from the digest on rank 0. Each tensor must have the same size on all
    ranks."""
    if comm.size > 1 and tensors:
        ranks, _ = yield from differing(comm, digests(tensors))
        for tensor, count in zip(tensors, ranks, strict=True):
            if count:
                yield from broadcast_tensor(comm, tensor)


def broadcast_tensor(comm, tensor: torch.Tensor):
    """Generator that copies a dense tensor from rank 0 to all ranks. The tensor may have any dtype and device, but must
    have the same shape on all ranks."""
    if tensor.numel() == 0:
        return
    host = tensor.detach().cpu().contiguous()
    for piece in cut(bytes_of(host), LONGEST):
        yield from broadcast(comm, piece)
    if comm.rank > 0 and host.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(host)


def differing(comm, numbers: np.ndarray):
    """Generator that compares int64 ``numbers`` with the numbers of rank 0.

    Returns two arrays with one element per number: how many ranks have a number different from rank 0's (float64), and
    whether this rank's number is different (bool).
    """
    of_root = numbers.copy()
    yield from broadcast(comm, of_root)
    mine = numbers != of_root
    ranks = mine.astype(np.float64)
    yield from halving_doubling_allreduce(comm, ranks)
    return ranks, mine


def itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def make_equal(comm, tensors: list[torch.Tensor], to_write: Callable[[torch.Tensor], torch.Tensor] = itself):
    """Generator that makes dense tensors equal on all ranks, in place.

    A tensor that differs between ranks is replaced by its mean over all ranks, or by rank 0's tensor if its dtype is
    neither real nor complex. A tensor whose size differs between ranks stays unchanged. For each tensor that differs
    between ranks, ``to_write(tensor)`` returns a tensor with the same content that may be overwritten.
    """
    if comm.size == 1 or not tensors:
        return
    other_size, _ = yield from differing(comm, np.array([tensor.nbytes for tensor in tensors], np.int64))
    other_content, _ = yield from differing(comm, digests(tensors))
    for tensor, is_alike, differs in zip(tensors, other_size == 0, other_content > 0, strict=True):
        if not (is_alike and differs):
            continue
        tensor = to_write(tensor)
        if tensor.is_floating_point() or tensor.is_complex():
            yield from average_tensor(comm, tensor.detach())
        else:
            yield from broadcast_tensor(comm, tensor)


def average_tensor(comm, tensor: torch.Tensor):
    """Generator that replaces a dense tensor of real or complex numbers by its mean over all ranks, in place. The mean
    of the tensor over all ranks is computed in float64."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    mean = Flat.zeros(tensor.numel(), torch.float64, torch.device("cpu"))
    mean.tensor.copy_(tensor.flatten())
    yield from exact_average(comm, mean)
    tensor.copy_(mean.tensor.view(tensor.shape))
