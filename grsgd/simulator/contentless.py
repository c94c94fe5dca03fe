"""Models whose parameters have sizes but no values, for simulations that compute only times."""

import torch


def sizes(model: torch.nn.Module) -> tuple[list[int], int]:
    """Return the number of elements of each trained parameter of ``model``, and the total number of elements of its
    floating-point buffers."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    return [p.numel() for p in parameters], sum(b.numel() for b in buffers)


def without_content(parameters: list[int], statistics: int) -> torch.nn.Module:
    """Return a model whose parameters have no values (torch's device ``meta``). The model has one buffer of
    ``statistics`` elements.

    ``parameters`` is the list of the number of elements of each parameter.
    """
    flat = torch.nn.Module()
    flat.x = torch.nn.ParameterList([torch.empty(size, device="meta") for size in parameters])
    flat.register_buffer("statistics", torch.empty(statistics, device="meta"))
    return flat
