"""Division of a model into one part for each optimizer, if several optimizers train the model."""

from collections.abc import Sequence

import torch
from torch import nn

from grsgd.errors import ConfigError


class Part(nn.Module):
    """Container of the modules, parameters and buffers that one optimizer trains.

    A copy of this container copies nothing else from the model, such as a trainer, logger or metric.
    """

    def __init__(self):
        super().__init__()
        self.modules_of_part = nn.ModuleList()
        self.parameters_of_part = nn.ParameterList()

    def add_directly(self, module: nn.Module, name: str, take_buffers: bool, owns):
        """Add the parameters directly in ``module``, not in its submodules, for which ``owns`` returns True. If
        ``take_buffers``, add the buffers that are directly in ``module``. ``name`` is the name of the module."""
        self.parameters_of_part.extend(p for p in module.parameters(recurse=False) if owns(p))
        for own, buffer in module.named_buffers(recurse=False) if take_buffers else ():
            self.register_buffer(f"{name}.{own}".replace(".", "__"), buffer)


def parts_of(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[Part]:
    """Return a part of ``model`` for each optimizer. Together, the parts have all parameters and buffers of the model.

    A module belongs to the optimizer that trains the module's parameters. Modules, parameters and buffers that no
    optimizer trains belong to the first optimizer. Raises ConfigError if two optimizers train the same parameter.
    """
    owners: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if owners.setdefault(id(parameter), number) != number:
                raise ConfigError(
                    f"optimizers {owners[id(parameter)]} and {number} both train a parameter of shape "
                    f"{tuple(parameter.shape)}: give each parameter to one optimizer"
                )
    parts = [Part() for _ in optimizers]

    def place(module: nn.Module, name: str, is_whole: bool):
        trained = {owners[id(p)] for p in module.parameters() if id(p) in owners}
        if not is_whole and len(trained) < 2:
            parts[min(trained, default=0)].modules_of_part.append(module)
            return
        for number, part in enumerate(parts):
            part.add_directly(module, name, number == 0, lambda p, number=number: owners.get(id(p), 0) == number)
        for child_name, child in module.named_children():
            if any(True for _ in child.parameters()) or any(True for _ in child.buffers()):
                place(child, f"{name}.{child_name}", False)

    place(model, "model", True)
    return parts
