"""Average of all ranks' models, in a copy of the model."""

import torch

from grsgd.algorithms.averaging import average_buffers, exact_average
from grsgd.algorithms.base import Algorithm
from grsgd.models.replica import views
from grsgd.own_loop.checks import InPlace


def average_into(model: torch.nn.Module, algorithm: Algorithm, in_place: InPlace):
    """Write the average of all ranks' parameters and buffers into ``model``, a copy of the replica's model. Each rank's
    values have the weight that the algorithm gives to the rank. ``in_place`` knows the places of the buffers in the
    replica. This function is a schedule (a generator that yields the objects it waits for), to be run on all ranks at
    once.
    """
    replica, comm = algorithm.replica, algorithm.uncounted_comm
    params, buffers = replica.params.like(), replica.buffers.like()
    for flat, tensor in zip((params, buffers), algorithm.snapshot(), strict=True):
        flat.tensor.copy_(tensor)
    yield from exact_average(comm, params, algorithm.weight)
    yield from average_buffers(comm, replica, buffers)
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, view in zip(trained, views(params.tensor, trained), strict=True):
        p.copy_(view)
    for name, view in in_place.buffers_in(buffers.tensor):
        buffer = model.get_buffer(name)
        if buffer.shape == view.shape:
            buffer.copy_(view)
