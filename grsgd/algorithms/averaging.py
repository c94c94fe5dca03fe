"""Schedules that average over all ranks, outside the counted traffic. With one rank they do nothing."""

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
    """Make the parameters and buffers of all ranks their mean."""
    yield from average_array(comm, replica.params)
    yield from average_buffers(comm, replica)


def average_weighted_models(comm, replica: Replica, weight: float):
    """Make the parameters x of all ranks ``sum a x / n``, where a is the ``weight``, and the buffers their mean.

    Raises RuntimeError if the weights of all ranks do not sum to n.
    """
    n = comm.size
    if n > 1:
        total = np.array([weight])
        yield from halving_doubling_allreduce(comm, total)
        if abs(total[0] - n) > 1e-6 * n:
            raise RuntimeError(f"the weights sum to {total[0]} instead of {n}: a message was lost")
    yield from average_array(comm, replica.params, weight)
    yield from average_buffers(comm, replica)


def average_array(comm, flat: Flat, weight: float = 1.0):
    """Make ``flat`` the mean of ``weight`` times the array over all ranks, in place.

    The array stays what it is if the run is stopped meanwhile. It is divided by a power of two before it is summed:
    that changes no bit of a normal number, and keeps the sum in range.
    """
    if comm.size > 1:
        average, share = flat.like(), power_of_two(1 / comm.size)
        torch.mul(flat.tensor, weight * share, out=average.tensor)
        yield from halving_doubling_allreduce(comm, average.array, scale=1 / comm.size / share)
        flat.tensor.copy_(average.tensor)


def exact_average(comm, flat: Flat, weight: float = 1.0, root: int = 0):
    """Make ``flat`` the mean over all ranks, each counted with its ``weight``, in place; where all are equal they stay.

    The mean is taken of the differences to the array of rank ``root``, so equal ones have none at all. Returns the sum
    of all weights; if it is 0, there is no mean, and the arrays are left as they are.
    """
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
    """Make the buffers of all ranks (batch-norm statistics), or the copies of them in ``buffers``, their mean."""
    if comm.size > 1:
        average = partial(halving_doubling_allreduce, comm, scale=1 / comm.size)
        yield from replica.average_buffers(average, buffers)
