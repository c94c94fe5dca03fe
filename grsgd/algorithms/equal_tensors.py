"""Schedules (generators that yield each object they wait for) that copy tensors of any kind from rank 0, or that make
tensors equal on all ranks."""

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
"""Length of the longest message in bytes: MPI libraries refuse messages of 2 GiB."""


def copy_from_root(comm, tensors: list[torch.Tensor]):
    """Schedule that copies dense tensors from rank 0, in place. A tensor is sent only if its digest on some rank
    differs from rank 0's; its size must be the same on all ranks."""
    if comm.size > 1 and tensors:
        ranks, _ = yield from differing(comm, digests(tensors))
        for tensor, count in zip(tensors, ranks, strict=True):
            if count:
                yield from broadcast_tensor(comm, tensor)


def broadcast_tensor(comm, tensor: torch.Tensor):
    """Schedule that copies a dense tensor from rank 0. The tensor may have any dtype and device, but must have the same
    shape on all ranks."""
    if tensor.numel() == 0:
        return
    host = tensor.detach().cpu().contiguous()
    for piece in cut(bytes_of(host), LONGEST):
        yield from broadcast(comm, piece)
    if comm.rank > 0 and host.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(host)


def differing(comm, numbers: np.ndarray):
    """Schedule that compares int64 ``numbers`` with the numbers of rank 0.

    Returns, for each number, the count of ranks on which it differs (float64), and whether it differs on this rank
    (bool).
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
    """Schedule that makes dense tensors equal on all ranks, in place.

    A tensor that differs becomes the mean over all ranks, or rank 0's tensor if its dtype is neither real nor complex.
    A tensor whose size differs between ranks stays unchanged. ``to_write(tensor)`` returns the tensor that is written
    in place of a tensor that differs, with the same content.
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
    """Schedule that replaces a dense tensor of real or complex numbers by its mean over all ranks, in place, via
    float64."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    mean = Flat.zeros(tensor.numel(), torch.float64, torch.device("cpu"))
    mean.tensor.copy_(tensor.flatten())
    yield from exact_average(comm, mean)
    tensor.copy_(mean.tensor.view(tensor.shape))
