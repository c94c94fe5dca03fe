"""Functions that average models and arrays over all ranks. Each function is a schedule (a generator that yields each
object it waits for). The messages of the functions in `averaging` do not count as the algorithm's traffic. In a run
with one rank the functions in `averaging` do nothing."""

from __future__ import annotations

from functools import partial

import numpy as np

from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.allreduce.pieces import power_of_two
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica

torch = LazyModule("torch")


def average_models(comm, replica: Replica):
    """Replace the model's parameters and buffers on every rank by their mean over all ranks."""
    yield from average_array(comm, replica.params)
    yield from average_buffers(comm, replica)


def average_weighted_models(comm, replica: Replica, weight: float):
    """Replace the parameters x of all ranks by the sum of ``a x / n`` over all ranks, where a is the ``weight`` of a
    rank and n the number of ranks. Replace the model's buffers by their mean over all ranks.

    Raises RuntimeError if the weights of all ranks do not sum to n.
    """
    n = comm.size
    if n > 1:
        total = np.array([weight])
        yield from halving_doubling_allreduce(comm, total)
        if abs(total[0] - n) > 1e-6 * n:
            raise RuntimeError(f"the weights of all ranks sum to {total[0]} instead of {n}: a message was lost")
    yield from average_array(comm, replica.params, weight)
    yield from average_buffers(comm, replica)


def average_array(comm, flat: Flat, weight: float = 1.0):
    """Replace ``flat`` by the mean over all ranks of ``weight`` times ``flat``, in place.

    If the run is stopped during `average_array`, ``flat`` keeps its content. Before the sum over all ranks, each rank's
    array is divided by a power of two. The division by a power of two is exact, except for subnormal numbers, and keeps
    the sum from overflowing.
    """
    if comm.size > 1:
        average, share = flat.wide(), power_of_two(1 / comm.size)
        average.tensor.copy_(flat.tensor).mul_(weight * share)
        yield from halving_doubling_allreduce(comm, average.array, scale=1 / comm.size / share)
        flat.tensor.copy_(average.tensor)


def exact_average(comm, flat: Flat, weight: float = 1.0, root: int = 0):
    """Replace ``flat`` by its mean over all ranks, weighted by ``weight``, in place. If all ranks have equal arrays,
    the arrays stay unchanged bit for bit.

    The mean over all ranks is computed from the differences between each rank's array and the array of rank ``root``,
    so equal arrays give differences of exactly zero. Returns the sum of all ranks' weights. If the weights of all ranks
    sum to 0, no mean exists, and the arrays stay as they are.
    """
    if flat.tensor.dtype is torch.bfloat16:
        wide = flat.wide()
        wide.tensor.copy_(flat.tensor)
        total = yield from exact_average(comm, wide, weight, root)
        flat.tensor.copy_(wide.tensor)
        return total
    reference = flat.like()
    reference.tensor.copy_(flat.tensor)
    yield from broadcast(comm, reference.array, root=root)
    total = np.array([weight])
    yield from halving_doubling_allreduce(comm, total)
    if total[0] == 0:
        return 0.0
    share = power_of_two(1 / comm.size)
    flat.tensor.sub_(reference.tensor).mul_(weight * comm.size / total[0] * share)
    yield from halving_doubling_allreduce(comm, flat.array, scale=1 / comm.size / share)
    flat.tensor.add_(reference.tensor)
    return float(total[0])


def average_buffers(comm, replica: Replica, buffers: Flat | None = None):
    """Replace the model's buffers (batch-norm statistics) on all ranks by their mean. If ``buffers`` is given,
    `average_buffers` averages ``buffers`` in place of the model's buffers."""
    if comm.size > 1:
        average = partial(halving_doubling_allreduce, comm, scale=1 / comm.size)
        yield from replica.average_buffers(average, buffers)
