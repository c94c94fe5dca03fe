"""Functions that average, over all ranks, the state that a torch optimizer keeps for each parameter, such as momenta
and step counters.

The optimizers of different ranks may have state for different parameters. An optimizer has no state for a frozen
parameter, and for a parameter that has had no gradient yet. The optimizer of a process that has just joined the run has
no state at all. A schedule is a generator that yields each object it waits for.
"""

from functools import reduce
from zlib import crc32

import numpy as np
import torch

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.models.flat import Flat
from grsgd.training import unwrapped

Optimizer = torch.optim.Optimizer


def agree(comm, optimizer: Optimizer, weight: float):
    """Make the optimizers of all ranks of ``comm`` hold state for the same parameters. This function is a generator
    (schedule) that all ranks run at once.

    A parameter gets optimizer state on all ranks if it has state on any rank with a ``weight`` above 0. Missing
    optimizer state is created, filled with zeros. If ranks have state with different keys or shapes for a parameter,
    the state of this parameter is removed on all ranks.
    """
    parameters = parameters_of(optimizer)
    have = np.array([weight * bool(optimizer.state.get(parameter)) for parameter in parameters])
    yield from halving_doubling_allreduce(comm, have)
    remember(optimizer, {parameter for parameter, weights in zip(parameters, have, strict=True) if weights > 0})
    kinds = np.array([kind_of(optimizer.state.get(parameter, {})) for parameter in parameters], float)
    total = kinds.copy()
    yield from halving_doubling_allreduce(comm, total)
    for parameter, kind, of_all in zip(parameters, kinds, total, strict=True):
        if of_all != comm.size * kind:
            optimizer.state.pop(parameter, None)


def momenta(optimizer: Optimizer, device: torch.device) -> Flat:
    """Return one flat array with a copy of all tensors and numbers in the optimizer's state."""
    values = [torch.as_tensor(state[key]) for state, key in places(optimizer)]
    dtype = reduce(torch.promote_types, (value.dtype for value in values if value.is_floating_point()), torch.float32)
    flat = Flat.zeros(sum(value.numel() for value in values), dtype, device)
    if values:
        flat.tensor.copy_(torch.cat([value.reshape(-1).to(device, dtype) for value in values]))
    return flat


def set_momenta(optimizer: Optimizer, content: torch.Tensor):
    """Set all tensors and numbers in the optimizer's state to ``content``, a flat array like the result of
    `momenta`."""
    found = places(optimizer)
    for (state, key), part in zip(found, content.split([size_of(state[key]) for state, key in found]), strict=True):
        value = state[key]
        if torch.is_tensor(value):
            value.copy_(part.reshape(value.shape))
        else:
            state[key] = round(part.item()) if isinstance(value, int) else part.item()


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def places(optimizer: Optimizer) -> list[tuple[dict, str]]:
    """Return a pair (state of a parameter, key in this state) for each tensor and each number in the optimizer's
    state."""
    states = (optimizer.state.get(parameter, {}) for parameter in parameters_of(optimizer))
    return [(state, key) for state in states for key in sorted(state, key=str) if is_averaged(state[key])]


def is_averaged(value) -> bool:
    return torch.is_tensor(value) or (isinstance(value, int | float) and not isinstance(value, bool))


def size_of(value) -> int:
    return value.numel() if torch.is_tensor(value) else 1


def kind_of(state: dict) -> int:
    """Return a checksum of the keys, and of the shapes of the tensors, in ``state``, an optimizer's state of one
    parameter."""
    kept = [(str(key), tuple(getattr(state[key], "shape", ()))) for key in state if is_averaged(state[key])]
    return crc32(repr(sorted(kept)).encode())


@torch.no_grad()
def remember(optimizer: Optimizer, wanted: set[torch.Tensor]):
    """Give ``optimizer`` state for exactly the parameters in ``wanted``. Missing optimizer state is created, filled
    with zeros."""
    parameters = parameters_of(optimizer)
    for parameter in parameters:
        if parameter not in wanted:
            optimizer.state.pop(parameter, None)
    missing = {parameter for parameter in wanted if not optimizer.state.get(parameter)}
    if not missing:
        return
    before = [(parameter.clone(), parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter in missing else None
    unwrapped.step(optimizer)
    for parameter, (content, gradient) in zip(parameters, before, strict=True):
        parameter.copy_(content)
        parameter.grad = gradient
    for parameter in missing:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if is_averaged(value):
                state[key] = value.zero_() if torch.is_tensor(value) else type(value)(0)
